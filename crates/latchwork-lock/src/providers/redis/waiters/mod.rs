//! The registry of this process's waiters: the server's notifications and responses reach them here.

pub(super) mod handle;
pub(super) mod waiter;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use waiter::LocalWaiter;

use super::record;
use crate::rules::Id;
use crate::{Clock, Fence, Grant, Key, Moment};

#[derive(Default)]
pub(super) struct WaiterRegistry {
    inner: Mutex<Inner>,
    /// Notified when the notifier has something to do before the time that it sleeps until.
    pub(super) changed: Notify,
}

struct Inner {
    waiters: HashMap<Id, Arc<LocalWaiter>>,
    /// The keys with waiters in the queue.
    keys: HashMap<Key, KeyQueue>,
    /// Whether notifications may have been missed.
    missed_notifications: bool,
    /// The time that the notifier sleeps until.
    wake_at: Moment,
}

/// The waiters of one key, and when the next lease of the key expires.
struct KeyQueue {
    expires_at: Moment,
    ids: HashSet<Id>,
}

/// A grant that its waiter's task has not taken in time.
pub(super) struct UnclaimedGrant {
    pub(super) fence: Fence,
    pub(super) waiter: Arc<LocalWaiter>,
}

impl WaiterRegistry {
    /// Whether this process waits for a key.
    pub(super) fn has_waiters(&self, key: &Key) -> bool {
        self.inner.lock().has_waiters(key)
    }

    /// Whether this process waits for no key.
    pub(super) fn is_empty(&self) -> bool {
        self.inner.lock().keys.is_empty()
    }

    /// All waiters in the queue, by key.
    pub(super) fn waiting_ids(&self) -> Vec<(Key, Vec<Id>)> {
        let inner = self.inner.lock();
        let ids = |queue: &KeyQueue| queue.ids.iter().copied().collect();
        inner.keys.iter().map(|(key, queue)| (key.clone(), ids(queue))).collect()
    }

    /// Applies a notification: an id and `:` if it is its turn, or an id and the microseconds until the
    /// next lease of its key expires. Returns a waiter that must claim its turn.
    pub(super) fn on_notification(&self, text: &str, now: Moment) -> Option<Arc<LocalWaiter>> {
        let (id, rest) = text.split_at_checked(record::ID_LENGTH)?;
        let id = record::decode_id(id.as_bytes())?;
        match rest.parse() {
            Err(_) => self.start_claim(id),
            Ok(left) => {
                let waiter = self.find(id)?;
                self.set_expiry(&waiter.key, now.after(Duration::from_micros(left)));
                None
            }
        }
    }

    /// Applies the statuses of some waiters. Returns those that must claim their turn.
    pub(super) fn apply_statuses(&self, ids: &[Id], statuses: &[u8]) -> Vec<Arc<LocalWaiter>> {
        let mut turns = Vec::new();
        for (id, status) in ids.iter().zip(statuses) {
            match status {
                b'w' => {}
                b'r' => turns.extend(self.start_claim(*id)),
                // The server does not know it, or the response to its claim was lost.
                _ => {
                    if let Some(waiter) = self.find(*id) {
                        waiter.ask_again();
                    }
                }
            }
        }
        turns
    }

    /// The waiter, which need not be awake, if its turn is to be claimed now.
    fn start_claim(&self, id: Id) -> Option<Arc<LocalWaiter>> {
        self.find(id).filter(|waiter| waiter.start_claim())
    }

    /// Delivers the grant of a release that was sent at this moment. A waiter that is gone has sent a
    /// release, and one that asks again is granted the same.
    pub(super) fn deliver_grant(&self, id: Id, grant: Grant, now: Moment) {
        if let Some(waiter) = self.find(id) {
            waiter.deliver_grant(grant, now);
        }
    }

    /// The grants that are to be returned, since others wait behind tasks that do not take them.
    /// Returned again at the next call, until [`grant_returned`](LocalWaiter::grant_returned).
    pub(super) fn reclaim_unclaimed(&self, now: Moment) -> Vec<UnclaimedGrant> {
        let waiters: Vec<_> = self.inner.lock().waiters.values().cloned().collect();
        let unclaimed = waiters.into_iter().filter_map(|waiter| {
            Some(UnclaimedGrant { fence: waiter.reclaim_unclaimed(now)?, waiter })
        });
        unclaimed.collect()
    }

    /// A waiter is in the queue.
    pub(super) fn mark_queued(
        &self,
        waiter: &Arc<LocalWaiter>,
        expires_in: Option<Duration>,
        clock: &dyn Clock,
    ) {
        let expires_at = expires_in.map_or(Moment::NEVER, |left| clock.now().after(left));
        {
            let mut inner = self.inner.lock();
            // It may be gone, or its token may have come back and registered another waiter.
            if !inner.is_current(waiter) {
                return;
            }
            let queue = inner.keys.entry(waiter.key.clone());
            let queue = queue.or_insert_with(|| KeyQueue { expires_at, ids: HashSet::new() });
            queue.ids.insert(waiter.id);
        }
        self.set_expiry(&waiter.key, expires_at);
    }

    /// Sets when the next lease of a key expires.
    pub(super) fn set_expiry(&self, key: &Key, expires_at: Moment) {
        let mut inner = self.inner.lock();
        let Some(queue) = inner.keys.get_mut(key) else { return };
        queue.expires_at = expires_at;
        if expires_at < inner.wake_at || inner.wake_at == Moment::NEVER {
            self.changed.notify_one();
        }
    }

    /// The keys whose next lease has expired, once.
    pub(super) fn take_expired(&self, now: Moment) -> Vec<Key> {
        let mut inner = self.inner.lock();
        let expired = inner.keys.iter_mut().filter(|(_, queue)| queue.expires_at <= now);
        let take = |(key, queue): (&Key, &mut KeyQueue)| {
            queue.expires_at = Moment::NEVER;
            key.clone()
        };
        expired.map(take).collect()
    }

    /// The time until which the notifier sleeps, at the latest the given one. An earlier one that is
    /// set afterwards [notifies](Self::changed).
    pub(super) fn next_wake(&self, latest: Moment) -> Moment {
        let mut inner = self.inner.lock();
        let first = inner.keys.values().map(|queue| queue.expires_at).min();
        inner.wake_at = first.map_or(Moment::NEVER, |first| first.min(latest));
        inner.wake_at
    }

    /// Notifications may have been missed.
    pub(super) fn mark_missed_notifications(&self) {
        self.inner.lock().missed_notifications = true;
        self.changed.notify_one();
    }

    pub(super) fn take_missed_notifications(&self) -> bool {
        std::mem::take(&mut self.inner.lock().missed_notifications)
    }

    fn find(&self, id: Id) -> Option<Arc<LocalWaiter>> {
        self.inner.lock().waiters.get(&id).cloned()
    }
}

impl Default for Inner {
    fn default() -> Self {
        Inner {
            waiters: HashMap::new(),
            keys: HashMap::new(),
            missed_notifications: false,
            wake_at: Moment::NEVER,
        }
    }
}

impl Inner {
    fn has_waiters(&self, key: &Key) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(key)
    }

    fn is_current(&self, waiter: &Arc<LocalWaiter>) -> bool {
        self.waiters.get(&waiter.id).is_some_and(|known| Arc::ptr_eq(known, waiter))
    }
}
