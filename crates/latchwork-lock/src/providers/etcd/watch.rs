//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) tells
//! what becomes of its key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::{Part, State};
use crate::rules::Id;
use crate::{Clock, Key, Mode, Moment};

/// How long the first in line may sleep before its own process takes it out of the queue. With the
/// tick of the one who looks, it is not more than the claim window.
const WINDOW: Duration = Duration::from_millis(1_500);

/// How a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may claim: the revision of its place, and the fence before, where that is known.
    First {
        created: i64,
        previous: Option<i64>,
    },
    Behind,
    /// It is not in the queue (any more).
    Gone,
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) revision: i64,
    pub(super) part: Part,
    pub(super) mode: Mode,
    pub(super) id: Id,
    /// The revision of its creation; none when it was deleted.
    pub(super) created: Option<i64>,
}

/// Where waiters sign in.
#[derive(Default)]
pub(super) struct Desk {
    inner: Mutex<Inner>,
    /// Rung when there is something to watch, or no longer.
    pub(super) news: Notify,
    /// Rung when what the stream should have told was found by looking.
    pub(super) deaf: Notify,
    /// Whether the stream has said anything since somebody looked.
    heard: AtomicBool,
    busy: tokio::sync::watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    rooms: HashMap<Key, Room>,
    watches: HashMap<i64, Key>,
    /// Watches that nobody needs.
    over: Vec<i64>,
    last_watch: i64,
}

/// One key that somebody here waits for.
#[derive(Default)]
struct Room {
    seats: HashMap<Id, Arc<Call>>,
    view: View,
    watch: Option<i64>,
    /// Whether nobody was here at the last tick: soon the door is closed.
    empty: bool,
}

#[derive(Default)]
struct Call {
    bell: Notify,
    /// Since when it may claim and has not.
    turn: Mutex<Option<Moment>>,
    /// The revision at which it stood in line: what is known from before says nothing about it.
    stands_since: AtomicI64,
    claims: AtomicBool,
}

/// A waiter's place at the desk.
pub(super) struct Seat {
    desk: Arc<Desk>,
    key: Key,
    id: Id,
    call: Arc<Call>,
}

impl Desk {
    /// Signs a waiter in, before it stands in line, so that nothing is missed.
    pub(super) fn join(self: &Arc<Self>, key: &Key, id: Id) -> Seat {
        let call = Arc::new(Call::default());
        let mut inner = self.inner.lock();
        let room = inner.rooms.entry(key.clone()).or_default();
        room.seats.insert(id, call.clone());
        room.empty = false;
        let unwatched = room.watch.is_none();
        drop(inner);
        if unwatched {
            self.busy.send_replace(true);
            self.news.notify_one();
        }
        Seat { desk: self.clone(), key: key.clone(), id, call }
    }

    /// Ends when somebody waits.
    pub(super) async fn until_busy(&self) {
        // It cannot fail: the sender is ours.
        let _ = self.busy.subscribe().wait_for(|busy| *busy).await;
    }

    /// A key that is to be watched, and under which number.
    pub(super) fn next_watch(&self) -> Option<(i64, Key)> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (key, room) = inner.rooms.iter_mut().find(|(_, room)| room.watch.is_none())?;
        inner.last_watch += 1;
        room.watch = Some(inner.last_watch);
        inner.watches.insert(inner.last_watch, key.clone());
        Some((inner.last_watch, key.clone()))
    }

    /// A watch that is to be ended.
    pub(super) fn next_over(&self) -> Option<i64> {
        self.inner.lock().over.pop()
    }

    /// The stream is lost: everything must be watched anew.
    pub(super) fn lose_watches(&self) {
        let mut inner = self.inner.lock();
        inner.watches.clear();
        inner.over.clear();
        for room in inner.rooms.values_mut() {
            room.watch = None;
            room.view.end();
        }
    }

    /// A watch has begun behind this revision. Answers the key, where something may have happened
    /// between what is known and that.
    pub(super) fn began(&self, watch: i64, revision: i64) -> Option<Key> {
        self.heard.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        let key = inner.watches.get(&watch)?.clone();
        let whole = inner.rooms.get_mut(&key)?.view.begin(revision);
        (!whole).then_some(key)
    }

    /// The server has ended a watch; it must be begun anew.
    pub(super) fn ended(&self, watch: i64) {
        let mut inner = self.inner.lock();
        if let Some(key) = inner.watches.remove(&watch)
            && let Some(room) = inner.rooms.get_mut(&key)
            && room.watch == Some(watch)
        {
            room.watch = None;
            room.view.end();
            self.news.notify_one();
        }
    }

    /// What the stream tells of a key.
    pub(super) fn hear(&self, watch: i64, changes: &[Change], now: Moment) {
        self.heard.store(true, Ordering::Release);
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if let Some(room) = inner.watches.get(&watch).and_then(|key| inner.rooms.get_mut(key)) {
            room.view.apply(changes);
            room.settle(now);
            for change in changes.iter().filter(|change| change.part == Part::Wait) {
                if change.created.is_none()
                    && let Some(call) = room.seats.get(&change.id)
                {
                    call.bell.notify_one();
                }
            }
        }
    }

    /// What a read tells of a key; whether it was news.
    pub(super) fn feed(&self, key: &Key, seen: &State, now: Moment) -> bool {
        let mut inner = self.inner.lock();
        let Some(room) = inner.rooms.get_mut(key) else { return false };
        let news = room.view.set(seen);
        if news {
            room.settle(now);
            for (id, call) in &room.seats {
                if room.view.standing(*id, call.since()) == Standing::Gone {
                    call.bell.notify_one();
                }
            }
        }
        news
    }

    /// Whether everything that happens to this key is heard here.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.inner.lock().rooms.get(key).is_some_and(|room| room.view.is_told())
    }

    /// Whether somebody is known to wait for this key.
    pub(super) fn has_queue(&self, key: &Key) -> bool {
        let inner = self.inner.lock();
        inner.rooms.get(key).is_some_and(|room| room.view.is_told() && !room.view.queue.is_empty())
    }

    /// The keys that somebody waits for.
    pub(super) fn keys(&self) -> Vec<Key> {
        let inner = self.inner.lock();
        inner
            .rooms
            .iter()
            .filter(|(_, room)| !room.seats.is_empty())
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether anything was heard since the last time this was asked.
    pub(super) fn has_heard(&self) -> bool {
        self.heard.swap(false, Ordering::AcqRel)
    }

    /// Closes the rooms that were empty twice, and names those who sleep through their turn.
    pub(super) fn tick(&self, now: Moment) -> Vec<(Key, Id)> {
        let mut inner = self.inner.lock();
        let Inner { rooms, watches, over, .. } = &mut *inner;
        let mut closed = false;
        rooms.retain(|_, room| {
            let stays = !room.seats.is_empty() || !std::mem::replace(&mut room.empty, true);
            if !stays && let Some(watch) = room.watch {
                watches.remove(&watch);
                over.push(watch);
                closed = true;
            }
            stays
        });
        let asleep = |call: &Call| {
            let turn = call.turn.lock().is_some_and(|since| now.since(since) >= WINDOW);
            turn && !call.claims.load(Ordering::Acquire)
        };
        let late = rooms.iter().flat_map(|(key, room)| {
            let late = room.seats.iter().filter(|(_, call)| asleep(call));
            late.map(|(id, _)| (key.clone(), *id))
        });
        let late = late.collect();
        if rooms.is_empty() {
            self.busy.send_replace(false);
        }
        drop(inner);
        if closed {
            self.news.notify_one();
        }
        late
    }

    /// Whether nobody waits, and nobody has for a while.
    pub(super) fn is_idle(&self) -> bool {
        self.inner.lock().rooms.is_empty()
    }
}

impl Seat {
    /// What was read of the key.
    pub(super) fn feed(&self, seen: &State, now: Moment) {
        self.desk.feed(&self.key, seen, now);
    }

    pub(super) fn standing(&self) -> Standing {
        let inner = self.desk.inner.lock();
        let room = inner.rooms.get(&self.key);
        room.map_or(Standing::Gone, |room| room.view.standing(self.id, self.call.since()))
    }

    /// It stands in line since this revision.
    pub(super) fn stands_since(&self, revision: i64) {
        self.call.stands_since.store(revision, Ordering::Release);
    }

    /// Says that it claims, so that it is not taken for asleep; or that it no longer does.
    pub(super) fn claims(&self, claims: bool) {
        self.call.claims.store(claims, Ordering::Release);
        *self.call.turn.lock() = None;
    }

    /// Ends when its standing may have changed, at the latest at the deadline.
    pub(super) async fn changed(&self, clock: &dyn Clock, deadline: Moment) {
        let told = std::pin::pin!(self.call.bell.notified());
        if deadline == Moment::NEVER {
            told.await;
        } else {
            select(told, clock.sleep_until(deadline)).await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.desk.inner.lock();
        let Some(room) = inner.rooms.get_mut(&self.key) else { return };
        // The same token may have come back and taken a seat of its own.
        if room.seats.get(&self.id).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            room.seats.remove(&self.id);
        }
    }
}

impl Call {
    fn since(&self) -> i64 {
        self.stands_since.load(Ordering::Acquire)
    }
}

impl Room {
    /// Calls those whose turn it is.
    fn settle(&self, now: Moment) {
        let first = self.view.first();
        for (_, call) in self.seats.iter().filter(|(id, _)| !first.contains(id)) {
            *call.turn.lock() = None;
        }
        for id in first {
            if let Some(call) = self.seats.get(&id) {
                let mut turn = call.turn.lock();
                if turn.is_none() {
                    *turn = Some(now);
                }
                drop(turn);
                call.bell.notify_one();
            }
        }
    }
}

/// A key as this process knows it: a read, and what the stream told since.
#[derive(Debug, Default)]
struct View {
    /// Up to which it is known; what is older is no news.
    revision: i64,
    /// Whether there is a read to which nothing is missing: without one, nobody's place is known.
    whole: bool,
    /// Behind which revision the watch tells everything.
    watched: i64,
    /// What it told before there was such a read.
    early: Vec<Change>,
    holders: HashMap<Id, Mode>,
    /// By the revision of their creation: the order in which they are served.
    queue: BTreeMap<i64, (Id, Mode)>,
    places: HashMap<Id, i64>,
    /// The fence of the last grant, where none can have been missed.
    last: Option<i64>,
}

impl View {
    /// A watch has begun behind this revision; whether what is known reaches up to it.
    fn begin(&mut self, revision: i64) -> bool {
        self.watched = revision;
        self.whole &= self.revision >= revision;
        self.whole
    }

    /// The watch has ended. Until there is another one, only reads tell anything.
    fn end(&mut self) {
        self.watched = 0;
        self.early.clear();
    }

    /// A read; whether it was news.
    fn set(&mut self, seen: &State) -> bool {
        // Between an older one and the watch something may be missing.
        if seen.revision < self.watched || (self.whole && seen.revision < self.revision) {
            return false;
        }
        let mut fresh = View { revision: seen.revision, whole: true, ..View::default() };
        for entry in seen.entries() {
            fresh.put(entry.part, entry.mode, entry.id, entry.created);
        }
        // Grants may have come and gone since the last word, unless there is one that excludes it.
        let writer = seen.holders().find(|entry| entry.mode == Mode::Exclusive);
        fresh.last = match writer {
            Some(writer) => Some(writer.created),
            None if self.whole && seen.revision == self.revision => self.last,
            None => None,
        };
        fresh.watched = self.watched;
        fresh.apply(&std::mem::take(&mut self.early));
        let same = self.whole && fresh.holders == self.holders && fresh.queue == self.queue;
        *self = fresh;
        !same
    }

    /// Changes of one answer: those of one revision always come together.
    fn apply(&mut self, changes: &[Change]) {
        if !self.whole {
            self.early.extend_from_slice(changes);
            return;
        }
        let known = self.revision;
        for change in changes.iter().filter(|change| change.revision > known) {
            self.revision = self.revision.max(change.revision);
            match change.created {
                Some(created) => {
                    if change.part == Part::Hold && created == change.revision {
                        self.last = Some(created);
                    }
                    self.put(change.part, change.mode, change.id, created);
                }
                None => self.remove(change.part, change.id),
            }
        }
    }

    fn put(&mut self, part: Part, mode: Mode, id: Id, created: i64) {
        match part {
            Part::Hold => {
                self.holders.insert(id, mode);
            }
            Part::Wait => {
                self.remove(part, id);
                self.queue.insert(created, (id, mode));
                self.places.insert(id, created);
            }
        }
    }

    fn remove(&mut self, part: Part, id: Id) {
        match part {
            Part::Hold => {
                self.holders.remove(&id);
            }
            Part::Wait => {
                if let Some(place) = self.places.remove(&id) {
                    self.queue.remove(&place);
                }
            }
        }
    }

    fn has_writer(&self) -> bool {
        self.holders.values().any(|mode| *mode == Mode::Exclusive)
    }

    /// Those whose turn it is: one writer, or the readers before the first writer.
    fn first(&self) -> Vec<Id> {
        if !self.whole {
            return Vec::new();
        }
        let mut waiting = self.queue.values();
        match waiting.next() {
            Some((id, Mode::Exclusive)) if self.holders.is_empty() => vec![*id],
            Some((id, Mode::Shared)) if !self.has_writer() => {
                let more = waiting.take_while(|(_, mode)| *mode == Mode::Shared);
                std::iter::once(*id).chain(more.map(|(id, _)| *id)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether it is whole, and a watch keeps it so.
    fn is_told(&self) -> bool {
        self.whole && self.watched > 0
    }

    /// How one stands who stood in line at the revision `since`.
    fn standing(&self, id: Id, since: i64) -> Standing {
        if !self.whole || self.revision < since {
            return Standing::Behind; // as far as anybody knows
        }
        let Some(created) = self.places.get(&id).copied() else { return Standing::Gone };
        let Some((_, mode)) = self.queue.get(&created) else { return Standing::Gone };
        let mut before = self.queue.range(..created);
        let (first, previous) = match mode {
            Mode::Exclusive => (self.holders.is_empty() && before.next().is_none(), self.last),
            // Between readers others may have come and gone.
            Mode::Shared => {
                (!self.has_writer() && before.all(|(_, (_, mode))| *mode == Mode::Shared), None)
            }
        };
        if first { Standing::First { created, previous } } else { Standing::Behind }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Entry;
    use super::*;

    fn put(revision: i64, part: Part, mode: Mode, id: Id) -> Change {
        Change { revision, part, mode, id, created: Some(revision) }
    }

    fn gone(revision: i64, part: Part, mode: Mode, id: Id) -> Change {
        Change { revision, part, mode, id, created: None }
    }

    use Mode::{Exclusive, Shared};
    use Part::{Hold, Wait};

    fn whole() -> View {
        View { whole: true, ..View::default() }
    }

    #[test]
    fn a_queue_is_served_in_the_order_of_its_revisions() {
        let mut view = whole();
        view.apply(&[
            put(1, Hold, Exclusive, 1),
            put(2, Wait, Exclusive, 9),
            put(3, Wait, Shared, 2),
        ]);
        assert_eq!(view.standing(9, 0), Standing::Behind);
        assert!(view.first().is_empty());
        view.apply(&[gone(4, Hold, Exclusive, 1)]);
        assert_eq!(view.first(), [9]);
        assert_eq!(view.standing(9, 0), Standing::First { created: 2, previous: Some(1) });
        assert_eq!(view.standing(2, 0), Standing::Behind);
        view.apply(&[gone(5, Wait, Exclusive, 9), put(5, Hold, Exclusive, 9)]);
        assert_eq!(view.standing(9, 0), Standing::Gone);
        assert_eq!(view.standing(2, 0), Standing::Behind);
    }

    #[test]
    fn readers_in_a_row_are_first_together_and_a_writer_stops_them() {
        let mut view = whole();
        view.apply(&[
            put(1, Hold, Shared, 1),
            put(2, Wait, Shared, 2),
            put(3, Wait, Shared, 3),
            put(4, Wait, Exclusive, 4),
            put(5, Wait, Shared, 5),
        ]);
        assert_eq!(view.first(), [2, 3]);
        assert_eq!(view.standing(3, 0), Standing::First { created: 3, previous: None });
        assert_eq!(view.standing(5, 0), Standing::Behind);
    }

    #[test]
    fn old_news_and_renewals_change_nothing() {
        let mut view = whole();
        view.apply(&[put(7, Hold, Exclusive, 1), put(8, Wait, Exclusive, 2)]);
        view.apply(&[gone(6, Hold, Exclusive, 1)]);
        assert_eq!(view.standing(2, 0), Standing::Behind);
        // A renewal keeps the revision of its creation: the last grant is still the seventh.
        view.apply(&[Change { created: Some(7), ..put(9, Hold, Exclusive, 1) }]);
        view.apply(&[gone(10, Hold, Exclusive, 1)]);
        assert_eq!(view.standing(2, 0), Standing::First { created: 8, previous: Some(7) });
    }

    #[test]
    fn what_a_read_skips_makes_the_last_fence_unknown() {
        let mut view = whole();
        view.apply(&[put(7, Hold, Exclusive, 1), put(8, Wait, Exclusive, 2)]);
        assert!(view.set(&State::new(20, Vec::new())));
        assert_eq!(view.last, None);
        assert!(!view.set(&State::new(19, Vec::new())), "an older read says nothing");
    }

    /// The stream may be quicker than the read to which its news belong.
    #[test]
    fn news_before_the_first_read_are_kept_for_it() {
        let ahead = Entry::of(Wait, Exclusive, 1, 3);
        let own = Entry::of(Wait, Exclusive, 2, 5);
        let mut view = View::default();
        assert!(!view.begin(4));
        view.apply(&[put(5, Wait, Exclusive, 2)]);
        view.apply(&[put(6, Wait, Exclusive, 3)]);
        assert_eq!(view.standing(2, 0), Standing::Behind, "nobody knows who is ahead");
        assert!(!view.set(&State::new(3, vec![])), "it is from before the watch");
        assert!(view.set(&State::new(5, vec![ahead, own])));
        assert_eq!(view.standing(2, 0), Standing::Behind);
        assert_eq!(view.standing(3, 0), Standing::Behind, "what came after the read is known too");
        view.apply(&[gone(7, Wait, Exclusive, 1)]);
        assert_eq!(view.standing(2, 0), Standing::First { created: 5, previous: None });
    }

    #[test]
    fn who_has_just_come_is_not_gone() {
        let mut view = whole();
        view.apply(&[put(3, Hold, Exclusive, 1)]);
        assert_eq!(view.standing(2, 5), Standing::Behind, "its word is still under way");
        view.apply(&[put(5, Wait, Exclusive, 2), gone(6, Hold, Exclusive, 1)]);
        assert_eq!(view.standing(2, 5), Standing::First { created: 5, previous: Some(3) });
    }

    #[test]
    fn a_new_watch_makes_what_is_older_doubtful() {
        let mut view = View::default();
        assert!(view.set(&State::new(5, vec![Entry::of(Wait, Exclusive, 2, 5)])));
        assert!(view.begin(5), "nothing lies between");
        view.end();
        assert!(!view.begin(9), "something may lie between");
        assert_eq!(view.standing(2, 0), Standing::Behind);
        assert!(view.set(&State::new(9, vec![])));
        assert_eq!(view.standing(2, 0), Standing::Gone);
    }
}
