//! Locks between machines, in a MariaDB or MySQL database.
//!
//! # The mechanism
//!
//! `latchwork_lock_key` has a row for each key, and in it the one holder that most keys have. A
//! change of a key is one short transaction under the lock of that row: it reads who holds and who
//! waits, decides by the [rules](crate::rules) that every provider shares, and writes what became of
//! them; other holders and waiters have rows in `latchwork_lock`. Where nobody waits, taking,
//! renewing and giving back are one statement each, on that one row. To queue behind a writer, and
//! to hand on from writer to writer within a process, is a whole transaction in one message, so that
//! the row is not locked for the way to a client. No transaction and no
//! connection lasts as long as a lease, so a pool of any size serves any number of locks.
//!
//! All times are the server's `UTC_TIMESTAMP(6)`. A fence is the larger of the last one of its key
//! plus one and the server's clock in microseconds: it grows although the clock may be set back, and
//! also after an old copy was restored. A key's row stays for some minutes after its last
//! use; when it goes, `latchwork_lock_floor` keeps its fence, and no row begins below that.
//!
//! `GET_LOCK` is not used: it is exclusive only, one name space for the whole server, and ends with a
//! connection.
//!
//! # Waiting
//!
//! There are no notices between processes. Within a process the task that releases a key begins the lease
//! of the next one with the same transaction and wakes it: it need not claim it, and if it does not
//! look the process gives the lease back (see `coordination::grant_slot`). For all others each process looks at its waiters together, in one statement: often
//! while one of them is the first in the queue and something has just changed, seldom otherwise. The
//! same look says that the process lives: the waiters of a dead one are passed over as soon as one of
//! them has missed its turn, or after some seconds, and removed later (see
//! `coordination/liveness.rs`).
//!
//! # Limits
//!
//! In a cluster with several writers (Galera) let all processes name the same node: each node
//! has its own clock, and a collision is told only at the commit.

mod acquire;
mod config;
mod error;
mod fence_gate;
mod notify;
mod provider;
mod record;
mod release;
mod schema;
mod scripts;
mod store;
mod sweep;
mod transaction;

pub use fence_gate::MySqlFenceGate;
pub use provider::MySqlLockProvider;
