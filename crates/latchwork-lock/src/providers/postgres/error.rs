//! The driver's errors as ours.

use latchwork_sql::{Fault, postgres::explain};

use crate::Error;

/// The provider's name in messages.
pub(super) const NAME: &str = "postgres";

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
         end of what `latchwork locks schema --at postgres: --role NAME` prints"
    );
    Error::backend(NAME, during, reason, None)
}

/// An error that several are told of.
pub(super) fn shared(during: &'static str, error: &latchwork_sql::Error) -> Error {
    let message = error.message.clone();
    match error.fault {
        Fault::Temporary => Error::unavailable(NAME, during, message, None),
        Fault::Permanent => Error::backend(NAME, during, message, None),
    }
}

/// An error that will not come again: what to avoid is known now.
pub(super) fn again(during: &'static str, error: sqlx::Error) -> Error {
    let reason = "a pooler lends the sessions, as pgbouncer does; that is known from now on";
    Error::unavailable(NAME, during, reason, Some(Box::new(error)))
}

/// The runtime in which something was done has ended in the middle of it.
pub(super) fn gone(during: &'static str) -> Error {
    Error::unavailable(NAME, during, "the runtime is shutting down", None)
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
