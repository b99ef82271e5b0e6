//! Locks between machines, in an etcd cluster.
//!
//! # The layout
//!
//! Everybody who has to do with a key has one entry of its own in etcd, named after the key:
//!
//! ```text
//! <root><key>␟hold/exclusive/<id>      at most one
//! <root><key>␟hold/shared/<id>         beside others of its kind
//! <root><key>␟wait/exclusive/<id>      in the order of their creation
//! <root><key>␟wait/shared/<id>
//! ```
//!
//! `␟` is the byte 1F, which no key can have, so that `a` and `a/b` never mix and a listing is
//! sorted by key. The id is a hash of the token; who asked is in the value. What excludes whom is
//! thus a question about ranges of names, and etcd answers it inside the transaction that grants:
//! *nothing under `hold/`* for an exclusive lease, *nothing under `hold/exclusive/`* for a shared
//! one. No revision that a client has read is trusted for it, and no clock.
//!
//! An entry under `hold/` is created by the transaction that grants and by nothing else, and a
//! renewal only replaces it. So its creation revision is the fence: it grows with every grant,
//! take-over and hand-over, and etcd keeps it for us.
//!
//! # Time
//!
//! Entries hang on etcd's leases, which its leader ends by its own clock: they count in seconds,
//! are swept twice a second, and a new leader starts them anew, which may keep a dead holder for
//! one more ttl. Holders that came within the same second share a lease that is a second longer
//! than their ttl ([`lease`]), so that a grant costs one message and not two. All waiters of a
//! process hang on one short lease that the process renews: they go when it dies.
//!
//! # Waiting
//!
//! One watch stream for a process, with one watch for each key that it waits for. From it the
//! process knows the queue of the key ([`watch`]) and wakes only the waiter whose nearest
//! conflicting predecessor has gone. Why not a watch on each waiter's predecessor? It would begin
//! at each hand-over, in the past of a busy store, and etcd brings such a watch up to date only
//! ten times a second. What the stream tells is a hint: the transaction that claims decides. A
//! look every two seconds, for all waiters together, finds what a stream that is deaf has missed.
//!
//! Where a writer releases and the next in line is a writer of the same process, the transaction that
//! ends the one lease begins the other ([`hand_on`]). The transaction compares that the one is there and that the other has still
//! the place in which it was first: nobody can come before it meanwhile.
//!
//! The queue is the reservation (L5): a free key belongs to the first in line, since nobody
//! enters directly while somebody waits. Who does not claim within its window is taken out of the
//! queue: by its own process, where a task sleeps, and by the waiters' lease, where that is dead
//! or stopped. What was handed to a task that sleeps, its process gives back as soon.
//!
//! # Questions that come late
//!
//! A member that is stopped keeps what it was asked, and may carry it out when nobody asks any more.
//! A question whose answer was lost therefore keeps its lease of the server for itself, and who
//! releases ends that, too: what comes later finds no lease to hang a grant on ([`lease`]). A place
//! in the queue that came about so is cleared by the process on whose lease it hangs ([`ghosts`]).
//!
//! # Messages of many
//!
//! What comes while others are under way shares a message with its like, as one transaction with one for
//! each key in it ([`batch`]). Who asks alone sends its own message at once.
//!
//! # Threads
//!
//! Questions are asked on the caller's runtime where that has several threads, by a connection of
//! its own ([`connection`]); all else, and what serves several callers, on a runtime of ours.
//!
//! # Round trips
//!
//! | operation | round trips |
//! | --- | --- |
//! | take a free key | 1 or a share of one (and one for each new second, shared by all grants of that second) |
//! | give it back | 1 or a share of one; it also hands the key on within a process |
//! | renew | 1 (and the same) |
//! | be refused | 2: the second asks how long the holder has yet |
//! | join the queue | 2 (1 where this process knows that others wait) |
//! | claim | 1 (2 where a reader names an owner), none where it was handed on |
//! | resume, take over | 2 |
//! | wait | none; the process renews its waiters once a second and looks every two |

mod batch;
mod call;
mod compare;
mod config;
mod connection;
mod error;
mod ghosts;
mod hand_on;
mod inspect;
mod lease;
mod presence;
mod provider;
mod record;
mod release;
mod store;
mod transaction;
mod view;
mod wait;
mod watch;
mod watcher;

pub use provider::EtcdLockProvider;
