//! Contexts in an SQLite file, for the processes of one machine.
//!
//! # The mechanism
//!
//! A context is one row, and a change of it is: read the row, let [the rules](crate::store) decide,
//! and write it with one statement, if nobody has changed it meanwhile (`changes` counts them);
//! else from the beginning. So no process is ever in the middle of a change while it holds the
//! file, but for the moment of a statement, and one that is stopped hinders nobody.
//!
//! What is due is found by the index on (machine, due_at), which has no entry for contexts that wait
//! for nothing but a hand; a runner that finds nothing due has not written.
//!
//! # Its clock
//!
//! The machine's, which all processes that can open the file share. One that is set back makes
//! run-leases last longer; one that is set forward ends them early, and then the revision decides.

mod error;
mod record;
mod schema;
mod store;

pub use store::SqliteContextStore;
