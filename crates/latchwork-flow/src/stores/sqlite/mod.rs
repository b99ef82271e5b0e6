//! Contexts in an SQLite file, for the processes of one machine.
//!
//! # The mechanism
//!
//! A context is one row, and a change of it is: read the row, let [the rules](crate::store) decide,
//! and write it with one statement, if nobody has changed it meanwhile (`changes` counts them);
//! else from the beginning. So no process is ever in the middle of a change while it holds the
//! file, but for the moment of a statement, and one that is stopped hinders nobody.
//!
//! What is due is found by one index for each clock, which have no entry for contexts that wait for
//! nothing but a hand; a runner that finds nothing due has not written. What was found is claimed by
//! one statement, if it is still due then.
//!
//! # Its clock
//!
//! The machine's, which all processes that can open the file share. Run-leases and postponements are
//! judged by the boot clock, which nobody can set: see [`boot`]. After a reboot only the wall clock is
//! left. What a pause waits for (`wake_at`, a timeout) is a time of the wall clock.

mod boot;
mod error;
mod record;
mod schema;
mod store;

pub use store::SqliteContextStore;
