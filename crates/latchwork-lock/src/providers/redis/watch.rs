//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) calls.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::batch::Answer;
use super::claim::{Begun, Claim};
use super::relay::{Holding, Passed};
use super::release::Releases;
use super::store::{Place, Store, Verdict, handed_on, verdict};
use super::{error, record};
use crate::rules::{CLAIM_WINDOW, Id};
use crate::{
    AcquireRequest, Acquired, Clock, Confirmation, Fence, Grant, Key, Mode, Moment, Reserved,
    Result,
};

/// Where waiters sign in.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) room: Mutex<Room>,
    /// Rung when the watcher should look at the times again.
    pub(super) bell: Notify,
    /// Set when notices may have been missed.
    pub(super) missed: AtomicBool,
    /// The moment that the watcher sleeps to, in nanoseconds.
    alarm: AtomicU64,
    /// When this process last said something to the server by which that knows that it lives.
    alive: AtomicU64,
}

#[derive(Default)]
pub(super) struct Room {
    pub(super) calls: HashMap<Id, Arc<Call>>,
    /// Keys that somebody here waits for.
    pub(super) keys: HashMap<Key, Line>,
    /// Keys that were handed to somebody here, who may hand them on.
    pub(super) holdings: HashMap<Key, Holding>,
    /// Who has begun and is not confirmed, by whose release it has.
    pub(super) passed: HashMap<Id, Passed>,
}

/// Who waits for one key, and when something ahead of them runs out.
pub(super) struct Line {
    due: Moment,
    ids: HashSet<Id>,
    /// Who stands right behind whom, as far as that is known.
    pub(super) behind: HashMap<Id, Id>,
    /// When a turn came from another process.
    pub(super) heard_at: Option<Moment>,
}

/// A waiter, as those see it who call it.
pub(super) struct Call {
    pub(super) key: Key,
    /// It wants the key alone, and names no owner.
    pub(super) is_plain: bool,
    pub(super) ttl: Duration,
    /// How long its turn lasts before it is claimed.
    pub(super) window: Duration,
    /// What is locked with the room is locked after it.
    pub(super) state: Mutex<State>,
    pub(super) bell: Notify,
    /// Who was right ahead of it when it queued.
    follows: OnceLock<Id>,
    /// Its question is under way. Where the connection is lost that is sent once more: by then nobody
    /// must have gone who would not release what it takes.
    asked: AtomicBool,
    /// It has something to do as soon as that is answered.
    waits_for_answer: AtomicBool,
    /// Nobody waits here any more.
    gone: AtomicBool,
}

pub(super) enum State {
    /// What is known of its stay in the queue, as soon as its question is answered.
    Waits(Option<Stay>),
    /// A claim is under way.
    Claims,
    /// It has the key since then, and has not looked yet.
    Holds(Acquired, Moment),
    /// It must ask where it stands.
    Asks,
    /// Its question was answered, and it does not stand in the queue.
    Told(Result<Verdict>),
}

/// Why a waiter goes on.
pub(super) enum Called {
    /// It has a lease.
    Holds(Acquired),
    /// It must ask where it stands, or its time is over.
    Asks,
    /// This is what its question was answered.
    Told(Result<Verdict>),
}

/// One stay in the queue.
#[derive(Clone, Copy)]
pub(super) struct Stay {
    /// When it began by the server's clock, which tells it from an earlier one of the same request.
    began: i64,
    /// When the question was asked that began it: the key was not its own yet.
    asked_at: Moment,
    /// The last moment at which that is known.
    pub(super) known_at: Moment,
    /// The fence that it will have if it follows who is right ahead.
    pub(super) fence: Option<Fence>,
}

/// A turn, as a notice tells it.
struct Turn {
    stay: i64,
    grant: Grant,
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
    asked_at: Moment,
    answered: bool,
}

impl Desk {
    /// Signs a waiter in, before it asks, so that no call is missed; and whether others wait for the
    /// same key.
    pub(super) fn join(self: &Arc<Self>, request: &AcquireRequest, id: Id) -> (Seat, bool) {
        let AcquireRequest { key, ttl, mode, owner, .. } = request;
        let call = Arc::new(Call {
            key: key.clone(),
            is_plain: *mode == Mode::Exclusive && owner.is_none(),
            ttl: *ttl,
            window: (*ttl).min(CLAIM_WINDOW),
            state: Mutex::new(State::Waits(None)),
            bell: Notify::new(),
            follows: OnceLock::new(),
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

    /// A notice: an id and its turn, or an id and the microseconds until something runs out.
    pub(super) fn hear(&self, notice: &str, store: &Arc<Store>) {
        let Some((id, left)) = notice.split_at_checked(record::ID) else { return };
        let Some(id) = record::read_id(id.as_bytes()) else { return };
        match left.parse() {
            Err(_) => self.claim(id, Turn::parse(left), store),
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
    ///
    /// Who is told of the turn of this very stay begins at once, and the claim confirms it (L5). Not
    /// who has waited for long: it is in no such hurry, and what is left of the window may not be
    /// enough if the server is out of reach by now.
    fn claim(&self, id: Id, turn: Option<Turn>, store: &Arc<Store>) {
        let asked_at = store.clock.now();
        let call = {
            let mut room = self.room.lock();
            let Some(call) = room.calls.get(&id).cloned() else { return };
            if let Some(line) = room.keys.get_mut(&call.key) {
                line.heard_at = Some(asked_at);
            }
            call
        };
        let begun = {
            let mut state = call.state.lock();
            let State::Waits(stay) = *state else { return };
            match (stay, turn) {
                (Some(stay), Some(turn))
                    if stay.began == turn.stay
                        && asked_at.since(stay.asked_at) < call.window / 4 =>
                {
                    let confirmation = Confirmation::new();
                    let until = stay.asked_at.after(call.window);
                    let grant = turn.grant;
                    let reserved = Reserved { grant, until, confirmation: confirmation.clone() };
                    *state = State::Holds(Acquired::Reserved(Box::new(reserved)), asked_at);
                    call.bell.notify_one();
                    let (fence, queued_at) = (turn.grant.fence, stay.asked_at);
                    Some(Begun { confirmation, fence, queued_at, until, after: None })
                }
                _ => {
                    *state = State::Claims;
                    None
                }
            }
        };
        Claim::new(store, id, call, begun).put();
    }

    /// How some who wait for a key stand.
    pub(super) fn update(&self, ids: &[Id], states: &[u8], asked_at: Moment, store: &Arc<Store>) {
        for (id, state) in ids.iter().zip(states) {
            match state {
                b'w' => {
                    let call = self.room.lock().calls.get(id).cloned();
                    if let Some(call) = call
                        && let State::Waits(Some(stay)) = &mut *call.state.lock()
                    {
                        stay.known_at = stay.known_at.max(asked_at);
                    }
                }
                b'r' => self.claim(*id, None, store),
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
    fn queued(&self, call: &Arc<Call>, id: Id, place: Place, asked_at: Moment, clock: &dyn Clock) {
        let due = place.left.map_or(Moment::NEVER, |left| clock.now().after(left));
        if let State::Waits(known) = &mut *call.state.lock() {
            let fence = place.follows.map(|(_, fence)| fence);
            *known = Some(Stay { began: place.stay, asked_at, known_at: asked_at, fence });
        }
        {
            let mut room = self.room.lock();
            // It may have gone, or come back and taken a seat of its own.
            if !room.calls.get(&id).is_some_and(|known| Arc::ptr_eq(known, call)) {
                return;
            }
            let line = room.keys.entry(call.key.clone());
            let line = line.or_insert_with(|| Line {
                due,
                ids: HashSet::new(),
                behind: HashMap::new(),
                heard_at: None,
            });
            line.ids.insert(id);
            if let Some((ahead, _)) = place.follows
                && call.follows.set(ahead).is_ok()
            {
                line.behind.insert(ahead, id);
            }
            // Who is ahead may have released by now.
            self.go_on(room, &call.key, clock);
        }
        self.set_due(&call.key, due);
    }

    /// The server has heard of us, by what was sent at this moment.
    pub(super) fn is_alive(&self, sent_at: Moment) {
        self.alive.fetch_max(sent_at.as_nanos(), Ordering::Relaxed);
    }

    /// The last moment at which it had not yet.
    pub(super) fn alive_at(&self) -> Moment {
        Moment::from_nanos(self.alive.load(Ordering::Relaxed))
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
    /// Says that it stands in the queue, as it was answered to a question of `asked_at`.
    pub(super) fn queued(&self, place: Place, asked_at: Moment, clock: &dyn Clock) {
        self.desk.queued(&self.call, self.id, place, asked_at, clock);
    }

    #[cfg(test)]
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// A question that is asked for it from now on.
    pub(super) fn standing(&self, store: &Arc<Store>, during: &'static str) -> Standing {
        self.call.asked.store(true, Ordering::SeqCst);
        Standing {
            store: store.clone(),
            during,
            id: self.id,
            call: Arc::downgrade(&self.call),
            asked_at: store.clock.now(),
            answered: false,
        }
    }

    /// Ends when its turn has come, or when it must ask, at the latest at the deadline; and never
    /// before its question is answered.
    pub(super) async fn called(&self, clock: &dyn Clock, deadline: Moment) -> Called {
        loop {
            if self.call.asked.load(Ordering::SeqCst) {
                let waits = matches!(*self.call.state.lock(), State::Waits(_));
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
                    State::Holds(acquired, _) => return Called::Holds(acquired),
                    State::Told(verdict) => return Called::Told(verdict),
                    // What it is told from now on may be of the stay that the next question ends.
                    State::Asks => {
                        *state = State::Waits(None);
                        return Called::Asks;
                    }
                    State::Waits(_) if clock.now() >= deadline => {
                        *state = State::Waits(None);
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
            if let Some(ahead) = self.call.follows.get() {
                line.behind.remove(ahead);
            }
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
            Ok(Verdict::Queued(place)) => {
                self.store.desk.queued(&call, self.id, place, self.asked_at, clock);
            }
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
        if let State::Waits(None) = *state {
            *state = State::Told(verdict);
            self.bell.notify_one();
        }
    }

    /// Takes back a lease that was not confirmed, if its waiter has not looked yet.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Holds(Acquired::Reserved(_), _)) {
            *state = State::Asks;
            self.bell.notify_one();
        }
    }
}

impl Turn {
    /// From `:STAY:FENCE:BEFORE`.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_prefix(':')?.split(':').map(|number| number.parse().ok());
        let (stay, fence, before): (_, i64, i64) =
            (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Turn { stay, grant: handed_on(fence, before) })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use redis::{Client, Value};

    use super::super::connection::Line;
    use super::*;
    use crate::SystemClock;

    fn request(key: Key) -> AcquireRequest {
        AcquireRequest {
            key,
            mode: Mode::Exclusive,
            token: crate::Token::random(),
            owner: None,
            note: None,
            ttl: Duration::from_secs(9),
            wait: crate::Wait::Forever,
            retry_interval: Duration::ZERO,
            sent_at: Moment::from_nanos(0),
        }
    }

    #[tokio::test]
    async fn nobody_goes_on_before_its_question_is_answered() {
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let line = Arc::new(Line::new(client, None));
        let store = Arc::new(Store::new(line, Arc::new(SystemClock)).expect("a thread"));
        let request = request(Key::new("key").expect("legal"));
        let queued = [2, -1, 7].map(Value::Int).to_vec();
        for handed_on in [false, true] {
            let (seat, _) = store.desk.join(&request, 1);
            let standing = seat.standing(&store, "asking");
            if handed_on {
                let now = store.clock.now();
                store.desk.give(1, super::handed_on(3, 2), now, &*store.clock);
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
