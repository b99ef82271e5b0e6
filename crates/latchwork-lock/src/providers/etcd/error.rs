//! Converts the errors of etcd-client.

use std::error::Error as _;
use std::time::Duration;

use crate::Error;

/// The provider's name in error messages.
pub(super) const NAME: &str = "etcd";

/// Why a request failed, and what is known of its effect.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The server does not know the lease that an entry was to be attached to. Nothing was changed.
    LeaseNotFound,
    /// There was no answer: the request may have been executed, now or later.
    Unknown(Error),
    /// The server rejected the request. Nothing was changed.
    Rejected(Error),
}

impl RequestError {
    pub(super) fn from_driver(during: &'static str, error: etcd_client::Error) -> Self {
        if is_lease_not_found(&error) {
            return RequestError::LeaseNotFound;
        }
        let error = driver(during, error);
        if error.is_temporary() {
            RequestError::Unknown(error)
        } else {
            RequestError::Rejected(error)
        }
    }

    /// The server accepts fewer operations in a transaction.
    pub(super) fn is_too_many_operations(&self) -> bool {
        matches!(self, RequestError::Rejected(error)
            if error.to_string().contains("too many operations"))
    }

    /// There was no answer in time.
    pub(super) fn timed_out(during: &'static str, after: Duration) -> Self {
        let reason = format!("no answer within {after:?}");
        RequestError::Unknown(Error::unavailable(NAME, during, reason, None))
    }

    /// A member that has answered before does not take our certificate any more, or we not its: one
    /// of them was replaced, and the next connection has what the files have now.
    pub(super) fn lost_handshake(during: &'static str, error: &Error) -> Self {
        let reason = format!("the connection is opened anew ({error})");
        RequestError::Unknown(Error::unavailable(NAME, during, reason, None))
    }

    /// The answer to a batch was lost, and with it that to this operation.
    pub(super) fn answer_lost(during: &'static str) -> Self {
        RequestError::Unknown(Error::unavailable(NAME, during, "the answer was lost", None))
    }

    pub(super) fn into_error(self, during: &'static str) -> Error {
        match self {
            RequestError::Unknown(error) | RequestError::Rejected(error) => error,
            RequestError::LeaseNotFound => {
                let reason = "a lease ended on the way to the server; asking again makes a new one";
                Error::unavailable(NAME, during, reason, None)
            }
        }
    }
}

/// Whether a TLS connection did not come about, so that nothing was sent.
pub(super) fn is_handshake(error: &Error) -> bool {
    crate::coordination::tls::fault(&error.to_string()).is_some()
}

/// gRPC status codes.
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const ABORTED: i32 = 10;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

fn is_lease_not_found(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status)
        if status.code() as i32 == code::NOT_FOUND && status.message().contains("lease"))
}

/// Converts an error of the driver. Its texts have no secrets: they never repeat their input.
pub(super) fn driver(during: &'static str, error: etcd_client::Error) -> Error {
    use etcd_client::Error as Driver;
    let (reason, temporary) = match &error {
        Driver::GRpcStatus(status) => {
            match rejection(status.code() as i32, status.message()) {
                Some(reason) => (reason, false),
                // The transport reports its own errors as a status, too.
                None => transport(status.message(), status.source()),
            }
        }
        Driver::TransportError(inner) => transport("no connection", inner.source()),
        Driver::IoError(inner) => (inner.to_string(), true),
        Driver::WatchError(_) | Driver::LeaseKeepAliveError(_) => (error.to_string(), true),
        other => (other.to_string(), false),
    };
    let source = Some(Box::new(error) as _);
    if temporary {
        Error::unavailable(NAME, during, reason, source)
    } else {
        Error::backend(NAME, during, reason, source)
    }
}

/// What to do about an answer that will be the same at the next attempt. `None` if it may pass.
fn rejection(code: i32, message: &str) -> Option<String> {
    let message = message.strip_prefix("etcdserver: ").unwrap_or(message);
    let reason = match code {
        code::PERMISSION_DENIED => format!(
            "{message}: the user may not read and write the keys there; give one of its roles \
             `readwrite` on the prefix (etcdctl role grant-permission --prefix)"
        ),
        _ if message.contains("user name is empty") => {
            "the server demands a user: write etcd://user:password@host/".to_owned()
        }
        _ if message.contains("invalid user ID or password") => "wrong user or password".to_owned(),
        _ if message.contains("authentication is not enabled") => {
            "the server knows no users: leave user and password out of the address".to_owned()
        }
        code::RESOURCE_EXHAUSTED if message.contains("space exceeded") => format!(
            "{message}: the server is full; compact and defragment it, then disarm its alarm"
        ),
        code::UNIMPLEMENTED => {
            format!("it is no etcd server, or one older than 3.4 ({message})")
        }
        code::UNAVAILABLE
        | code::DEADLINE_EXCEEDED
        | code::CANCELLED
        | code::UNKNOWN
        | code::RESOURCE_EXHAUSTED
        | code::ABORTED
        | code::INTERNAL
        | code::UNAUTHENTICATED => {
            return None;
        }
        _ => message.to_owned(),
    };
    Some(reason)
}

/// Describes a connection error by all its sources, since only the innermost ones know the cause.
/// The flag says whether it may pass.
fn transport(message: &str, source: Option<&(dyn std::error::Error + 'static)>) -> (String, bool) {
    let mut description = message.to_owned();
    let mut next = source;
    while let Some(error) = next {
        let text = error.to_string();
        if !description.contains(&text) {
            description = format!("{description}: {text}");
        }
        next = error.source();
    }
    let about = |hint: &str| (format!("{description}; {hint}"), false);
    if let Some(hint) = crate::coordination::tls::fault(&description) {
        return about(hint);
    }
    if description.contains("corrupt message") {
        return about("the server speaks no TLS: write etcd:// and not etcds://");
    }
    let strange =
        ["invalid HTTP version", "frame with invalid size", "http2 error: connection error"];
    if strange.iter().any(|what| description.contains(what)) && !description.contains("GOAWAY") {
        return about(
            "it does not answer as an etcd server does: name its client port, 2379 as a rule",
        );
    }
    (description, true)
}

/// The error for an entry that another program must have written.
pub(super) fn unreadable(during: &'static str, what: impl std::fmt::Display) -> Error {
    Error::backend(
        NAME,
        during,
        format!(
            "an entry of the key is not readable ({what}); nothing was changed; let all \
             processes that lock here run the same version"
        ),
        None,
    )
}
