//! Locks between the processes of one Linux machine, in a directory.
//!
//! # The mechanism
//!
//! `DIR/keys/NAME.json` says who holds a key and who waits for it, for people too. It exists only
//! while somebody does. `DIR/shards/00` to `3f` are what is `flock`ed: only around one edit of a
//! record, never for the length of a lease, because a process that was stopped must lose its lease.
//! They also keep the last fence, so that nothing need remain of a key.
//!
//! A record is written aside and renamed: a process that is killed at any instant leaves the old one or
//! the new one, and readers need no lock. Only what keeps fences growing is synced ([`shard`]);
//! `DIR/boot` says why records need not be: it names the boot in which the directory was last looked
//! through, and what an earlier boot left holds nothing.
//!
//! # What ends a lease
//!
//! Its release, its ttl on the boot clock, a reboot, and the death of the process that took it,
//! which waiters notice at once. A lease that was handed over outlives its process. A process of
//! another pid namespace (a container) cannot be seen, so there only the ttl counts.
//!
//! Processes of a time namespace with an offset have a boot clock of their own, by which the leases
//! of others cannot be judged. A record names its clock, and one of another clock of this boot is
//! refused, whatever is asked of the key, until it is released there or broken.
//!
//! # Whose files they are
//!
//! All are private (`0700`, `0600`) and belong to the user that made them, which should be one. Root may lock
//! in another user's directory: what it makes there belongs to the directory's owner and group
//! ([`dir`] tells how that owner cannot abuse it). What may not be read is an error and never
//! "nothing is locked". A directory that was replaced under a process is an error, too.

mod acquire;
mod blocking;
mod boot;
mod config;
mod dir;
mod error;
mod name;
mod notify;
mod process;
mod provider;
mod record;
mod release;
mod shard;
mod store;
mod sweep;

pub(crate) use provider::connect;
pub use provider::{FileLockProvider, FileLockProviderBuilder};
