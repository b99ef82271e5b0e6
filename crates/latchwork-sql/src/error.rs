//! A database's errors, told apart by what can be done about them.

/// The result of a database operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether the same call may succeed later without anybody changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The database did not answer, or could not serve now: try again.
    Temporary,
    /// Somebody must repair something first: the address, the rights, the file.
    Permanent,
}

/// An error with what to do about it. Its message holds no part of an address, since an address
/// may hold a password.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Error {
    /// Temporary or permanent.
    pub fault: Fault,
    /// What went wrong, and what to do.
    pub message: String,
    /// The driver's error.
    #[source]
    pub source: Option<sqlx::Error>,
}

impl Error {
    /// One that may pass.
    pub fn temporary(message: impl Into<String>, source: Option<sqlx::Error>) -> Self {
        Error { fault: Fault::Temporary, message: message.into(), source }
    }

    /// One that will not.
    pub fn permanent(message: impl Into<String>, source: Option<sqlx::Error>) -> Self {
        Error { fault: Fault::Permanent, message: message.into(), source }
    }
}
