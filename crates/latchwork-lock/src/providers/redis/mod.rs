//! Locks between machines, in a Redis server.
//!
//! # One script
//!
//! Every operation is decided by one Lua script inside the server (`scripts/locks.lua`, whose head
//! describes the layouts): it compares tokens, reads the server's clock and grants a key to the next
//! waiter in the same step. It says in Lua what `rules.rs` says in Rust, and a test compares the two.
//!
//! A key with one exclusive holder and no waiters is one string with the lease's own ttl. Most leases
//! start and end so, and it is worth half of the throughput. A shared holder or a waiter moves the key
//! into the general layout: the string has all holders behind a mark, so that `SET NX` fails and no
//! request gets past the queue; the queue is a list of ids, and a hash has the record of each of them.
//! A value in neither layout is refused, and never overwritten.
//!
//! A fence is drawn by a grant: the larger of the last one plus one and the server's clock in
//! microseconds, so that fences grow even if a restart has lost everything. All keys share one
//! sequence, so that nothing else is kept for keys that are not in use.
//!
//! Redis Cluster is rejected: the channels and heartbeats of a process would be on other nodes than
//! the lock.
//!
//! # Messages
//!
//! Commands are sent on [pipelines](pipeline), which keep their order. With few callers each command
//! is a message of its own; with many, those that come together share a message, which is one call of
//! the script. Releases come first in a message: the script ends those of single keys with one `DEL`,
//! and a request of the same message can have the key. First requests follow, whose stored value is
//! complete but for the fence. The tasks that a message answers are woken together.
//!
//! A lost connection is opened again and the message is repeated once: every command may be executed
//! twice, since it names the id of its token.
//!
//! # Waiting
//!
//! A release grants the key to the next waiter. A waiter of the same process gets its grant with the
//! response to the release, before the task that released is woken, and such a release is sent by the
//! task itself: each task between two grants is time in which nobody uses the key.
//!
//! A waiter of another process gets a reservation (L5) and a notification on the channel of its
//! process, which claims the turn at once; the lease is used when that is confirmed, with its whole
//! ttl.
//!
//! A notification may be lost, so each process [refreshes](notify) all its waiters once a second. The
//! refresh is also the heartbeat of the process, and grants a key whose lease has expired. A process
//! that let a turn pass without a heartbeat since counts as dead: its other waiters are removed without
//! a window of their own.
//!
//! A grant that a waiter's task does not take within a second is returned, by its fence. Until that is
//! confirmed the task makes no request, which would find a grant that is about to end.
//!
//! # What is not promised
//!
//! A server that restarts without its data, or a fail-over to a replica that has not received a grant,
//! lets another client in while the holder trusts its lease. The holder's fence is lower than the new
//! one: guard what must not happen twice with it.
//!
//! # Files
//!
//! Each file imports only from those before it: `error`, `record`, `scripts`; `config`, `connection`, `check`;
//! `pipeline`, `waiters`, `store`; `notify`, `acquire`, `provider`.

mod acquire;
mod check;
mod config;
mod connection;
mod error;
mod notify;
mod pipeline;
mod provider;
mod record;
mod scripts;
mod store;
mod waiters;

pub use provider::RedisLockProvider;
