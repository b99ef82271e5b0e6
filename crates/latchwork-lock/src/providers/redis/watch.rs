//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) calls.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::batch::Answer;
use super::claim::Claim;
use super::release::Releases;
use super::store::{Store, Verdict, verdict};
use super::{error, record};
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

/// A waiter, as those see it who call it.
pub(super) struct Call {
    pub(super) key: Key,
    state: Mutex<State>,
    bell: Notify,
    /// Its question is under way. Where the connection is lost that is sent once more: by then nobody
    /// must have gone who would not release what it takes.
    asked: AtomicBool,
    /// It has something to do as soon as that is answered.
    waits_for_answer: AtomicBool,
    /// Nobody waits here any more.
    gone: AtomicBool,
}

enum State {
    /// It stands in the queue, or its question is under way.
    Waits,
    /// A claim is under way.
    Claims,
    /// It has the key since then, and has not looked yet.
    Holds(Grant, Moment),
    /// It must ask where it stands.
    Asks,
    /// Its question was answered, and it does not stand in the queue.
    Told(Result<Verdict>),
}

/// Why a waiter goes on.
pub(super) enum Called {
    /// It has a lease.
    Holds(Grant),
    /// It must ask where it stands, or its time is over.
    Asks,
    /// This is what its question was answered.
    Told(Result<Verdict>),
}

/// A waiter's place at the desk.
pub(super) struct Seat {
    desk: Arc<Desk>,
    id: Id,
    call: Arc<Call>,
}

/// The question of one who can but wait, on its way.
pub(super) struct Standing {
    store: Arc<Store>,
    during: &'static str,
    id: Id,
    /// Gone with its waiter.
    call: Weak<Call>,
    answered: bool,
}

impl Desk {
    /// Signs a waiter in, before it asks, so that no call is missed; and whether others wait for the
    /// same key.
    pub(super) fn join(self: &Arc<Self>, key: &Key, id: Id) -> (Seat, bool) {
        let call = Arc::new(Call {
            key: key.clone(),
            state: Mutex::new(State::Waits),
            bell: Notify::new(),
            asked: AtomicBool::new(false),
            waits_for_answer: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        let mut room = self.room.lock();
        let behind = !room.keys.is_empty() && room.keys.contains_key(key);
        room.calls.insert(id, call.clone());
        drop(room);
        (Seat { desk: self.clone(), id, call }, behind)
    }

    /// Whether anybody here waits for a key.
    pub(super) fn awaits(&self, key: &Key) -> bool {
        let room = self.room.lock();
        !room.keys.is_empty() && room.keys.contains_key(key)
    }

    /// A notice: an id and its turn, or an id and the microseconds until something runs out.
    pub(super) fn hear(&self, notice: &str, store: &Arc<Store>) {
        let Some((id, left)) = notice.split_at_checked(record::ID) else { return };
        let Some(id) = record::read_id(id.as_bytes()) else { return };
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
    fn claim(&self, id: Id, store: &Arc<Store>) {
        let Some(call) = self.room.lock().calls.get(&id).cloned() else { return };
        {
            let mut state = call.state.lock();
            let State::Waits = *state else { return };
            *state = State::Claims;
        }
        Claim::put(store, id, call);
    }

    /// Passes a grant on to its waiter, by a release that was sent at this moment. Who is gone lets a
    /// release follow, and who asks again is told the same.
    pub(super) fn give(&self, id: Id, grant: Grant, released_at: Moment, clock: &dyn Clock) {
        let Some(call) = self.room.lock().calls.get(&id).cloned() else { return };
        // The ttl began in the server, after that moment.
        call.hold(Grant { trusted_from: Some(released_at), ..grant }, clock.now());
    }

    /// How some who wait for a key stand.
    pub(super) fn update(&self, ids: &[Id], states: &[u8], store: &Arc<Store>) {
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
                drop(state);
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

    /// Says that one stands in the queue, as [`Seat::queued`] does.
    fn queued(&self, call: &Arc<Call>, id: Id, left: Option<Duration>, clock: &dyn Clock) {
        let due = left.map_or(Moment::NEVER, |left| clock.now().after(left));
        {
            let mut room = self.room.lock();
            // It may have gone, or come back and taken a seat of its own.
            if !room.calls.get(&id).is_some_and(|known| Arc::ptr_eq(known, call)) {
                return;
            }
            let line = room.keys.entry(call.key.clone());
            line.or_insert_with(|| Line { due, ids: HashSet::new() }).ids.insert(id);
        }
        self.set_due(&call.key, due);
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
    /// Says that it stands in the queue, and how long it is until something ahead runs out.
    pub(super) fn queued(&self, left: Option<Duration>, clock: &dyn Clock) {
        self.desk.queued(&self.call, self.id, left, clock);
    }

    /// A question that is asked for it from now on.
    pub(super) fn standing(&self, store: &Arc<Store>, during: &'static str) -> Standing {
        self.call.asked.store(true, Ordering::SeqCst);
        Standing {
            store: store.clone(),
            during,
            id: self.id,
            call: Arc::downgrade(&self.call),
            answered: false,
        }
    }

    /// Ends when its turn has come, or when it must ask, at the latest at the deadline; and never
    /// before its question is answered.
    pub(super) async fn called(&self, clock: &dyn Clock, deadline: Moment) -> Called {
        loop {
            if self.call.asked.load(Ordering::SeqCst) {
                let waits = matches!(*self.call.state.lock(), State::Waits);
                if !waits || clock.now() >= deadline {
                    // First the word, then the look: whoever answers in between rings.
                    self.call.waits_for_answer.store(true, Ordering::SeqCst);
                    if self.call.asked.load(Ordering::SeqCst) {
                        self.call.bell.notified().await;
                    }
                    continue;
                }
            } else {
                let mut state = self.call.state.lock();
                match std::mem::replace(&mut *state, State::Asks) {
                    State::Holds(grant, _) => return Called::Holds(grant),
                    State::Told(verdict) => return Called::Told(verdict),
                    State::Asks => {
                        *state = State::Waits;
                        return Called::Asks;
                    }
                    State::Waits if clock.now() >= deadline => {
                        *state = State::Waits;
                        return Called::Asks;
                    }
                    known => *state = known,
                }
                if clock.now() >= deadline {
                    return Called::Asks;
                }
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
        self.call.gone.store(true, Ordering::Release);
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

impl Standing {
    pub(super) fn is_wanted(&self) -> bool {
        self.call.upgrade().is_some_and(|call| !call.gone.load(Ordering::Acquire))
    }

    /// Remembers that its waiter stands in the queue, or tells it anything else.
    pub(super) fn answered(mut self, answer: Result<Answer>) {
        self.answered = true;
        let Some(call) = self.call.upgrade() else { return };
        let clock = &*self.store.clock;
        match answer.and_then(|answer| verdict(self.during, &answer, clock)) {
            Ok(Verdict::Queued(left)) => self.store.desk.queued(&call, self.id, left, clock),
            other => call.tell(other),
        }
    }
}

impl Drop for Standing {
    /// Nothing more comes of it. Unanswered, its lane has ended with the runtime that drove it.
    fn drop(&mut self) {
        let Some(call) = self.call.upgrade() else { return };
        if !self.answered {
            call.tell(Err(error::gone(self.during)));
        }
        call.asked.store(false, Ordering::SeqCst);
        if call.waits_for_answer.load(Ordering::SeqCst) {
            call.bell.notify_one();
        }
    }
}

impl Call {
    /// It has the key since `now`.
    pub(super) fn hold(&self, grant: Grant, now: Moment) {
        *self.state.lock() = State::Holds(grant, now);
        self.bell.notify_one();
    }

    pub(super) fn ask_again(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Holds(..) | State::Told(_)) {
            *state = State::Asks;
            self.bell.notify_one();
        }
    }

    /// Tells what a question was answered, if nothing else is known by now.
    fn tell(&self, verdict: Result<Verdict>) {
        let mut state = self.state.lock();
        if let State::Waits = *state {
            *state = State::Told(verdict);
            self.bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use redis::{Client, Value};

    use super::super::connection::Line;
    use super::*;
    use crate::{Fence, SystemClock};

    #[tokio::test]
    async fn nobody_goes_on_before_its_question_is_answered() {
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let line = Arc::new(Line::new(client, None));
        let store = Arc::new(Store::new(line, Arc::new(SystemClock)).expect("a thread"));
        let key = Key::new("key").expect("legal");
        let queued = [2, -1, 7].map(Value::Int).to_vec();
        for handed_on in [false, true] {
            let (seat, _) = store.desk.join(&key, 1);
            let standing = seat.standing(&store, "asking");
            if handed_on {
                let now = store.clock.now();
                store.desk.give(1, Grant::first(Fence::new(3)), now, &*store.clock);
            }
            let mut called = Box::pin(seat.called(&*store.clock, store.clock.now()));
            assert!(called.as_mut().now_or_never().is_none(), "its time is over, and yet");
            let answer = Answer { value: Value::Array(queued.clone()), again: false };
            standing.answered(Ok(answer));
            match called.await {
                Called::Holds(_) => assert!(handed_on),
                Called::Asks => assert!(!handed_on),
                Called::Told(_) => panic!("it is in the queue"),
            }
        }
        assert!(store.desk.is_empty(), "nobody is left");
    }
}
