//! The driver's errors as ours.

use latchwork_sql::Fault;
use latchwork_sql::postgres::explain;

use crate::{Error, ErrorKind};

/// The store's name in messages.
pub(super) const NAME: &str = "postgres";

/// An error of the driver.
pub(super) fn driver(error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(|told| told.code().map(|code| code.to_string()));
    // Two transactions met in an order that neither could foresee, a row stayed locked, or another
    // transaction stored a unique value that ours could not see yet: nothing was changed, and the
    // same call decides anew by what is there then.
    if matches!(code.as_deref(), Some("40P01" | "40001" | "55P03" | "23505")) {
        return ErrorKind::Conflict { entity: "row" }.into();
    }
    sql(explain(error))
}

/// An error that has been told apart already.
pub(super) fn sql(error: latchwork_sql::Error) -> Error {
    let (store, message) = (NAME, error.message);
    let source = error.source.map(|e| Box::new(e) as _);
    match error.fault {
        Fault::Temporary => ErrorKind::StoreUnavailable { store, message, source }.into(),
        Fault::Permanent => ErrorKind::StoreBackend { store, message, source }.into(),
    }
}
