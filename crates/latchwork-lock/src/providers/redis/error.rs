//! The driver's errors as ours. No message repeats the address: it may hold a password.

use redis::{ErrorKind, RedisError};

use crate::Error;

/// The provider's name in messages.
pub(super) const NAME: &str = "redis";

/// What a user of the server must be allowed, in the words of `ACL SETUSER`.
pub(super) const RIGHTS: &str =
    "~latchwork:* &latchwork:* +@read +@write +@scripting +@pubsub +@connection +time +info";

/// An error of the driver or an answer of the server that is one.
pub(super) fn driver(during: &'static str, error: RedisError) -> Error {
    match error.kind() {
        ErrorKind::AuthenticationFailed => server(during, "WRONGPASS", &error.to_string()),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported => {
            let reason = format!(
                "it does not speak Redis's protocol ({error}); check host and port, and write \
                 rediss:// where the server wants TLS"
            );
            Error::backend(NAME, during, reason, None)
        }
        ErrorKind::InvalidClientConfig => Error::invalid_argument("url", error.to_string()),
        _ => match error.code() {
            Some(code) => server(during, code, &error.to_string()),
            None => io(during, error),
        },
    }
}

/// A script that failed for one member of a message.
pub(super) fn script(during: &'static str, said: &str) -> Error {
    let code = match said.split([' ', '-']).find(|word| CODES.contains(word)) {
        // What a user may not do is told in other words inside a script.
        None if said.contains("user executing the script") || said.contains("ACL failure") => {
            "NOPERM"
        }
        code => code.unwrap_or_default(),
    };
    server(during, code, said)
}

const CODES: [&str; 6] = ["NOPERM", "OOM", "MISCONF", "READONLY", "WRONGTYPE", "FOREIGN"];

/// What the server says is wrong.
fn server(during: &'static str, code: &str, said: &str) -> Error {
    let reason = match code {
        "NOAUTH" | "WRONGPASS" => {
            format!("the password is wrong or missing ({said}); write redis://user:password@host")
        }
        "NOPERM" => format!("a right is missing ({said}); allow the user: {RIGHTS}"),
        "WRONGTYPE" | "FOREIGN" => format!(
            "what it keeps for this key is not from this version of Latchwork ({said}); \
             delete it once nobody uses it"
        ),
        "OOM" => format!("it is out of memory ({said}); raise maxmemory"),
        "MISCONF" => format!("it cannot save its data, and so takes no writes ({said})"),
        "MOVED" | "ASK" | "CROSSSLOT" => CLUSTER.to_owned(),
        // A server that was demoted: whoever connects again may meet the new one.
        "READONLY" | "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "BUSY"
        | "NOREPLICAS" => return Error::unavailable(NAME, during, said, None),
        _ => format!("it says {said:?}"),
    };
    Error::backend(NAME, during, reason, None)
}

/// An error before the server could answer.
fn io(during: &'static str, error: RedisError) -> Error {
    let said = error.to_string();
    if is_tls(&said) {
        return Error::backend(
            NAME,
            during,
            format!(
                "the TLS connection failed ({said}); name the certificate authority with \
                 ?tls-ca=FILE, check the host's name, and write redis:// if the server has no TLS"
            ),
            Some(Box::new(error)),
        );
    }
    let reason = if error.is_connection_refusal() {
        format!("nobody listens there ({said}); check host and port")
    } else if error.is_timeout() {
        "it did not answer in time (nor does a server without TLS answer rediss://)".to_owned()
    } else {
        said
    };
    Error::unavailable(NAME, during, reason, Some(Box::new(error)))
}

/// By its words: the driver hides the error's type.
fn is_tls(said: &str) -> bool {
    ["certificate", "corrupt message", "fatal alert", "TLS", "tls"]
        .iter()
        .any(|word| said.contains(word))
}

/// Why a cluster is refused.
pub(super) const CLUSTER: &str = "it is a node of a Redis Cluster, which is not supported: a lock \
     and what tells its waiters would be on several servers; use one server, with a replica";

/// An answer that another program or version must have caused.
pub(super) fn unreadable(during: &'static str) -> Error {
    Error::backend(
        NAME,
        during,
        "what it answered is not readable; let all processes that lock here run the same version, \
         and nobody else write keys that begin with latchwork:",
        None,
    )
}

/// A release whose answer was lost, and that found nothing when it was asked again.
pub(super) fn lost_answer(during: &'static str) -> Error {
    let reason = "the connection broke before it answered; whether the lease was held is not known";
    Error::unavailable(NAME, during, reason, None)
}

/// Nobody is left to do it.
pub(super) fn gone(during: &'static str) -> Error {
    Error::unavailable(NAME, during, "the runtime is shutting down", None)
}
