//! Locks between the processes of one machine, in an SQLite file.
//!
//! # The mechanism
//!
//! Holders, waiters and the last fences are rows. A change loads the rows of its key inside a
//! `BEGIN IMMEDIATE` transaction, lets the shared rules decide, and writes what differs. All changes
//! of a process go through one thread in the order in which they came; those that came together
//! share a transaction: one reading, one writing, and one sync of the disk. The thread runs SQLite
//! itself and needs no runtime, so nothing depends on how long the caller's lasts.
//!
//! Fences are kept for 64 shards of keys, so that nothing remains of a key that nobody uses.
//!
//! # Waiting
//!
//! A waiter is called by its own process at once, and has its lease already if it was one of this
//! process who made room for it (see `coordination::grant_slot`). Other processes' changes are looked for every
//! 5 ms (`PRAGMA data_version` on the writing connection, which its own commits do not move). One
//! statement a second says that the waiters of a process are alive; without it they are passed over
//! after eight seconds, or as soon as one of them has missed its turn, and removed later (see
//! `coordination/liveness.rs`).
//!
//! # What ends a lease
//!
//! Its release, and its ttl. Within one boot of the machine the boot clock judges, which nobody
//! can set; over a reboot the wall clock does, so a wall clock that was set back meanwhile makes a
//! lease last longer, and one that was set forward ends it early. All processes must share one time
//! namespace: a lease of another one is refused, whatever is asked of its key. The death of its process does not end a lease.
//!
//! # What can go wrong
//!
//! A process that is stopped in the very middle of a write keeps all others from writing until it
//! goes on: they answer "unavailable" after five seconds. A file that is removed while it is open
//! grants nothing any more to those who had it open.

mod acquire;
mod boot;
mod config;
mod error;
mod fence_gate;
mod handle;
mod jobs;
mod name;
mod notify;
mod provider;
mod record;
mod schema;
mod store;
mod sweep;
mod writer;

pub use fence_gate::SqliteFenceGate;
pub use provider::SqliteLockProvider;
