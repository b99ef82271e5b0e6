//! The driver's errors as ours.

use latchwork_sql::{Fault, mysql::explain};
use sqlx::mysql::MySqlDatabaseError;

use crate::Error;

/// The provider's name in messages.
pub(super) const NAME: &str = "mysql";

/// An error of the driver.
pub(super) fn driver(during: &'static str, error: sqlx::Error) -> Error {
    sql(during, explain(error))
}

/// An error that has been told apart already.
pub(super) fn sql(during: &'static str, error: latchwork_sql::Error) -> Error {
    let source = error.source.map(|e| Box::new(e) as _);
    match error.fault {
        Fault::Temporary => Error::unavailable(NAME, during, error.message, source),
        Fault::Permanent => Error::backend(NAME, during, error.message, source),
    }
}

/// The user lacks rights.
pub(super) fn rights(during: &'static str, missing: &str) -> Error {
    let reason = format!(
        "the user lacks a right: {missing}; let the owner of the tables run the statements at the \
         end of what `latchwork locks schema --at mysql: --role NAME` prints"
    );
    Error::backend(NAME, during, reason, None)
}

/// Whether the server refused a statement because the user lacks a right to a table.
pub(super) fn is_right_missing(error: &sqlx::Error) -> bool {
    let told = error.as_database_error().and_then(|told| told.try_downcast_ref());
    told.is_some_and(|told: &MySqlDatabaseError| matches!(told.number(), 1142 | 1143))
}

/// A row that another program must have written.
pub(super) fn unreadable(during: &'static str, what: impl std::fmt::Display) -> Error {
    Error::backend(
        NAME,
        during,
        format!(
            "a row of latchwork_lock is not readable ({what}); nothing was changed; let all \
             processes that lock here run the same version"
        ),
        None,
    )
}
