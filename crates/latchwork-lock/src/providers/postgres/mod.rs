//! Locks between machines, in a PostgreSQL database.
//!
//! # The mechanism
//!
//! `latchwork_lock` has a row for everybody who holds a key or waits for it, and none for a key
//! that nobody uses. A change of a key is one short transaction under an advisory lock of that
//! key: it reads the rows, decides by the [rules](crate::rules) that every provider shares, and
//! writes what became of them. No transaction and no connection lasts as long as a lease, so a
//! pool of any size serves any number of locks, also through pgbouncer in transaction mode.
//!
//! What most requests want is one function call in the server (taking a free key, queueing,
//! claiming, giving back, handing on from one writer to the next); requests of one process that come
//! while others are under way share a call and so a commit, and a runtime with several threads sends
//! its own (see `batches.rs`). Whatever is more than that is left to the rules. Grants are committed
//! synchronously; a message of nothing but releases without successor, or places in a queue, is
//! not: a crash may take those back, at the price of time.
//!
//! All times are the server's `clock_timestamp()`. Fences are of one sequence that begins at the
//! clock in microseconds and is drawn from under the key's lock: they grow, and nothing need be
//! kept of a key.
//!
//! # Waiting
//!
//! A release notifies the process of the next waiter, by a NOTIFY on that process's own
//! channel, and only if it is another process. One connection listens for all waiters
//! of a process. Where the next one is of the very process that releases, its lease begins
//! with the same call and needs no claim: see `coordination::grant_slot`. A notice may be lost, so each process also looks once a second at all its waiters
//! together; where nothing can be heard (pgbouncer), it looks at every tick. The same look says
//! that the process lives: the waiters of a dead one are passed over as soon as one of them has missed
//! its turn, or after some seconds, and removed later (see `coordination/liveness.rs`).

mod acquire;
mod batches;
mod config;
mod connections;
mod error;
mod fence_gate;
mod message;
mod notify;
mod open_requests;
mod provider;
mod record;
mod release;
mod schema;
mod scripts;
mod store;
mod transaction;

pub use fence_gate::PostgresFenceGate;
pub use provider::PostgresLockProvider;
pub use transaction::TransactionLock;
