//! A key that goes from hand to hand inside of this process, before the server knows (L5).
//!
//! Whoever queues learns who is right ahead of it and which fence it will have. When the one ahead
//! releases, and both are of this process, the next one begins at once; the release tells the server,
//! and its answer is the confirmation. A key that many tasks want so moves as fast as they do, and many
//! releases share a message.
//!
//! Nobody else can have the key meanwhile. In the server it is still of the one who released, until its
//! lease ends or the release arrives. Then it goes to the next in the queue, and that is whoever has
//! begun: nobody gets in between, and who waits is dropped only when its process was not heard for
//! long. Should the lease be broken or run out first, the next one has a reservation, and it is
//! trusted for no longer than that would last if it began right after the last moment at which the
//! server said that the next one waits. What lives on by other rules is left alone: a lease that
//! names an owner, which another may take over, or one that was renewed or made to be resumed.
//!
//! The fence was drawn from the same source as all others, so nobody else has it; and whoever is let in
//! otherwise has a higher one. If the server gave another one after all, the lease is lost at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::batch::Lane;
use super::claim::{Begun, Claim};
use super::store::Store;
use super::watch::{Call, Desk, Room, State};
use super::watcher::ALIVE;
use crate::rules::Id;
use crate::{Acquired, Clock, Confirmation, Fence, Grant, Key, Moment, Reserved};

/// How many may have begun that are not confirmed. With more of them all who wait would have their turns
/// in one go, and then nobody has the key until the server has seen to all their releases.
const AHEAD: usize = 5;

/// The same where other processes want the key, too: they would wait for that.
const AHEAD_OF_OTHERS: usize = 1;

/// For how long after a turn came from another process that is so.
const LATELY: Duration = Duration::from_secs(1);

/// Who has a key, for as long as it may be handed on from here.
pub(super) struct Holding {
    id: Id,
    fence: Fence,
    /// Not after the end of its lease in the server.
    until: Moment,
    /// Where the release is under way that it has the key by: its own must not overtake it.
    lane: Option<Arc<Lane>>,
    /// Since when its own release is under way, and where.
    released: Option<(Moment, Arc<Lane>)>,
    /// How many have begun that are not confirmed.
    ahead: usize,
}

/// One who has begun, and is not confirmed.
pub(super) struct Passed {
    id: Id,
    call: Arc<Call>,
    fence: Fence,
    confirmation: Confirmation,
    until: Moment,
    lane: Arc<Lane>,
}

impl Desk {
    /// Whether anybody here waits for a key that is about to be released, and the lane on which that
    /// must be told, if it must be a certain one.
    pub(super) fn way_out(&self, key: &Key, id: Id) -> (bool, Option<Arc<Lane>>) {
        let room = self.room.lock();
        let awaited = !room.keys.is_empty() && room.keys.contains_key(key);
        let holding = if room.holdings.is_empty() { None } else { room.holdings.get(key) };
        (awaited, holding.filter(|held| held.id == id).and_then(|held| held.lane.clone()))
    }

    /// Lets the next one begin behind `id`, whose release was just put on this lane; at once, or as
    /// soon as it is known who that is.
    pub(super) fn pass_on(
        &self,
        key: &Key,
        id: Id,
        asked_at: Moment,
        lane: &Arc<Lane>,
        clock: &dyn Clock,
    ) {
        let mut room = self.room.lock();
        let Some(held) = room.holdings.get_mut(key).filter(|held| held.id == id) else { return };
        held.released = Some((asked_at, lane.clone()));
        self.go_on(room, key, clock);
    }

    /// Lets the next one begin if the key was released. To be called when anything has changed.
    pub(super) fn go_on(&self, mut room: MutexGuard<'_, Room>, key: &Key, clock: &dyn Clock) {
        if let Some(call) = room.begin_next(key, clock.now(), self.alive_at()) {
            drop(room);
            call.bell.notify_one();
        }
    }

    /// The release of `id` is answered, or it will not be: who has begun behind it, if anybody.
    pub(super) fn answered(&self, key: &Key, id: Id) -> Option<Passed> {
        let mut room = self.room.lock();
        // From now on nobody begins behind it.
        room.let_go(key, id);
        if room.passed.is_empty() { None } else { room.passed.remove(&id) }
    }

    /// The server has handed the key to who has begun; the release was asked for at this moment.
    pub(super) fn confirm(&self, passed: Passed, asked_at: Moment, clock: &dyn Clock) {
        passed.confirmation.confirm(asked_at);
        let (key, mut room) = (&passed.call.key, self.room.lock());
        if let Some(held) = room.holdings.get_mut(key) {
            held.ahead = held.ahead.saturating_sub(1);
            if held.id == passed.id {
                (held.until, held.lane) = (asked_at.after(passed.call.ttl), None);
            }
            self.go_on(room, key, clock);
        }
    }

    /// Passes a grant on to its waiter. Who is gone lets a release follow, and who asks again is
    /// told the same.
    pub(super) fn give(&self, id: Id, grant: Grant, asked_at: Moment, clock: &dyn Clock) {
        let grant = Grant { trusted_from: Some(asked_at), ..grant };
        let mut room = self.room.lock();
        let Some(call) = room.calls.get(&id).cloned() else { return };
        if call.is_plain {
            let (fence, until) = (grant.fence, asked_at.after(call.ttl));
            let holding = Holding { id, fence, until, lane: None, released: None, ahead: 0 };
            room.holdings.insert(call.key.clone(), holding);
        }
        // Before the room is left: whoever holds it must not have released it yet.
        *call.state.lock() = State::Holds(Acquired::Granted(grant), clock.now());
        drop(room);
        call.bell.notify_one();
    }

    /// What becomes of this lease is not known here any more: nobody begins behind it.
    pub(super) fn forget(&self, key: &Key, id: Id) {
        self.room.lock().let_go(key, id);
    }
}

impl Room {
    /// Nobody begins behind this one any more.
    fn let_go(&mut self, key: &Key, id: Id) {
        if self.holdings.get(key).is_some_and(|held| held.id == id) {
            self.holdings.remove(key);
        }
    }

    /// Gives a key that was released to the next one, who is to be called then.
    fn begin_next(&mut self, key: &Key, now: Moment, alive_at: Moment) -> Option<Arc<Call>> {
        let held = self.holdings.get_mut(key)?;
        let (released_at, lane) = held.released.clone()?;
        let line = self.keys.get(key)?;
        let others = line.heard_at.is_some_and(|heard| now.since(heard) < LATELY);
        if held.ahead >= if others { AHEAD_OF_OTHERS } else { AHEAD } {
            return None;
        }
        let id = *line.behind.get(&held.id)?;
        let call = self.calls.get(&id)?.clone();
        let mut state = call.state.lock();
        let State::Waits(Some(stay)) = *state else { return None };
        let fence = stay.fence.filter(|fence| call.is_plain && *fence > held.fence)?;
        let until = held
            .until
            .min(released_at.after(call.ttl))
            .min(stay.known_at.after(call.window))
            .min(alive_at.after(ALIVE));
        if until.since(now) < call.window / 4 {
            return None;
        }
        let confirmation = Confirmation::new();
        let previous_fence = Some(held.fence);
        let grant = Grant { fence, previous_fence, waited: true, trusted_from: None };
        let reserved = Reserved { grant, until, confirmation: confirmation.clone() };
        *state = State::Holds(Acquired::Reserved(Box::new(reserved)), now);
        drop(state);
        let ahead = held.ahead + 1;
        let before = std::mem::replace(
            held,
            Holding { id, fence, until, lane: Some(lane.clone()), released: None, ahead },
        );
        let passed = Passed { id, call: call.clone(), fence, confirmation, until, lane };
        self.passed.insert(before.id, passed);
        Some(call)
    }
}

impl Passed {
    /// Whether this is what it has begun with.
    pub(super) fn is_of(&self, id: Id, fence: Fence) -> bool {
        (self.id, self.fence) == (id, fence)
    }

    /// Asks what has become of it, since the answer to the release before did not tell.
    pub(super) fn claim(self, store: &Arc<Store>, after: Id, released_at: Moment) {
        let Passed { id, call, fence, confirmation, until, lane } = self;
        let begun = Begun {
            confirmation,
            fence,
            queued_at: released_at,
            until,
            after: Some((after, lane)),
        };
        Claim::new(store, id, call, Some(begun)).put();
    }
}

#[cfg(test)]
mod tests {
    use redis::Client;

    use super::super::connection::Line;
    use super::super::store::{Place, handed_on};
    use super::super::watch::Seat;
    use super::*;
    use crate::{AcquireRequest, ManualClock, Mode, Owner, Token, Wait};

    const TTL: Duration = Duration::from_secs(30);
    const FIRST: (Id, u64) = (1, 10);
    const SECOND: (Id, u64) = (2, 20);

    /// The first one was handed the key by the server, and the second one stands right behind it.
    struct Stage {
        store: Arc<Store>,
        clock: ManualClock,
        key: Key,
        first: Option<Seat>,
        second: Seat,
    }

    fn request(ttl: Duration, owner: Option<Owner>) -> AcquireRequest {
        AcquireRequest {
            key: Key::new("key").expect("legal"),
            mode: Mode::Exclusive,
            token: Token::random(),
            owner,
            note: None,
            ttl,
            wait: Wait::Forever,
            retry_interval: Duration::ZERO,
            sent_at: Moment::from_nanos(0),
        }
    }

    fn stage(first: &AcquireRequest, second: &AcquireRequest) -> Stage {
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let line = Arc::new(Line::new(client, None));
        let clock = ManualClock::new();
        let store = Arc::new(Store::new(line, Arc::new(clock.clone())).expect("a thread"));
        let desk = &store.desk;
        let stands = |request, (id, fence), ahead| {
            let (seat, _) = desk.join(request, id);
            let follows = Some((ahead, Fence::new(fence)));
            let place = Place { left: None, stay: 1, follows };
            seat.queued(place, clock.now(), &clock);
            seat
        };
        let (first, second) = (stands(first, FIRST, 0), stands(second, SECOND, FIRST.0));
        desk.is_alive(clock.now());
        desk.give(FIRST.0, handed_on(FIRST.1 as i64, 1), clock.now(), &clock);
        let key = Key::new("key").expect("legal");
        Stage { store, clock, key, first: Some(first), second }
    }

    fn plain() -> Stage {
        stage(&request(TTL, None), &request(TTL, None))
    }

    impl Stage {
        /// The first one releases. How long the second one is trusted then, if it has begun.
        fn release(&mut self) -> Option<Duration> {
            drop(self.first.take());
            let (lane, now) = (self.store.lanes.here(), self.clock.now());
            self.store.desk.pass_on(&self.key, FIRST.0, now, &lane, &self.clock);
            match &*self.second.call().state.lock() {
                State::Holds(Acquired::Reserved(reserved), _) => {
                    assert_eq!(reserved.grant.fence, Fence::new(SECOND.1));
                    assert_eq!(reserved.grant.previous_fence, Some(Fence::new(FIRST.1)));
                    Some(reserved.until.since(now))
                }
                _ => None,
            }
        }
    }

    #[test]
    fn l05_who_begins_is_trusted_for_its_window_since_it_was_known_to_wait() {
        let mut stage = plain();
        stage.clock.advance(Duration::from_millis(300));
        assert_eq!(stage.release(), Some(Duration::from_millis(1_700)));
        let mut stage = plain();
        stage.clock.advance(Duration::from_millis(1_600));
        assert_eq!(stage.release(), None, "next to nothing is left of it");
        let mut stage = plain();
        stage.clock.advance(Duration::from_millis(1_600));
        let known_at = stage.clock.now();
        stage.store.desk.update(&[SECOND.0], b"w", known_at, &stage.store);
        assert_eq!(stage.release(), Some(Duration::from_secs(2)), "it was looked after");
    }

    #[test]
    fn l02_who_begins_is_trusted_no_longer_than_the_lease_before_lasts() {
        let mut stage = stage(&request(Duration::from_secs(1), None), &request(TTL, None));
        stage.clock.advance(Duration::from_millis(300));
        assert_eq!(stage.release(), Some(Duration::from_millis(700)));
    }

    #[test]
    fn l02_who_begins_is_trusted_no_longer_than_its_own_lease_will_last() {
        let mut stage = stage(&request(TTL, None), &request(Duration::from_millis(400), None));
        assert_eq!(stage.release(), Some(Duration::from_millis(400)));
    }

    #[test]
    fn nobody_begins_whom_the_server_may_take_for_dead() {
        let mut stage = plain();
        stage.clock.advance(ALIVE);
        let now = stage.clock.now();
        stage.store.desk.update(&[SECOND.0], b"w", now, &stage.store);
        assert_eq!(stage.release(), None);
    }

    #[test]
    fn l07_nobody_begins_behind_an_owner_nor_as_one() {
        let owned = || request(TTL, Some(Owner::new("bob").expect("legal")));
        assert_eq!(stage(&owned(), &request(TTL, None)).release(), None);
        assert_eq!(stage(&request(TTL, None), &owned()).release(), None);
    }

    #[test]
    fn nobody_begins_behind_what_is_renewed_or_answered() {
        let mut stage = plain();
        stage.store.desk.forget(&stage.key, FIRST.0);
        assert_eq!(stage.release(), None);
        let mut stage = plain();
        assert!(stage.store.desk.answered(&stage.key, FIRST.0).is_none());
        assert_eq!(stage.release(), None, "the release has failed, or it was handed to another");
    }

    #[test]
    fn who_queues_behind_a_release_under_way_begins_then() {
        let mut stage = plain();
        assert!(stage.release().is_some());
        let (store, clock) = (&stage.store, &stage.clock);
        let lane = store.lanes.here();
        store.desk.pass_on(&stage.key, SECOND.0, clock.now(), &lane, clock);
        let (third, _) = store.desk.join(&request(TTL, None), 3);
        let follows = Some((SECOND.0, Fence::new(30)));
        third.queued(Place { left: None, stay: 1, follows }, clock.now(), clock);
        assert!(matches!(*third.call().state.lock(), State::Holds(Acquired::Reserved(_), _)));
    }

    #[test]
    fn not_all_begin_before_the_server_knows() {
        let stage = plain();
        let (store, clock) = (&stage.store, &stage.clock);
        let (desk, lane) = (&store.desk, store.lanes.here());
        let mut seats = Vec::new();
        for id in 3..20 {
            let (seat, _) = desk.join(&request(TTL, None), id);
            let follows = Some((id - 1, Fence::new(10 * id as u64)));
            seat.queued(Place { left: None, stay: 1, follows }, clock.now(), clock);
            seats.push(seat);
        }
        let has_begun =
            |id: Id| desk.room.lock().holdings.get(&stage.key).is_some_and(|held| held.id == id);
        let release = |id| desk.pass_on(&stage.key, id, clock.now(), &lane, clock);
        let last = FIRST.0 + AHEAD as Id;
        (FIRST.0..=last).for_each(release);
        assert!(has_begun(last), "so many have begun");
        release(last);
        assert!(!has_begun(last + 1), "and no more");
        let first = desk.answered(&stage.key, FIRST.0).expect("the second has begun");
        desk.confirm(first, clock.now(), clock);
        assert!(has_begun(last + 1), "one more for one that is confirmed");
    }

    #[test]
    fn who_begins_is_confirmed_by_the_fence_it_has_begun_with() {
        let mut stage = plain();
        assert!(stage.release().is_some());
        let desk = &stage.store.desk;
        let (_, lane) = desk.way_out(&stage.key, SECOND.0);
        assert!(lane.is_some(), "its release must not overtake the one before");
        let passed = desk.answered(&stage.key, FIRST.0).expect("it has begun");
        assert!(passed.is_of(SECOND.0, Fence::new(SECOND.1)));
        assert!(!passed.is_of(SECOND.0, Fence::new(SECOND.1 + 1)));
        let confirmation = passed.confirmation.clone();
        desk.confirm(passed, stage.clock.now(), &stage.clock);
        assert!(confirmation.decision().is_some());
        let (_, lane) = desk.way_out(&stage.key, SECOND.0);
        assert!(lane.is_none(), "it may be released from anywhere");
    }
}
