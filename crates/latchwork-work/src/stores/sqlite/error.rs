//! The driver's errors as ours.

use latchwork_sql::Fault;
use latchwork_sql::sqlite::explain;

use crate::{Error, ErrorKind};

/// The store's name in messages.
pub(super) const NAME: &str = "sqlite";

/// An error of the driver.
pub(super) fn driver(error: sqlx::Error) -> Error {
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
