//! How a waiter of this process is woken, where the truth is in a database: it signs in here, and is
//! called by whoever hands the key on in this process, or by the watcher of its provider.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::handed::{Found, Handed};
use crate::rules::Id;
use crate::{AcquireRequest, Clock, Grant, Key, Mode, Moment};

/// The turn of one that does not wait.
const NONE: u64 = u64::MAX;

/// Where waiters sign in.
#[derive(Default)]
pub(crate) struct Desk {
    seats: Mutex<HashMap<Id, Arc<Call>>>,
    /// How many have come to wait so far.
    turns: AtomicU64,
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
    /// Whether somebody here is about to hand it the key: it will be told.
    in_hand: AtomicBool,
    /// The how manieth it was to wait; none while it asks for the first time: it may never have to.
    turn: AtomicU64,
    /// The ttl of one that wants the key alone, and says nothing about itself.
    plain: Option<Duration>,
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
    pub(crate) fn join(self: &Arc<Self>, request: &AcquireRequest, id: Id) -> Seat {
        let AcquireRequest { mode, owner, note, ttl, .. } = request;
        let is_plain = *mode == Mode::Exclusive && owner.is_none() && note.is_none();
        let call = Arc::new(Call {
            key: request.key.clone(),
            bell: Notify::new(),
            called: AtomicBool::new(false),
            handed: Handed::default(),
            in_hand: AtomicBool::new(false),
            turn: AtomicU64::new(NONE),
            plain: is_plain.then_some(*ttl),
            due: Mutex::new(Moment::NEVER),
            tick: request.retry_interval,
        });
        self.seats.lock().insert(id, call.clone());
        Seat { desk: self.clone(), id, call }
    }

    /// A question was answered: whoever asked stands in the queue.
    pub(crate) fn queued(&self, id: Id) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.handed.waits();
            if !call.waits() {
                let turn = self.turns.fetch_add(1, Ordering::Relaxed);
                call.turn.store(turn, Ordering::Release);
            }
        }
    }

    /// Somebody is about to hand the key to this one, or could not. Meanwhile a look may show that
    /// it is no longer in the queue, which is no reason for it to ask.
    pub(crate) fn set_in_hand(&self, id: Id, in_hand: bool) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.in_hand.store(in_hand, Ordering::Release);
        }
    }

    /// Hands a lease to a waiter. If that is gone, the release that it left behind ends the lease.
    pub(crate) fn deliver(&self, id: Id, grant: Grant, now: Moment) {
        let Some(call) = self.seats.lock().get(&id).cloned() else { return };
        call.handed.put(grant, now);
        call.in_hand.store(false, Ordering::Release);
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
            if let Some(call) = seats.get(id)
                && !call.in_hand.load(Ordering::Acquire)
            {
                call.wake();
            }
        }
    }

    /// Those who wait.
    pub(crate) fn seated(&self) -> Vec<Id> {
        let seats = self.seats.lock();
        seats.iter().filter(|seat| seat.1.waits()).map(|seat| *seat.0).collect()
    }

    /// Whether this one waits here.
    pub(crate) fn waits(&self, id: Id) -> bool {
        self.seats.lock().get(&id).is_some_and(|call| call.waits())
    }

    /// Who of those who wait here for the key came first, and for how long it wants it; none where
    /// that is not a plain writer.
    pub(crate) fn next_writer(&self, key: &Key) -> Option<(Id, Duration)> {
        let seats = self.seats.lock();
        let waiting = seats.iter().filter(|(_, call)| call.waits() && call.key == *key);
        let (id, call) = waiting.min_by_key(|(_, call)| call.turn.load(Ordering::Acquire))?;
        Some((*id, call.plain?))
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
        self.turn.load(Ordering::Acquire) != NONE
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
