//! The registry of this process's waiters: it knows the queue of each key that they wait for, and
//! wakes those that may claim.

pub(super) mod handle;
mod key_view;
mod waiter;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use key_view::EntryChange;
use key_view::{KeyView, WaiterStatus};
use parking_lot::Mutex;
use tokio::sync::Notify;
pub(super) use waiter::GrantInTransit;
use waiter::LocalWaiter;

use super::names::Part;
use super::record::{KeyState, Requester};
use crate::rules::Id;
use crate::{Fence, Key, Moment};

#[derive(Default)]
pub(super) struct WaiterRegistry {
    inner: Mutex<Inner>,
    /// Notified when a key is to be watched, or no longer.
    pub(super) keys_changed: Notify,
    /// Notified when a poll found a change that the watch stream should have reported.
    pub(super) stream_stalled: Notify,
    /// Whether the stream has reported anything since the last poll.
    stream_active: AtomicBool,
    /// Whether any key is tracked.
    busy: tokio::sync::watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    keys: HashMap<Key, KeyQueue>,
    /// By watch id.
    watches: HashMap<i64, Key>,
    /// Watches to cancel.
    unneeded: Vec<i64>,
    last_watch: i64,
}

/// A key that this process waits for.
#[derive(Default)]
struct KeyQueue {
    waiters: HashMap<Id, Arc<LocalWaiter>>,
    view: KeyView,
    watch: Option<i64>,
    /// Whether it had no waiters at the last check; at the next one it is dropped.
    was_empty: bool,
}

/// Waiters whose tasks sleep for too long.
pub(super) struct Overdue {
    /// They may claim, and are to be taken out of the queue.
    pub(super) turns: Vec<Arc<Requester>>,
    /// They were delivered a grant, which is to be returned.
    pub(super) grants: Vec<UnclaimedGrant>,
}

/// A delivered grant that its waiter has not taken in time.
pub(super) struct UnclaimedGrant {
    pub(super) fence: Fence,
    waiter: Arc<LocalWaiter>,
}

impl UnclaimedGrant {
    pub(super) fn requester(&self) -> &Requester {
        &self.waiter.requester
    }

    /// It was returned: its waiter may make a new request.
    pub(super) fn returned(self) {
        self.waiter.returned();
    }
}

impl WaiterRegistry {
    /// The next waiter for a key that a writer holds, if it is a writer of this process. Until the
    /// returned value is dropped, the waiter makes no request of its own.
    pub(super) fn next_writer(&self, key: &Key) -> Option<GrantInTransit> {
        let inner = self.inner.lock();
        let queue = inner.keys.get(key)?;
        let (position, id) = queue.view.next_writer()?;
        GrantInTransit::start(queue.waiters.get(&id)?, position)
    }

    /// Whether this process waits for a key, or did a moment ago.
    pub(super) fn tracks(&self, key: &Key) -> bool {
        self.inner.lock().keys.contains_key(key)
    }

    /// The waiter at this position got the key as the first of the queue.
    pub(super) fn mark_served(&self, key: &Key, position: i64) {
        if let Some(queue) = self.inner.lock().keys.get_mut(key) {
            queue.view.mark_served(position);
        }
    }

    /// Whether every change of this key is reported here.
    pub(super) fn is_live(&self, key: &Key) -> bool {
        self.inner.lock().keys.get(key).is_some_and(|queue| queue.view.is_live())
    }

    /// Whether this key is known to have waiters, of any process.
    pub(super) fn has_waiters(&self, key: &Key) -> bool {
        self.inner.lock().keys.get(key).is_some_and(|queue| queue.view.has_waiters())
    }

    /// Whether this waiter is registered.
    pub(super) fn is_registered(&self, key: &Key, id: Id) -> bool {
        self.inner.lock().keys.get(key).is_some_and(|queue| queue.waiters.contains_key(&id))
    }

    /// The keys that this process waits for.
    pub(super) fn waited_keys(&self) -> Vec<Key> {
        let inner = self.inner.lock();
        let waited = inner.keys.iter().filter(|(_, queue)| !queue.waiters.is_empty());
        waited.map(|(key, _)| key.clone()).collect()
    }

    /// Completes when a key is tracked.
    pub(super) async fn until_busy(&self) {
        // Cannot fail: the sender is ours.
        let _ = self.busy.subscribe().wait_for(|busy| *busy).await;
    }

    /// Whether no key is tracked.
    pub(super) fn is_idle(&self) -> bool {
        self.inner.lock().keys.is_empty()
    }

    /// A key without a watch, and the id that its watch shall have.
    pub(super) fn next_watch(&self) -> Option<(i64, Key)> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (key, queue) = inner.keys.iter_mut().find(|(_, queue)| queue.watch.is_none())?;
        inner.last_watch += 1;
        queue.watch = Some(inner.last_watch);
        inner.watches.insert(inner.last_watch, key.clone());
        Some((inner.last_watch, key.clone()))
    }

    /// A watch that is to be canceled.
    pub(super) fn next_unneeded_watch(&self) -> Option<i64> {
        self.inner.lock().unneeded.pop()
    }

    /// The stream was lost: all keys need a new watch.
    pub(super) fn reset_watches(&self) {
        let mut inner = self.inner.lock();
        inner.watches.clear();
        inner.unneeded.clear();
        for queue in inner.keys.values_mut() {
            queue.watch = None;
            queue.view.watch_ended();
        }
    }

    /// A watch reports the changes after this revision. Returns its key if that must be read, since
    /// something may have changed before.
    pub(super) fn on_watch_created(&self, watch: i64, revision: i64) -> Option<Key> {
        self.stream_active.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        let key = inner.watches.get(&watch)?.clone();
        let complete = inner.keys.get_mut(&key)?.view.watch_created(revision);
        (!complete).then_some(key)
    }

    /// The server has canceled a watch: the key needs a new one.
    pub(super) fn on_watch_canceled(&self, watch: i64) {
        let mut inner = self.inner.lock();
        if let Some(key) = inner.watches.remove(&watch)
            && let Some(queue) = inner.keys.get_mut(&key)
            && queue.watch == Some(watch)
        {
            queue.watch = None;
            queue.view.watch_ended();
            self.keys_changed.notify_one();
        }
    }

    /// Applies the changes that a watch has reported.
    pub(super) fn on_changes(&self, watch: i64, changes: &[EntryChange], now: Moment) {
        self.stream_active.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if let Some(queue) = inner.watches.get(&watch).and_then(|key| inner.keys.get_mut(key)) {
            queue.view.apply_changes(changes);
            queue.update_turns(now);
            for change in changes.iter().filter(|change| change.part == Part::Wait) {
                if change.created.is_none()
                    && let Some(waiter) = queue.waiters.get(&change.id)
                {
                    waiter.wake();
                }
            }
        }
    }

    /// Applies a read of a key; returns whether it changed anything.
    pub(super) fn on_read(&self, key: &Key, seen: &KeyState, now: Moment) -> bool {
        let mut inner = self.inner.lock();
        let Some(queue) = inner.keys.get_mut(key) else { return false };
        let changed = queue.view.apply_read(seen);
        if changed {
            queue.update_turns(now);
            for (id, waiter) in &queue.waiters {
                if queue.view.status(*id, waiter.queued_at()) == WaiterStatus::NotQueued {
                    waiter.wake();
                }
            }
        }
        changed
    }

    /// Whether the stream has reported anything since the last call.
    pub(super) fn take_stream_activity(&self) -> bool {
        self.stream_active.swap(false, Ordering::AcqRel)
    }

    /// Drops the keys that had no waiters twice, and returns the waiters that sleep for too long.
    pub(super) fn collect_overdue(&self, now: Moment) -> Overdue {
        let mut inner = self.inner.lock();
        let Inner { keys, watches, unneeded, .. } = &mut *inner;
        let mut dropped = false;
        keys.retain(|_, queue| {
            let stays = !queue.waiters.is_empty() || !std::mem::replace(&mut queue.was_empty, true);
            if !stays && let Some(watch) = queue.watch {
                watches.remove(&watch);
                unneeded.push(watch);
                dropped = true;
            }
            stays
        });
        let waiters = || keys.values().flat_map(|queue| queue.waiters.values());
        let missed = waiters().filter(|waiter| waiter.missed_turn(now));
        let turns = missed.map(|waiter| waiter.requester.clone()).collect();
        let grants = waiters().filter_map(|waiter| {
            let fence = waiter.reclaim_unclaimed(now)?;
            Some(UnclaimedGrant { fence, waiter: waiter.clone() })
        });
        let overdue = Overdue { turns, grants: grants.collect() };
        if keys.is_empty() {
            self.busy.send_replace(false);
        }
        drop(inner);
        if dropped {
            self.keys_changed.notify_one();
        }
        overdue
    }
}

impl KeyQueue {
    /// Wakes the waiters that may claim.
    fn update_turns(&self, now: Moment) {
        let claimants = self.view.claimants();
        for (id, waiter) in &self.waiters {
            waiter.set_turn(claimants.contains(id), now);
        }
    }
}
