//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) calls.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::batch::{Answer, Reply};
use super::release::Releases;
use super::scripts::Operation;
use super::store::{Store, claimed};
use crate::rules::{CLAIM_WINDOW, Id};
use crate::{Clock, Grant, Key, Moment, Result};

/// Where waiters sign in.
#[derive(Default)]
pub(super) struct Desk {
    room: Mutex<Room>,
    /// Rung when the watcher should look at the times again.
    pub(super) bell: Notify,
    /// Set when notices may have been missed.
    pub(super) missed: AtomicBool,
    /// The moment that the watcher sleeps to, in nanoseconds.
    alarm: AtomicU64,
}

#[derive(Default)]
struct Room {
    calls: HashMap<Id, Arc<Call>>,
    /// Keys that somebody here waits for.
    keys: HashMap<Key, Line>,
}

/// Who waits for one key, and when something ahead of them runs out.
struct Line {
    due: Moment,
    ids: HashSet<Id>,
}

struct Call {
    key: Key,
    state: Mutex<State>,
    bell: Notify,
}

enum State {
    Waits,
    /// A claim is under way.
    Claims,
    /// It holds the key since then, and has not looked yet.
    Holds(Grant, Moment),
    /// It must ask where it stands.
    Asks,
}

/// A waiter's place at the desk.
pub(super) struct Seat {
    desk: Arc<Desk>,
    id: Id,
    call: Arc<Call>,
}

/// The claim of a turn, on its way.
pub(super) struct Claim {
    desk: Arc<Desk>,
    clock: Arc<dyn Clock>,
    call: Arc<Call>,
    asked_at: Moment,
}

impl Desk {
    /// Signs a waiter in, before it asks, so that no call is missed; and whether others wait for the
    /// same key.
    pub(super) fn join(self: &Arc<Self>, key: &Key, id: Id) -> (Seat, bool) {
        let state = Mutex::new(State::Waits);
        let call = Arc::new(Call { key: key.clone(), state, bell: Notify::new() });
        let mut room = self.room.lock();
        let behind = !room.keys.is_empty() && room.keys.contains_key(key);
        room.calls.insert(id, call.clone());
        drop(room);
        (Seat { desk: self.clone(), id, call }, behind)
    }

    /// A notice: an id whose turn it is, or an id and the microseconds until something runs out.
    pub(super) fn hear(&self, notice: &str, store: &Store) {
        let (Some(id), Some(left)) = (notice.get(..32), notice.get(32..)) else { return };
        let Ok(id) = Id::from_str_radix(id, 16) else { return };
        match left.parse() {
            Err(_) => self.claim(id, store),
            Ok(left) => {
                let call = self.room.lock().calls.get(&id).cloned();
                let due = store.clock.now().after(Duration::from_micros(left));
                if let Some(call) = call {
                    self.set_due(&call.key, due);
                }
            }
        }
    }

    /// Claims a turn for its waiter, who need not be awake for it; see [`give_back`](Self::give_back).
    pub(super) fn claim(&self, id: Id, store: &Store) {
        let Some(call) = self.room.lock().calls.get(&id).cloned() else { return };
        {
            let mut state = call.state.lock();
            if !matches!(*state, State::Waits) {
                return;
            }
            *state = State::Claims;
        }
        let (key, clock) = (call.key.clone(), store.clock.clone());
        let asked_at = clock.now();
        let claim = Claim { desk: store.desk.clone(), clock, call, asked_at };
        store.put(Operation::Claim, &key, id, Reply::Claim(Box::new(claim)));
    }

    /// Passes a grant on to its waiter. Who is gone lets a release follow, and who asks again is
    /// told the same.
    pub(super) fn give(&self, id: Id, grant: Grant, clock: &dyn Clock) {
        let call = self.room.lock().calls.get(&id).cloned();
        if let Some(call) = call {
            *call.state.lock() = State::Holds(grant, clock.now());
            call.bell.notify_one();
        }
    }

    /// How some who wait for a key stand.
    pub(super) fn update(&self, ids: &[Id], states: &[u8], store: &Store) {
        for (id, state) in ids.iter().zip(states) {
            match state {
                b'w' => {}
                b'r' => self.claim(*id, store),
                _ => {
                    // Forgotten by the server, or its claim was not answered.
                    let call = self.room.lock().calls.get(id).cloned();
                    if let Some(call) = call {
                        call.ask_again();
                    }
                }
            }
        }
    }

    /// Gives back what was claimed for waiters that do not look: others wait behind them.
    pub(super) fn give_back(&self, store: &Arc<Store>, releases: &Releases) {
        let now = store.clock.now();
        let calls: Vec<(Id, Arc<Call>)> =
            self.room.lock().calls.iter().map(|(id, call)| (*id, call.clone())).collect();
        for (id, call) in calls {
            let mut state = call.state.lock();
            if let State::Holds(_, since) = *state
                && now.since(since) >= CLAIM_WINDOW / 2
            {
                *state = State::Asks;
                releases.queue(store, &call.key, id);
            }
        }
    }

    /// When something ahead of those who wait for a key runs out.
    pub(super) fn set_due(&self, key: &Key, due: Moment) {
        if let Some(line) = self.room.lock().keys.get_mut(key) {
            line.due = due;
        }
        if due.as_nanos() < self.alarm.load(Ordering::Acquire) {
            self.bell.notify_one();
        }
    }

    /// Whether anybody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.room.lock().keys.is_empty()
    }

    /// The next moment that matters, not later than the given one; it is remembered, and whoever
    /// has an earlier one rings.
    pub(super) fn alarm(&self, latest: Moment) -> Moment {
        // First the word, then the look: who comes in between rings once too often.
        self.alarm.store(u64::MAX, Ordering::Release);
        let first = self.room.lock().keys.values().map(|line| line.due).min();
        let at = first.map_or(Moment::NEVER, |first| first.min(latest));
        self.alarm.store(at.as_nanos(), Ordering::Release);
        at
    }

    /// The keys of which something has run out, once.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Key> {
        let mut room = self.room.lock();
        let due = room.keys.iter_mut().filter(|(_, line)| line.due <= now);
        due.map(|(key, line)| {
            line.due = Moment::NEVER;
            key.clone()
        })
        .collect()
    }

    /// Everybody who waits, by key.
    pub(super) fn waiting(&self) -> Vec<(Key, Vec<Id>)> {
        let room = self.room.lock();
        room.keys
            .iter()
            .map(|(key, line)| (key.clone(), line.ids.iter().copied().collect()))
            .collect()
    }
}

impl Seat {
    /// Says that it stands in the queue, and when something ahead of it runs out.
    pub(super) fn queued(&self, due: Moment) {
        {
            let mut room = self.desk.room.lock();
            let line = room.keys.entry(self.call.key.clone());
            let line = line.or_insert_with(|| Line { due, ids: HashSet::new() });
            line.ids.insert(self.id);
        }
        self.desk.set_due(&self.call.key, due);
    }

    /// Ends with a grant when its turn has come; with none when it must ask, at the latest at the
    /// deadline.
    pub(super) async fn called(&self, clock: &dyn Clock, deadline: Moment) -> Option<Grant> {
        loop {
            {
                let mut state = self.call.state.lock();
                match *state {
                    State::Waits | State::Claims => {}
                    State::Holds(grant, _) => {
                        *state = State::Asks;
                        return Some(grant);
                    }
                    State::Asks => {
                        *state = State::Waits;
                        return None;
                    }
                }
            }
            if clock.now() >= deadline {
                return None;
            }
            let told = std::pin::pin!(self.call.bell.notified());
            if deadline == Moment::NEVER {
                told.await;
            } else {
                select(told, clock.sleep_until(deadline)).await;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut room = self.desk.room.lock();
        // The same token may have come back and taken a seat of its own.
        if !room.calls.get(&self.id).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            return;
        }
        room.calls.remove(&self.id);
        if let Some(line) = room.keys.get_mut(&self.call.key) {
            line.ids.remove(&self.id);
            if line.ids.is_empty() {
                room.keys.remove(&self.call.key);
            }
        }
    }
}

impl Claim {
    /// Passes the answer on to the waiter.
    pub(super) fn answered(self, answer: Result<Answer>) {
        let (grant, left) = answer.map_or((None, None), |answer| claimed(&answer.value));
        if let Some(left) = left {
            self.desk.set_due(&self.call.key, self.clock.now().after(left));
        }
        match grant {
            Some(grant) => {
                // The ttl began in the server, after this moment.
                let grant = Grant { trusted_from: Some(self.asked_at), ..grant };
                *self.call.state.lock() = State::Holds(grant, self.clock.now());
                self.call.bell.notify_one();
            }
            None => self.call.ask_again(),
        }
    }
}

impl Call {
    fn ask_again(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Holds(..)) {
            *state = State::Asks;
            self.bell.notify_one();
        }
    }
}
