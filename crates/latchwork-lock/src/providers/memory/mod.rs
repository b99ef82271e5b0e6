//! Locks between the tasks and threads of one process.
//!
//! A key has an entry in one of 512 shards while it is held or waited for. A release wakes the next
//! waiter; one timer thread per store ends leases that expired with waiters behind them.

mod exclusive;
mod provider;
mod record;
mod requester;
mod shard;
mod store;
mod timer;

pub use provider::InMemoryLockProvider;
