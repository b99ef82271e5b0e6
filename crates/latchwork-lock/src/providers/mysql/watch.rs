//! How a waiter of this process is woken: it signs in here, and whoever hands the key on in this
//! process or the [watcher](super::watcher) calls.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::rules::Id;
use crate::{Clock, Moment};

/// Where waiters sign in.
#[derive(Default)]
pub(super) struct Desk {
    seats: Mutex<HashMap<Id, Arc<Call>>>,
    /// Rung when the first one comes.
    pub(super) bell: Notify,
    /// Whether the watcher sleeps until it is rung for.
    pub(super) idle: AtomicBool,
}

struct Call {
    bell: Notify,
    called: AtomicBool,
    /// False while it asks for the first time: it may never have to wait.
    waits: AtomicBool,
    /// When something ahead runs out.
    due: Mutex<Moment>,
    tick: Duration,
}

/// A waiter's place at the desk.
pub(super) struct Seat {
    desk: Arc<Desk>,
    id: Id,
    call: Arc<Call>,
}

/// How one waiter stands.
#[derive(PartialEq)]
pub(super) struct Standing {
    pub(super) id: Id,
    pub(super) key: Vec<u8>,
    pub(super) granted: bool,
    /// How many may be ahead in the queue: some of them may have left it.
    pub(super) ahead: u32,
    /// Until something of its key runs out; nothing when nobody holds it.
    pub(super) left: Duration,
}

impl Desk {
    /// Signs a waiter in, before it asks, so that no call is missed.
    pub(super) fn join(self: &Arc<Self>, id: Id, tick: Duration) -> Seat {
        let call = Arc::new(Call {
            bell: Notify::new(),
            called: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            due: Mutex::new(Moment::NEVER),
            tick,
        });
        self.seats.lock().insert(id, call.clone());
        Seat { desk: self.clone(), id, call }
    }

    /// It is this one's turn, if it is one of ours.
    pub(super) fn call(&self, id: Id) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.wake();
        }
    }

    /// When something runs out that stands before this one, if it is one of ours.
    pub(super) fn set_due(&self, id: Id, due: Moment) {
        if let Some(call) = self.seats.lock().get(&id) {
            call.set_due(due);
        }
    }

    /// How the waiters of this process stand, first in line first. Who is not named is no longer
    /// in the queue.
    pub(super) fn update(&self, standings: &[Standing], asked: &[Id], clock: &dyn Clock) {
        let now = clock.now();
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
    pub(super) fn seated(&self) -> Vec<Id> {
        let seats = self.seats.lock();
        seats.iter().filter(|seat| seat.1.waits()).map(|seat| *seat.0).collect()
    }

    /// Rings for the watcher, if it sleeps.
    pub(super) fn wake_watcher(&self) {
        if self.idle.swap(false, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The shortest tick that anybody asked for; none when nobody waits.
    pub(super) fn tick(&self) -> Option<Duration> {
        let seats = self.seats.lock();
        seats.values().filter(|call| call.waits()).map(|call| call.tick).min()
    }
}

impl Seat {
    /// Says that it stands in the queue, and when something ahead runs out, as far as it was told.
    pub(super) fn set_due(&self, due: Moment) {
        self.call.waits.store(true, Ordering::Release);
        *self.call.due.lock() = due;
    }

    /// Ends when the waiter's place may have changed, at the latest at the deadline.
    pub(super) async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
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
