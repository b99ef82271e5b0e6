//! Queue entries of this process that belong to no waiter any more.
//!
//! A requester that gets no answer may be gone when a member that was stopped executes its request
//! to join the queue. Such an entry would block everybody for as long as this process waits for
//! anything, since it is attached to the session of the process.

use std::collections::HashSet;

use crate::providers::etcd::record::KeyState;
use crate::providers::etcd::store::Store;
use crate::rules::Id;
use crate::{Key, Mode};

const DURING: &str = "waiting";

/// The orphaned entries that one poll has found.
#[derive(Default)]
pub(super) struct OrphanedWaiters(HashSet<Orphan>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Orphan {
    key: Key,
    mode: Mode,
    id: Id,
    position: i64,
}

impl OrphanedWaiters {
    /// Adds those among the entries of a key.
    pub(super) fn find(&mut self, store: &Store, key: &Key, seen: &KeyState) {
        // Attached to our session, and not registered: a waiter registers before it joins the queue.
        let orphaned = seen.waiters().filter(|entry| {
            store.session.is_current(entry.lease) && !store.waiters.is_registered(key, entry.id)
        });
        self.0.extend(orphaned.map(|entry| Orphan {
            key: key.clone(),
            mode: entry.mode,
            id: entry.id,
            position: entry.created,
        }));
    }

    /// Removes those that the previous poll has found, too: a requester that tries again after an
    /// outage keeps its position, and may not have come back at the first poll.
    pub(super) async fn remove(&self, previous: &OrphanedWaiters, store: &Store) {
        for Orphan { key, mode, id, position } in self.0.intersection(&previous.0) {
            if let Err(error) = store.remove_waiter(DURING, key, *mode, *id, *position).await {
                tracing::debug!(%key, %error, "an orphaned waiter was not removed");
            }
        }
    }
}
