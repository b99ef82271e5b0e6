//! How a waiter of this process is woken, where the truth is in a database: it signs in here, and is
//! called by whoever hands the key on in this process, or by the watcher of its provider.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::handed::{Found, Handed};
use crate::rules::Id;
use crate::{Clock, Grant, Key, Moment};

/// Where waiters sign in.
#[derive(Default)]
pub(crate) struct Desk {
    seats: Mutex<HashMap<Id, Arc<Call>>>,
    /// Rung when the first one comes, and when something may have been missed.
    pub(crate) bell: Notify,
    /// Whether the watcher sleeps until it is rung for.
    pub(crate) idle: AtomicBool,
}

struct Call {
    key: Key,
    bell: Notify,
    called: AtomicBool,
    handed: Handed,
    /// False while it asks for the first time: it may never have to wait.
    waits: AtomicBool,
    /// When something ahead runs out.
    due: Mutex<Moment>,
    tick: Duration,
}

/// A waiter's place at the desk.
pub(crate) struct Seat {
    desk: Arc<Desk>,
    id: Id,
    call: Arc<Call>,
}

/// How one waiter stands, as a look at the database shows it.
pub(crate) struct Standing<K> {
    pub(crate) id: Id,
    pub(crate) key: K,
    pub(crate) granted: bool,
    /// Until something of its key runs out; nothing when nobody holds it.
    pub(crate) left: Duration,
}

impl Desk {
    /// Signs a waiter in, before it asks, so that no call is missed.
    pub(crate) fn join(self: &Arc<Self>, key: &Key, id: Id, tick: Duration) -> Seat {
        let call = Arc::new(Call {
            key: key.clone(),
            bell: Notify::new(),
            called: AtomicBool::new(false),
            handed: Handed::default(),
            waits: AtomicBool::new(false),
            due: Mutex::new(Moment::NEVER),
            tick,
        });
        self.seats.lock().insert(id, call.clone());
        Seat { desk: self.clone(), id, call }
    }

    /// A question was answered: whoever asked stands in the queue.
    pub(crate) fn queued(&self, id: Id) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.handed.waits();
            call.waits.store(true, Ordering::Release);
        }
    }

    /// Hands a lease to a waiter. If that is gone, the release that it left behind ends the lease.
    pub(crate) fn deliver(&self, id: Id, grant: Grant, now: Moment) {
        let Some(call) = self.seats.lock().get(&id).cloned() else { return };
        call.handed.put(grant, now);
        call.wake();
    }

    /// Takes back the leases whose waiters have not looked for so long: they are to be released.
    pub(crate) fn take_back(&self, now: Moment, patience: Duration) -> Vec<(Key, Id)> {
        let seats = self.seats.lock();
        let unclaimed = seats.iter().filter(|(_, call)| call.handed.take_back(now, patience));
        unclaimed.map(|(id, call)| (call.key.clone(), *id)).collect()
    }

    /// Such a lease has been released: its waiter may ask anew.
    pub(crate) fn taken_back(&self, id: Id) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.handed.gone_back();
            call.wake();
        }
    }

    /// It is this one's turn, if it is one of ours.
    pub(crate) fn call(&self, id: Id) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.wake();
        }
    }

    /// When something runs out that stands before this one, if it is one of ours.
    pub(crate) fn set_due(&self, id: Id, due: Moment) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.set_due(due);
        }
    }

    /// How the waiters of this process stand, first in line first. Who is not named is no longer
    /// in the queue.
    pub(crate) fn update<K: Eq + Hash>(
        &self,
        standings: &[Standing<K>],
        asked: &[Id],
        now: Moment,
    ) {
        let mut seen = HashSet::new();
        let mut named = HashSet::new();
        let seats = self.seats.lock();
        for standing in standings {
            named.insert(standing.id);
            let Some(call) = seats.get(&standing.id) else { continue };
            if standing.granted {
                call.wake();
            } else if seen.insert(&standing.key) {
                // The first of ours looks after the key for all of ours.
                call.set_due(now.after(standing.left));
            }
        }
        // Only those who were there before the look: it cannot know of who came since.
        for id in asked.iter().filter(|id| !named.contains(id)) {
            if let Some(call) = seats.get(id) {
                call.wake();
            }
        }
    }

    /// Those who wait.
    pub(crate) fn seated(&self) -> Vec<Id> {
        let seats = self.seats.lock();
        seats.iter().filter(|seat| seat.1.waits()).map(|seat| *seat.0).collect()
    }

    /// Whether anybody here waits for the key.
    pub(crate) fn waits_for(&self, key: &Key) -> bool {
        self.seats.lock().values().any(|call| call.waits() && call.key == *key)
    }

    /// Rings for the watcher, if it sleeps.
    pub(crate) fn wake_watcher(&self) {
        if self.idle.swap(false, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The shortest tick that anybody asked for; none when nobody waits.
    pub(crate) fn tick(&self) -> Option<Duration> {
        let seats = self.seats.lock();
        seats.values().filter(|call| call.waits()).map(|call| call.tick).min()
    }
}

impl Seat {
    /// The lease that was handed to it, if any; else it goes and asks.
    pub(crate) async fn handed(&self) -> Option<Grant> {
        loop {
            match self.call.handed.look() {
                Found::Lease(grant) => return Some(grant),
                Found::Nothing => return None,
                Found::TooLate => self.call.bell.notified().await,
            }
        }
    }

    /// Says when something ahead runs out, as far as it was told.
    pub(crate) fn set_due(&self, due: Moment) {
        *self.call.due.lock() = due;
    }

    /// Ends when the waiter's place may have changed, at the latest at the deadline.
    pub(crate) async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
        while !self.call.called.swap(false, Ordering::AcqRel) {
            let until = deadline.min(*self.call.due.lock());
            if clock.now() >= until {
                return;
            }
            let told = std::pin::pin!(self.call.bell.notified());
            if until == Moment::NEVER {
                told.await;
            } else {
                select(told, clock.sleep_until(until)).await;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.desk.seats.lock();
        // The same token may have come back and taken a seat of its own.
        if seats.get(&self.id).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            seats.remove(&self.id);
        }
    }
}

impl Call {
    fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    fn wake(&self) {
        self.called.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    fn set_due(&self, due: Moment) {
        *self.due.lock() = due;
        self.bell.notify_one();
    }
}
