//! Contexts in a PostgreSQL database, for the processes of many machines.
//!
//! # The mechanism
//!
//! A context is one row, and a change of it is: read the row with the server's time, let
//! [the rules](crate::store) decide, and write it with one statement, if nobody has changed it
//! meanwhile (`changes` counts them); else from the beginning. No transaction lasts longer than a
//! statement, so that a process that is stopped hinders nobody, a small pool serves many, and
//! pgbouncer in transaction mode can stand between.
//!
//! What is due is claimed by one statement, which passes over rows that another runner is claiming
//! (`SKIP LOCKED`): so runners get different ones and do not wait for each other. It finds them by
//! the index on (machine, due_at).
//!
//! All times are the server's `clock_timestamp()`.

mod config;
mod error;
mod record;
mod schema;
mod store;

pub use store::PostgresContextStore;
