//! Why a call did not succeed.

use std::time::Duration;

use crate::Problem;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not succeed. Match its [`kind`](Self::kind); retry layers ask
/// [`is_temporary`](Self::is_temporary).
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server refused, and says why.
    #[error("{}", problem.detail)]
    #[non_exhaustive]
    Refused {
        /// Its problem document.
        problem: Box<Problem>,
        /// When to try again, where the server says so.
        retry_after: Option<Duration>,
    },
    /// The server could not be reached, or the connection was cut: a request without an idempotency key
    /// may have had its effect.
    #[error("{address} cannot be reached: {reason}")]
    #[non_exhaustive]
    Unreachable {
        /// The server.
        address: String,
        /// What happened.
        reason: String,
    },
    /// No answer came in time: a request without an idempotency key may have had its effect.
    #[error("{address} did not answer within {} s", timeout.as_secs())]
    #[non_exhaustive]
    TimedOut {
        /// The server.
        address: String,
        /// How long it had.
        timeout: Duration,
    },
    /// The answer is not one of the contract: it is another server, or another version.
    #[error(
        "{address} answered with {status} and something that is no answer of Latchwork: {reason}"
    )]
    #[non_exhaustive]
    Unreadable {
        /// The server.
        address: String,
        /// The status of the answer.
        status: u16,
        /// What is wrong with it.
        reason: String,
    },
    /// An argument is not legal; nothing was sent.
    #[error("invalid {name}: {reason}")]
    #[non_exhaustive]
    InvalidArgument {
        /// Which argument.
        name: &'static str,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The stable code: that of the server's problem, or one of this client.
    pub fn code(&self) -> &str {
        match self.kind() {
            ErrorKind::Refused { problem, .. } => &problem.code,
            ErrorKind::Unreachable { .. } | ErrorKind::TimedOut { .. } => "server_unreachable",
            ErrorKind::Unreadable { .. } => "unreadable_answer",
            ErrorKind::InvalidArgument { .. } => "invalid_argument",
        }
    }

    /// The server's problem document, where it refused.
    pub fn problem(&self) -> Option<&Problem> {
        match self.kind() {
            ErrorKind::Refused { problem, .. } => Some(problem.as_ref()),
            _ => None,
        }
    }

    /// When to try again, where the server says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind() {
            ErrorKind::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        match self.kind() {
            ErrorKind::Refused { problem, retry_after } => {
                retry_after.is_some() || matches!(problem.status, 429 | 502 | 503 | 504)
            }
            ErrorKind::Unreachable { .. } | ErrorKind::TimedOut { .. } => true,
            ErrorKind::Unreadable { status, .. } => matches!(status, 502..=504),
            ErrorKind::InvalidArgument { .. } => false,
        }
    }

    pub(super) fn invalid(name: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { name, reason: reason.into() }.into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}
