//! Orders in a PostgreSQL database, for the processes of many machines.
//!
//! An operation is one short transaction under READ COMMITTED; `clock_timestamp()` at its beginning is
//! its time. Rows are locked in one order everywhere: an order, then its rows of what can be leased,
//! then items by id, then their leases, then limits by key. A claim locks rows of
//! `latchwork_work_ready` with `SKIP LOCKED` and never waits for another claim.

mod batches;
mod config;
mod error;
mod notify;
mod query;
mod schema;
mod scripts;
mod session;
mod statements;
mod store;

pub(crate) use batches::{ClaimRequest, SubmitRequest};
pub(crate) use scripts::{PlainSubmission, Slot, Wanted, submission_steps};
pub(crate) use session::PostgresSession;
pub(crate) use store::PostgresStore;
