//! Converts the errors of the redis crate. No message repeats the address: it may contain a password.

use redis::{ErrorKind, RedisError};

use crate::Error;

/// The provider's name in error messages.
pub(super) const NAME: &str = "redis";

/// The rights that the server's user needs, as `ACL SETUSER` spells them.
pub(super) const RIGHTS: &str =
    "~latchwork:* &latchwork:* +@read +@write +@scripting +@pubsub +@connection +time +info";

/// Converts an error of the driver, or an error reply of the server.
pub(super) fn driver(during: &'static str, error: RedisError) -> Error {
    match error.kind() {
        ErrorKind::AuthenticationFailed => server(during, "WRONGPASS", &error.to_string()),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported => {
            let reason = format!(
                "it does not speak Redis's protocol ({error}); check host and port, and write \
                 rediss:// if the server wants TLS"
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

/// Converts the error that the script caught for one command of a message.
pub(super) fn script(during: &'static str, message: &str) -> Error {
    let code = message.split([' ', '-']).find(|word| CODES.contains(word));
    server(during, code.unwrap_or_default(), message)
}

const CODES: [&str; 6] = ["NOPERM", "OOM", "MISCONF", "READONLY", "WRONGTYPE", "FOREIGN"];

/// Converts an error reply by its code.
fn server(during: &'static str, code: &str, message: &str) -> Error {
    // Inside a script the server words a missing right and a missing command differently.
    let lacks_right =
        message.contains("user executing the script") || message.contains("ACL failure");
    let code = if lacks_right { "NOPERM" } else { code };
    let reason = match code {
        "NOAUTH" | "WRONGPASS" => format!(
            "the password is wrong or missing ({message}); write redis://user:password@host"
        ),
        "NOPERM" => {
            format!(
                "a right is missing ({message}); let an administrator say: ACL SETUSER NAME {RIGHTS}"
            )
        }
        "WRONGTYPE" | "FOREIGN" => format!(
            "what is stored for this key is not from this version of Latchwork ({message}); \
             delete it once nobody uses it"
        ),
        "OOM" => format!("the server is out of memory ({message}); raise maxmemory"),
        "MISCONF" => {
            format!("the server cannot save its data, and so accepts no writes ({message})")
        }
        "MOVED" | "ASK" | "CROSSSLOT" => CLUSTER.to_owned(),
        _ if message.contains("unknown command")
            || message.contains("command called from script") =>
        {
            // Its arguments say nothing that helps, and may be a whole script.
            let message = message.split(", with args").next().unwrap_or(message);
            format!(
                "the server does not know a command that locks need ({message}): EVALSHA, SCRIPT, INFO, \
                 TIME and PUBLISH must have their names; look for rename-command in its configuration"
            )
        }
        // READONLY: the server was demoted, and a new connection may reach the new primary.
        "READONLY" | "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "BUSY"
        | "NOREPLICAS" => return Error::unavailable(NAME, during, message, None),
        _ => format!("the server replied {message:?}"),
    };
    Error::backend(NAME, during, reason, None)
}

/// Converts an error that occurred before the server could reply.
fn io(during: &'static str, error: RedisError) -> Error {
    let message = error.to_string();
    if let Some(hint) = crate::coordination::tls::fault(&message) {
        let reason = format!("{hint} ({message})");
        return Error::backend(NAME, during, reason, Some(Box::new(error)));
    }
    if is_tls(&message) {
        return Error::backend(
            NAME,
            during,
            format!(
                "the TLS connection failed ({message}); name the certificate authority with \
                 ?tls-ca=FILE, check the host's name, and write redis:// if the server has no TLS"
            ),
            Some(Box::new(error)),
        );
    }
    let reason = if error.is_connection_refusal() {
        format!("no server listens there ({message}); check host and port")
    } else if error.is_timeout() {
        "it did not answer in time (nor does a server without TLS answer rediss://)".to_owned()
    } else {
        message
    };
    Error::unavailable(NAME, during, reason, Some(Box::new(error)))
}

/// Recognises TLS errors by their text, since the driver hides the error's type.
fn is_tls(message: &str) -> bool {
    ["certificate", "corrupt message", "fatal alert", "TLS", "tls"]
        .iter()
        .any(|word| message.contains(word))
}

/// Why a cluster is rejected.
pub(super) const CLUSTER: &str = "it is a node of a Redis Cluster, which is not supported: a lock \
     and the channels of its waiters would be on several servers; use one server, with a replica";

/// The error for a reply that another program or version must have caused.
pub(super) fn unreadable(during: &'static str) -> Error {
    Error::backend(
        NAME,
        during,
        "its reply is not readable; let all processes that lock here run the same version, and \
         nobody else write keys that begin with latchwork:",
        None,
    )
}

/// The error for a release whose reply was lost, and that found nothing when it was repeated.
pub(super) fn reply_lost(during: &'static str) -> Error {
    let reason = "the connection broke before it replied; it is unknown whether the lease was held";
    Error::unavailable(NAME, during, reason, None)
}

/// The error for a command whose runtime has ended.
pub(super) fn runtime_ended(during: &'static str) -> Error {
    Error::unavailable(NAME, during, "the runtime is shutting down", None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_backend_has_the_rights() {
        let page = include_str!("../../../../../docs/backends/redis.md");
        assert!(page.contains(RIGHTS), "docs/backends/redis.md lacks: {RIGHTS}");
    }
}
