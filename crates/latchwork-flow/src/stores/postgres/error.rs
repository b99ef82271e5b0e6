//! The driver's errors as ours.

use latchwork_sql::Fault;
use latchwork_sql::postgres::explain;

use crate::Error;

/// The store's name in messages.
pub(super) const NAME: &str = "postgres";

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

/// An answer without the row that it always has.
pub(super) fn no_answer(during: &'static str) -> Error {
    Error::store_backend(NAME, during, "the server's answer was empty", None)
}
