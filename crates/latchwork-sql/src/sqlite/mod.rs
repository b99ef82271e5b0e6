//! SQLite: one file, shared by the processes of one machine.
//!
//! Write-ahead log, so that readers never wait for a writer; `BEGIN IMMEDIATE` for every write,
//! because a deferred transaction that turns into a writer fails with BUSY whatever the timeout;
//! `synchronous` FULL, because with NORMAL a power cut can take back what was already answered.

pub mod boot;

mod direct;
mod error;
mod migrate;
mod network;
mod open;
mod options;

pub use direct::Direct;
pub use error::{explain, explain_direct, fault, is_busy};
pub use migrate::migrate;
pub use open::{BEGIN, BUSY_TIMEOUT, Sqlite};
pub use options::{Options, Synchronous};
