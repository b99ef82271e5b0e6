//! Who waits in this process, and what for.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::store::View;
use crate::rules::Id;
use crate::{Key, Moment};

/// Only the [thread](super::watcher) has it. Whoever is called leaves it, and signs in again if it
/// then still has to wait; so nobody is left in it for ever.
#[derive(Default)]
pub(super) struct Desk {
    keys: HashMap<Key, Waited>,
}

struct Waited {
    seats: Vec<(Id, Arc<Notify>)>,
    due: Moment,
}

impl Desk {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.keys.values().map(|waited| waited.seats.len()).sum()
    }

    pub(super) fn join(&mut self, key: &Key, id: Id, notify: &Arc<Notify>) {
        let waited = self
            .keys
            .entry(key.clone())
            .or_insert_with(|| Waited { seats: Vec::new(), due: Moment::NEVER });
        waited.seats.retain(|(seated, _)| *seated != id);
        waited.seats.push((id, notify.clone()));
    }

    /// Calls those who are no longer in the queue: it is their turn, or they were dropped.
    pub(super) fn see(&mut self, key: &Key, view: &View) {
        let Some(waited) = self.keys.get_mut(key) else { return };
        waited.due = view.due;
        waited.seats.retain(|(id, notify)| {
            let queued = view.queue.contains(id);
            if !queued {
                notify.notify_one();
            }
            queued
        });
        if waited.seats.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Keys of which something has ended by itself.
    pub(super) fn due(&self, now: Moment) -> Vec<Key> {
        self.keys.iter().filter(|(_, w)| w.due <= now).map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.keys.keys().cloned().collect()
    }

    /// Calls everybody; they ask again.
    pub(super) fn call_all(&mut self) {
        for (_, waited) in self.keys.drain() {
            waited.seats.iter().for_each(|(_, notify)| notify.notify_one());
        }
    }
}
