//! SQLite's result codes, told apart. <https://www.sqlite.org/rescode.html>

use crate::{Error, Fault};

const FULL: &str = "the disk is full: no space is left for the database; free some";

const IOERR_SHMSIZE: i32 = 10 | 19 << 8;

/// What a driver's error means and what to do about it.
pub fn explain(error: sqlx::Error) -> Error {
    use Fault::{Permanent, Temporary};
    let (fault, message) = match code(&error) {
        Some(5 | 6) => (
            Temporary,
            "the database is locked by another writer, and stayed so for the whole timeout; \
             is a program stopped, or does one keep a transaction open?"
                .to_owned(),
        ),
        Some(13) => (Temporary, FULL.to_owned()),
        // The index of the write-ahead log cannot grow, which SQLite calls an error of the disk.
        Some(10) if extended_code(&error) == Some(IOERR_SHMSIZE) => (Temporary, FULL.to_owned()),
        Some(10) => (Temporary, format!("the disk failed: {}", message_of(&error))),
        Some(7 | 9) => (Temporary, format!("SQLite gave up: {}", message_of(&error))),
        Some(26) => (Permanent, "the file is not an SQLite database; name another one".to_owned()),
        Some(11) => (
            Permanent,
            "the database is damaged; stop its users and restore it, or move it away".to_owned(),
        ),
        Some(8) => (
            Permanent,
            "the database is read-only, or was moved away; let this user write the file and its \
             directory, and start again"
                .to_owned(),
        ),
        Some(14) => (
            Permanent,
            "the file cannot be opened; its directory must exist, and this user must be able to \
             write in it"
                .to_owned(),
        ),
        Some(3 | 23) => (Permanent, "this user may not use the file; check its rights".to_owned()),
        Some(_) => (Permanent, message_of(&error)),
        None => (fault(&error), message_of(&error)),
    };
    Error { fault, message, source: Some(error) }
}

/// The same for a [direct](super::Direct) connection.
pub fn explain_direct(error: rusqlite::Error) -> Error {
    // The case that sqlx has for errors of others.
    explain(sqlx::Error::AnyDriverError(Box::new(error)))
}

/// Whether the same call may succeed later.
pub fn fault(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Database(_) | sqlx::Error::AnyDriverError(_) => match code(error) {
            // BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, FULL
            Some(5 | 6 | 7 | 9 | 10 | 13) => Fault::Temporary,
            _ => Fault::Permanent,
        },
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Fault::Temporary,
        _ => Fault::Permanent,
    }
}

/// Whether another writer was in the way, and nothing else is wrong.
pub fn is_busy(error: &Error) -> bool {
    error.source.as_ref().and_then(code).is_some_and(|code| code == 5)
}

/// The primary result code: the lower byte of the extended one.
fn code(error: &sqlx::Error) -> Option<i32> {
    Some(extended_code(error)? & 0xff)
}

fn extended_code(error: &sqlx::Error) -> Option<i32> {
    match error {
        sqlx::Error::AnyDriverError(error) => {
            Some(error.downcast_ref::<rusqlite::Error>()?.sqlite_error()?.extended_code)
        }
        _ => error.as_database_error()?.code()?.parse().ok(),
    }
}

fn message_of(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::AnyDriverError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
