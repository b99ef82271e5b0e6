//! Locks between machines, in a Redis server.
//!
//! # The mechanism
//!
//! Everything is decided by one Lua script inside the server (`locks.lua`, whose head draws the
//! layout): it compares tokens, reads the server's clock and hands a key on in the same step. A key
//! with one exclusive holder and nobody who waits is one string with the lease's own ttl; on
//! contention, or for shared leases, the script spreads it into sorted holders and a queue, and leaves
//! a mark in the string so that nobody gets past the queue. A writer that holds a contended key by itself
//! stands behind that mark, so that a key goes from writer to writer with few commands.
//!
//! A fence is the larger of the last one + 1 and the server's clock in microseconds, so that fences
//! grow even over a restart that forgot everything. It is drawn by a grant, or when one queues. Nothing is
//! kept of a key that nobody uses.
//!
//! # One message for many
//!
//! What this process asks for goes through a few [lanes](batch): while little is under way each
//! request is a message of its own, and what comes together after that shares one.
//!
//! # Waiting
//!
//! A release hands the key to the next in line. One of the same process has it with the answer, which is
//! seen to by the lane before whoever released is told. For one of another process it is a
//! reservation, told on that process's own channel, and claimed by it at once; the lease is used when that
//! is answered. What nobody takes up within a second is given back. A notice
//! may be lost, so each process also looks once a second at all its waiters together; the same look
//! says that the process lives, and at the end of a lease it is what hands the key on.
//!
//! # What it does not promise
//!
//! A server that restarts without its data, and a fail-over to a replica that had not heard of a grant,
//! let somebody else in while the holder believes in its lease. Its fence is lower than
//! the new one's: guard what must not happen twice with it.

mod batch;
mod claim;
mod config;
mod connection;
mod error;
mod provider;
mod pump;
mod record;
mod release;
mod scripts;
mod store;
mod tell;
mod wait;
mod watch;
mod watcher;

pub use provider::RedisLockProvider;
