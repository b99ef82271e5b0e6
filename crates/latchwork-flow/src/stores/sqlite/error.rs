//! SQLite's errors as ours.

use latchwork_sql::sqlite::boot::OtherClock;
use latchwork_sql::{Fault, sqlite::explain};

use crate::{Error, TransitionId};

/// The store's name in messages.
pub(super) const NAME: &str = "sqlite";

/// Why a transaction failed; shared by all changes in it.
pub(super) type Failure = latchwork_sql::Error;

/// A failure, as the error of one change.
pub(super) fn shared(during: &'static str, failure: &Failure) -> Error {
    let message = failure.message.clone();
    match failure.fault {
        Fault::Temporary => Error::store_unavailable(NAME, during, message, None),
        Fault::Permanent => Error::store_backend(NAME, during, message, None),
    }
}

/// The thread that writes has ended.
pub(super) fn gone(during: &'static str) -> Error {
    Error::store_backend(NAME, during, "its thread has ended; open the database again", None)
}

/// An error of the driver.
pub(super) fn driver(during: &'static str, error: sqlx::Error) -> Error {
    sql(during, explain(error))
}

/// An error that has been told apart already.
pub(super) fn sql(during: &'static str, error: latchwork_sql::Error) -> Error {
    let source = error.source.map(|e| Box::new(e) as _);
    match error.fault {
        Fault::Temporary => Error::store_unavailable(NAME, during, error.message, source),
        Fault::Permanent => Error::store_backend(NAME, during, error.message, source),
    }
}

/// A run-lease that a clock of another time namespace has begun.
pub(super) fn other_clock(during: &'static str, id: TransitionId, error: OtherClock) -> Error {
    let reason = format!("the run-lease of the context {id} cannot be judged: {error}");
    Error::store_backend(NAME, during, reason, Some(Box::new(error)))
}
