//! Contexts in an SQLite file, for the processes of one machine.
//!
//! # The mechanism
//!
//! A context is one row, and a change of it is: read the row, let [the rules](crate::store) decide,
//! and write it, inside one transaction. One thread makes the changes of a process, and those that
//! come at the same time share a transaction: see [`writer`]. A process that is stopped inside of
//! one, which takes some milliseconds at most, hinders the others until it goes on or ends; they
//! report the database as unavailable after five seconds, and try again.
//!
//! What is due is found by one index for each clock, which have no entry for contexts that wait for
//! nothing but a hand; a runner that finds nothing due has not written. What was found is claimed by
//! one statement, if it is still due then. Reads have connections of their own, and wait for nobody.
//!
//! # Its clock
//!
//! The machine's, which all processes that can open the file share. Run-leases and postponements are
//! judged by the boot clock, which nobody can set: see [`boot`]. After a reboot only the wall clock is
//! left. What a pause waits for (`wake_at`, a timeout) is a time of the wall clock.

mod boot;
mod claim_due;
mod error;
mod record;
mod schema;
mod store;
mod writer;

pub use store::SqliteContextStore;
