//! Locks between machines, in an etcd cluster.
//!
//! # Layout of the data
//!
//! Each holder and each waiter of a key has one entry in etcd, named after the key:
//!
//! ```text
//! <root><key>␟hold/exclusive/<id>      at most one
//! <root><key>␟hold/shared/<id>         beside others of its kind
//! <root><key>␟wait/exclusive/<id>      in the order of their creation
//! <root><key>␟wait/shared/<id>
//! ```
//!
//! `␟` is the byte 1F, which no key can contain, so that `a` and `a/b` never mix and a listing is
//! sorted by key. The id is a hash of the token; the value describes the requester. Whether a grant
//! conflicts is thus a question about ranges of names, and etcd answers it inside the transaction
//! that grants: *nothing under `hold/`* for an exclusive lease, *nothing under `hold/exclusive/`* for
//! a shared one. It depends on no revision that a client has read, and on no clock.
//!
//! An entry under `hold/` is created only by the transaction that grants; a renewal replaces its
//! value. So its creation revision is the fence: it grows with every grant, take-over and hand-over,
//! and etcd maintains it.
//!
//! # Time
//!
//! Entries are attached to etcd's leases, which its leader ends by its own clock: they count in
//! seconds, are swept twice a second, and a new leader restarts them, which may keep a dead holder
//! for one more ttl. Grants of the same second share a lease that is a second longer than their ttl
//! ([`leases`]), so that a grant costs one request and not two. All waiters of a process are attached
//! to one short lease that the process renews ([`session`]): they expire when it dies.
//!
//! # Waiting
//!
//! A process has one watch stream, with one watch for each key that it waits for ([`notify`]). From
//! it the process knows the queue of the key ([`waiters`]) and wakes only the waiter that has become
//! first. A watch on each waiter's predecessor would have to start at each hand-over, in the past of
//! a busy store, and etcd brings such a watch up to date only ten times a second. Events are hints:
//! the transaction that claims decides. A poll every two seconds, for all waiters together, finds
//! what a stalled stream has missed.
//!
//! If a writer releases and the next waiter is a writer of the same process, the transaction that ends
//! the one lease starts the other ([`store::release`]). It compares that the holder exists and that
//! the waiter still has the position in which it was first: nobody can have come before it.
//!
//! The queue is the reservation (L5): a free key belongs to the first waiter, since nobody is granted
//! a key directly while others wait. A waiter that does not claim within its window is removed: by
//! its own process if its task sleeps, and with the session if the process is dead or stopped. A
//! grant that was delivered to a task that sleeps is returned by its process after the same time.
//!
//! # Requests that are executed late
//!
//! A member that is stopped keeps the requests that it has received, and may execute them when their
//! senders are gone. So a request whose answer was lost keeps its server lease for itself, and the
//! release of its requester revokes that, too: a late grant finds no lease to attach an entry to
//! ([`leases`]). A queue entry that came about in this way is removed by the process to whose session
//! it is attached ([`notify`]).
//!
//! # Batches
//!
//! Operations that come while others are in flight share a message, as one transaction with an inner
//! transaction for each key ([`cluster::batch`]). A single operation is sent at once.
//!
//! # Threads
//!
//! Requests run on the caller's runtime if that has several threads, on a connection of its own
//! ([`cluster`]); everything else, and what serves several callers, on a runtime of the providers
//! ([`background`]).
//!
//! # Round trips
//!
//! | operation | round trips |
//! | --- | --- |
//! | acquire a free key | 1 or a share of one (and one for each new second, shared by all grants of that second) |
//! | release | 1 or a share of one; it also grants the key to the next waiter within a process |
//! | renew | 1 (and the same) |
//! | be refused | 2: the second reads the time that the holder has left |
//! | join the queue | 2 (1 if this process knows that others wait) |
//! | claim | 1 (2 if a reader names an owner), and one that renews the server lease of the first attempt; none if the release granted it |
//! | resume, take over | 2 |
//! | wait | none; the process renews its session once a second and polls every two |
//!
//! # Files
//!
//! Each file imports only from those before it: `error`, `names`, `record`, `config`; `background`,
//! `cluster`, `lease`, `leases`, `session`; `waiters`, `store`, `notify`; `acquire`, `provider`, `transaction`.

mod acquire;
mod background;
mod cluster;
mod config;
mod error;
mod lease;
mod leases;
mod names;
mod notify;
mod provider;
mod record;
mod session;
mod store;
mod transaction;
mod waiters;

pub use provider::EtcdLockProvider;
