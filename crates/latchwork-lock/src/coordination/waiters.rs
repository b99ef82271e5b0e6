//! The registry of the waiters of this process, where the locks are in a database.
//!
//! A waiter registers before its first request, so that no wake-up is missed. It is woken by a
//! release in this process, by a notification of the backend, or by the provider's
//! [poller](super::polling), which reads the statuses of all registered waiters together.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use tokio::sync::Notify;

use super::grant_slot::{GrantSlot, SlotState};
use crate::rules::Id;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{AcquireRequest, Clock, Grant, Key, Mode, Moment};

/// The arrival number of a waiter that is not queued.
const NOT_QUEUED: u64 = u64::MAX;

/// The waiters of one provider.
#[derive(Default)]
pub struct WaiterRegistry {
    waiters: Mutex<HashMap<Id, Arc<RegisteredWaiter>>>,
    /// How many waiters have queued so far.
    arrivals: AtomicU64,
    poller: Notify,
    poller_is_idle: AtomicBool,
}

struct RegisteredWaiter {
    key: Key,
    wake: Notify,
    woken: AtomicBool,
    slot: GrantSlot,
    /// A caller of this process is about to grant it the key, and will wake it.
    grant_in_flight: AtomicBool,
    /// Arrival order among local waiters. Not set before the first request is answered, because
    /// most requests never wait.
    arrival: AtomicU64,
    /// The ttl of an exclusive request without owner and note.
    exclusive_ttl: Option<Duration>,
    /// Its grant is not released when it is not taken here: another process may have gone on with it.
    keeps: bool,
    /// When something ahead of it expires.
    due: Mutex<Moment>,
    poll_interval: Duration,
}

/// A waiter's registration. Dropped, it ends.
pub struct WaiterHandle {
    registry: Arc<WaiterRegistry>,
    id: Id,
    waiter: Arc<RegisteredWaiter>,
}

/// How one waiter stands in the backend.
#[derive(Clone, Debug)]
pub struct WaiterStatus<K> {
    /// The waiter.
    pub id: Id,
    /// Its key.
    pub key: K,
    /// Whether the key is reserved for it.
    pub granted: bool,
    /// Until something of its key expires; zero when there is no holder.
    pub left: Duration,
}

impl WaiterRegistry {
    /// Registers a waiter, before its first request.
    pub fn register(self: &Arc<Self>, request: &AcquireRequest, id: Id) -> WaiterHandle {
        let AcquireRequest { mode, owner, note, ttl, keep, .. } = request;
        let is_exclusive = *mode == Mode::Exclusive && owner.is_none() && note.is_none();
        let waiter = Arc::new(RegisteredWaiter {
            key: request.key.clone(),
            wake: Notify::new(),
            woken: AtomicBool::new(false),
            slot: GrantSlot::default(),
            grant_in_flight: AtomicBool::new(false),
            arrival: AtomicU64::new(NOT_QUEUED),
            exclusive_ttl: is_exclusive.then_some(*ttl),
            keeps: !keep.is_zero(),
            due: Mutex::new(Moment::NEVER),
            poll_interval: request.retry_interval,
        });
        self.waiters.lock().insert(id, waiter.clone());
        WaiterHandle { registry: self.clone(), id, waiter }
    }

    /// A request was answered: the waiter is in the backend's queue.
    pub fn mark_queued(&self, id: Id) {
        if let Some(waiter) = self.waiters.lock().get(&id) {
            waiter.slot.mark_waiting();
            if !waiter.is_queued() {
                let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
                waiter.arrival.store(arrival, Ordering::Release);
            }
        }
    }

    /// A caller of this process is about to grant the key to this waiter, or could not. Meanwhile
    /// the backend's queue may no longer have it, which is no reason for it to send a request.
    pub fn set_grant_in_flight(&self, id: Id, in_flight: bool) {
        if let Some(waiter) = self.waiters.lock().get(&id) {
            waiter.grant_in_flight.store(in_flight, Ordering::Release);
        }
    }

    /// Gives a lease to a waiter. If that is gone, the release that it left behind ends the lease.
    pub fn deliver_grant(&self, id: Id, grant: Grant, now: Moment) {
        let Some(waiter) = self.waiters.lock().get(&id).cloned() else { return };
        waiter.slot.put(grant, now);
        waiter.grant_in_flight.store(false, Ordering::Release);
        waiter.wake();
    }

    /// Removes the grants that their waiters have not taken for so long: they are to be released.
    pub fn reclaim_unclaimed(&self, now: Moment, patience: Duration) -> Vec<(Key, Id)> {
        let waiters = self.waiters.lock();
        let is_unclaimed =
            |waiter: &RegisteredWaiter| !waiter.keeps && waiter.slot.reclaim(now, patience);
        let unclaimed = waiters.iter().filter(|(_, waiter)| is_unclaimed(waiter));
        unclaimed.map(|(id, waiter)| (waiter.key.clone(), *id)).collect()
    }

    /// Such a lease has been released: its waiter may send a request.
    pub fn mark_reclaimed(&self, id: Id) {
        if let Some(waiter) = self.waiters.lock().get(&id) {
            waiter.slot.mark_reclaimed();
            waiter.wake();
        }
    }

    /// Wakes a waiter, if it is one of this process.
    pub fn wake(&self, id: Id) {
        if let Some(waiter) = self.waiters.lock().get(&id) {
            waiter.wake();
        }
    }

    /// Stores when something ahead of a waiter expires, if it is one of this process.
    pub fn set_due(&self, id: Id, due: Moment) {
        if let Some(waiter) = self.waiters.lock().get(&id) {
            waiter.set_due(due);
        }
    }

    /// Applies the statuses that the backend reported for the waiters of this process, in the order
    /// of its queues. `requested` are the waiters that were queued before the statuses were read:
    /// those of them that have no status are no longer queued, and are woken.
    pub fn apply_statuses<K: Eq + Hash>(
        &self,
        statuses: &[WaiterStatus<K>],
        requested: &[Id],
        now: Moment,
    ) {
        let mut keys = HashSet::new();
        let mut reported = HashSet::new();
        let waiters = self.waiters.lock();
        for status in statuses {
            reported.insert(status.id);
            let Some(waiter) = waiters.get(&status.id) else { continue };
            if status.granted {
                waiter.wake();
            } else if keys.insert(&status.key) {
                // Only the first waiter of a key sends a request when something expires.
                waiter.set_due(now.after(status.left));
            }
        }
        for id in requested.iter().filter(|id| !reported.contains(id)) {
            if let Some(waiter) = waiters.get(id)
                && !waiter.grant_in_flight.load(Ordering::Acquire)
            {
                waiter.wake();
            }
        }
    }

    /// The waiters that are queued.
    pub fn waiting_ids(&self) -> Vec<Id> {
        let waiters = self.waiters.lock();
        waiters.iter().filter(|(_, waiter)| waiter.is_queued()).map(|(id, _)| *id).collect()
    }

    /// The queued waiters of a key.
    pub fn waiters_of(&self, key: &Key) -> Vec<Id> {
        let waiters = self.waiters.lock();
        let of_key = waiters.iter().filter(|(_, waiter)| waiter.is_queued() && waiter.key == *key);
        of_key.map(|(id, _)| *id).collect()
    }

    /// Whether there is no waiter, queued or not.
    pub fn is_empty(&self) -> bool {
        self.waiters.lock().is_empty()
    }

    /// Whether this one is registered, queued or not.
    pub fn is_registered(&self, id: Id) -> bool {
        self.waiters.lock().contains_key(&id)
    }

    /// Wakes the queued waiters of a key that the backend's queue does not have any more.
    pub fn wake_unqueued(&self, key: &Key, queue: &[Id]) {
        let waiters = self.waiters.lock();
        let of_key = waiters.iter().filter(|(_, waiter)| waiter.is_queued() && waiter.key == *key);
        of_key.filter(|(id, _)| !queue.contains(id)).for_each(|(_, waiter)| waiter.wake());
    }

    /// Wakes all waiters; they send their requests again.
    pub fn wake_all(&self) {
        self.waiters.lock().values().for_each(|waiter| waiter.wake());
    }

    /// Whether this one is registered and queued.
    pub fn is_waiting(&self, id: Id) -> bool {
        self.waiters.lock().get(&id).is_some_and(|waiter| waiter.is_queued())
    }

    /// The local waiter that queued first for the key, and its ttl; none where that is not an
    /// exclusive request without owner and note.
    pub fn next_exclusive(&self, key: &Key) -> Option<(Id, Duration)> {
        let waiters = self.waiters.lock();
        let queued = waiters.iter().filter(|(_, waiter)| waiter.is_queued() && waiter.key == *key);
        let (id, waiter) = queued.min_by_key(|(_, it)| it.arrival.load(Ordering::Acquire))?;
        Some((*id, waiter.exclusive_ttl?))
    }

    /// Whether a waiter of this process is queued for the key.
    pub fn has_waiters(&self, key: &Key) -> bool {
        self.waiters.lock().values().any(|waiter| waiter.is_queued() && waiter.key == *key)
    }

    /// The shortest poll interval of the queued waiters; none when there are none.
    pub fn poll_interval(&self) -> Option<Duration> {
        let waiters = self.waiters.lock();
        waiters.values().filter(|it| it.is_queued()).map(|it| it.poll_interval).min()
    }

    /// Wakes the poller, if it sleeps because there was no waiter.
    pub fn wake_idle_poller(&self) {
        if self.poller_is_idle.swap(false, Ordering::AcqRel) {
            self.poller.notify_one();
        }
    }

    /// Makes the poller read the statuses now: a notification may have been missed.
    pub fn wake_poller(&self) {
        self.poller.notify_one();
    }

    /// For the poller: the poll interval, or none when there is no waiter and it may sleep until
    /// [`poller_woken`](Self::poller_woken) returns.
    pub fn begin_pause(&self) -> Option<Duration> {
        // Store the flag before reading the waiters, so that a waiter which queues concurrently is
        // either seen here or sees the flag and wakes the poller.
        self.poller_is_idle.store(true, Ordering::Release);
        let interval = self.poll_interval();
        if interval.is_some() {
            self.end_pause();
        }
        interval
    }

    /// For the poller: it reads the statuses now.
    pub fn end_pause(&self) {
        self.poller_is_idle.store(false, Ordering::Release);
    }

    /// For the poller: ends when it was woken.
    ///
    /// Cancel safe.
    pub async fn poller_woken(&self) {
        self.poller.notified().await;
    }
}

impl WaiterHandle {
    /// The lease that was delivered to it; none when it should send a request.
    ///
    /// Cancel safe: a delivered lease that is not taken is reclaimed.
    pub async fn take_grant(&self) -> Option<Grant> {
        loop {
            match self.waiter.slot.take() {
                SlotState::Granted(grant) => return Some(grant),
                SlotState::Empty => return None,
                SlotState::Reclaiming => self.waiter.wake.notified().await,
            }
        }
    }

    /// Stores when something ahead of it expires.
    pub fn set_due(&self, due: Moment) {
        *self.waiter.due.lock() = due;
    }

    /// Ends when the waiter was woken or something ahead of it expires, at the latest at the
    /// deadline.
    ///
    /// Cancel safe.
    pub async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
        while !self.waiter.woken.swap(false, Ordering::AcqRel) {
            let until = deadline.min(*self.waiter.due.lock());
            if clock.now() >= until {
                return;
            }
            let woken = std::pin::pin!(self.waiter.wake.notified());
            if until == Moment::NEVER {
                woken.await;
            } else {
                select(woken, clock.sleep_until(until)).await;
            }
        }
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        let mut waiters = self.registry.waiters.lock();
        // A later request with the same token may have registered anew.
        if waiters.get(&self.id).is_some_and(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            waiters.remove(&self.id);
        }
    }
}

impl RegisteredWaiter {
    fn is_queued(&self) -> bool {
        self.arrival.load(Ordering::Acquire) != NOT_QUEUED
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn set_due(&self, due: Moment) {
        *self.due.lock() = due;
        self.wake.notify_one();
    }
}
