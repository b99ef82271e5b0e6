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

/// Refuses an address that names a file which cannot be read: the driver would tell the same as
/// where a server's socket is missing, and that may pass.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn check_files(url: &url::Url, parameters: &[&str]) -> Result<()> {
    for (name, file) in url.query_pairs().filter(|(name, _)| parameters.contains(&&**name)) {
        // The driver also takes the certificate itself.
        if file.contains("-----BEGIN") {
            continue;
        }
        std::fs::File::open(&*file)
            .map_err(|e| Error::permanent(format!("{name}={file:?} cannot be read: {e}"), None))?;
    }
    Ok(())
}

/// Says why a connection failed. The system's own text names neither host nor user; of most errors
/// the kind says more.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn connection_failed(error: &std::io::Error) -> String {
    // Such an error has no kind of its own; the text is the standard library's.
    let text = error.to_string();
    if text.starts_with("failed to lookup address") {
        return format!("the host in the address is not known ({text}); check its name");
    }
    format!("the connection failed ({})", error.kind())
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
