//! SQLite's errors as ours.

use latchwork_sql::Fault;
use latchwork_sql::sqlite::boot::OtherClock;

use crate::Error;

/// The provider's name in messages.
pub(super) const NAME: &str = "sqlite";

/// Why a transaction failed; shared by all of its jobs.
pub(super) type Failure = latchwork_sql::Error;

/// A failure, as the error of one job.
pub(super) fn of(during: &'static str, error: &latchwork_sql::Error) -> Error {
    match error.fault {
        Fault::Temporary => Error::unavailable(NAME, during, &*error.message, None),
        Fault::Permanent => Error::backend(NAME, during, &*error.message, None),
    }
}

/// A row that this program cannot have written.
pub(super) fn damaged(key: &str, what: impl std::fmt::Display) -> latchwork_sql::Error {
    latchwork_sql::Error::permanent(
        format!(
            "a row of the key {key:?} is damaged ({what}); nothing was changed, and the key counts \
             as taken; remove its rows from latchwork_lock_holder and latchwork_lock_waiter while \
             nobody uses it"
        ),
        None,
    )
}

/// A row that was written by a clock which is not ours.
pub(super) fn other_clock(key: &str, what: OtherClock) -> latchwork_sql::Error {
    latchwork_sql::Error::permanent(
        format!(
            "nobody here can tell whether the key {key:?} is still held: {what}; nothing was \
             changed, and the key counts as taken; if the processes there are gone, remove its rows \
             from latchwork_lock_holder and latchwork_lock_waiter"
        ),
        None,
    )
}

/// The thread behind the provider has ended.
pub(super) fn gone(during: &'static str) -> Error {
    Error::backend(NAME, during, "its thread has ended; open the database again", None)
}
