//! Orders in an SQLite file, for the processes of one machine.
//!
//! An operation is one immediate transaction, or a savepoint in one that operations of a process
//! share ([`writer`]), so operations come one after another and no row can change under one. Its time is that of [`clock`]: one time line for all processes, which no setting
//! of the wall clock moves.

mod clock;
mod error;
mod notify;
mod query;
mod schema;
mod session;
mod statements;
mod store;
mod writer;

pub(crate) use session::SqliteSession;
pub(crate) use store::SqliteStore;
