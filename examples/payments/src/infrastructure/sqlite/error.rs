//! The driver's errors as ours.

use std::fmt::Display;
use std::path::Path;

use crate::application::Error;

/// What the driver said while something was tried.
pub(super) fn failed(during: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| Error::Store {
        during,
        reason: error.to_string(),
        temporary: is_temporary(&error),
        source: Some(error.into()),
    }
}

/// The same of a file that was to be opened.
pub(super) fn not_opened(path: &Path) -> impl Fn(sqlx::Error) -> Error {
    move |error| Error::Store {
        during: "opening the database",
        reason: format!("{}: {error}", path.display()),
        temporary: is_temporary(&error),
        source: Some(error.into()),
    }
}

/// A row that cannot be what was written.
pub(super) fn corrupt<E: Display>(during: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Corrupt { during, reason: error.to_string() }
}

/// Whether the same call may succeed later. <https://www.sqlite.org/rescode.html>
pub(super) fn is_temporary(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(said) => {
            // BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL; the rest of the number says more.
            let code = said.code().and_then(|code| code.parse::<i32>().ok());
            matches!(code.map(|code| code & 0xff), Some(5 | 6 | 7 | 9 | 10 | 13))
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => true,
        _ => false,
    }
}
