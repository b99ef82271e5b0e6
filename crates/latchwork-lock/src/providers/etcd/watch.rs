//! How a waiter of this process is woken: it signs in here, and the [watcher](super::watcher) tells
//! what becomes of its key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::select;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::call::{Call, Coming, Found};
use super::record::{Part, State};
use super::store::Party;
use super::view::{Change, Standing, View};
use crate::rules::Id;
use crate::{Clock, Fence, Grant, Key, Moment};

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

/// A waiter's place at the desk.
pub(super) struct Seat {
    desk: Arc<Desk>,
    call: Arc<Call>,
}

/// What a waiter does when it was called, or its time is over.
pub(super) enum Next {
    /// The lease is its own already.
    Holds(Grant),
    /// It claims: the revision of its place, and the fence before, where that is known.
    Claims {
        created: i64,
        previous: Option<i64>,
    },
    /// It has lost its place, and stands in line again.
    Stands,
    Leaves,
}

impl Desk {
    /// Signs a waiter in, before it stands in line, so that nothing is missed.
    pub(super) fn join(self: &Arc<Self>, party: &Arc<Party>, wanted: &Arc<AtomicBool>) -> Seat {
        let call = Arc::new(Call::new(party.clone(), wanted.clone()));
        let mut inner = self.inner.lock();
        let room = inner.rooms.entry(party.key.clone()).or_default();
        room.seats.insert(party.id, call.clone());
        room.empty = false;
        let unwatched = room.watch.is_none();
        drop(inner);
        if unwatched {
            self.busy.send_replace(true);
            self.news.notify_one();
        }
        Seat { desk: self.clone(), call }
    }

    /// The next in line for a key that a writer holds, if it is a writer that waits here. Until the
    /// answer is dropped, it does not ask for itself.
    pub(super) fn next(&self, key: &Key) -> Option<Coming> {
        let inner = self.inner.lock();
        let room = inner.rooms.get(key)?;
        let (created, id) = room.view.next_writer()?;
        Coming::to(room.seats.get(&id)?, created)
    }

    /// Whether anybody here waits for a key, or did a moment ago.
    pub(super) fn has_room(&self, key: &Key) -> bool {
        self.inner.lock().rooms.contains_key(key)
    }

    /// The waiter of this place has the key, by a transaction that found nobody before it.
    pub(super) fn served(&self, key: &Key, created: i64) {
        if let Some(room) = self.inner.lock().rooms.get_mut(key) {
            room.view.served(created);
        }
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
                    call.ring();
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
                if room.view.standing(*id, call.stands_since()) == Standing::Gone {
                    call.ring();
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
        inner.rooms.get(key).is_some_and(|room| room.view.has_queue())
    }

    /// Whether this one waits here.
    pub(super) fn seats(&self, key: &Key, id: Id) -> bool {
        self.inner.lock().rooms.get(key).is_some_and(|room| room.seats.contains_key(&id))
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
    pub(super) fn tick(&self, now: Moment) -> Late {
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
        let calls = || rooms.values().flat_map(|room| room.seats.values());
        let late = Late {
            first: calls().filter(|call| call.oversleeps(now)).cloned().collect(),
            holders: calls()
                .filter_map(|call| Some((call.take_back(now)?, call.clone())))
                .collect(),
        };
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

/// Those who sleep.
pub(super) struct Late {
    /// Through their turn to claim.
    pub(super) first: Vec<Arc<Call>>,
    /// Although they hold the key already: that lease is to be given back.
    pub(super) holders: Vec<(Fence, Arc<Call>)>,
}

impl Seat {
    /// What was read of the key.
    pub(super) fn feed(&self, seen: &State, now: Moment) {
        self.desk.feed(&self.call.party.key, seen, now);
    }

    /// It stands in line since this revision.
    pub(super) fn stands_since(&self, revision: i64) {
        self.call.set_stands_since(revision);
        self.sleeps();
    }

    /// It waits until it is called. Said by whoever answers it, since it may not be awake to do so.
    pub(super) fn sleeps(&self) {
        self.call.sleeps();
    }

    /// Waits until there is something to do, at the latest until the deadline.
    ///
    /// Cancel safe: what was handed to it meanwhile, stays here.
    pub(super) async fn next(&self, clock: &dyn Clock, deadline: Moment) -> Next {
        loop {
            let over = clock.now() >= deadline;
            match self.call.look() {
                Found::Lease(grant) => return Next::Holds(grant),
                Found::Soon if over => return Next::Leaves,
                Found::Soon => {}
                Found::Nothing => match self.standing() {
                    Standing::First { created, previous } => {
                        return Next::Claims { created, previous };
                    }
                    Standing::Behind | Standing::Gone if over => return Next::Leaves,
                    Standing::Gone => return Next::Stands,
                    Standing::Behind => self.call.sleeps(),
                },
            }
            let called = std::pin::pin!(self.call.bell.notified());
            if deadline == Moment::NEVER {
                called.await;
            } else {
                select(called, clock.sleep_until(deadline)).await;
            }
        }
    }

    fn standing(&self) -> Standing {
        let Party { key, id, .. } = &*self.call.party;
        let inner = self.desk.inner.lock();
        let room = inner.rooms.get(key);
        room.map_or(Standing::Gone, |room| room.view.standing(*id, self.call.stands_since()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Party { key, id, .. } = &*self.call.party;
        let mut inner = self.desk.inner.lock();
        let Some(room) = inner.rooms.get_mut(key) else { return };
        // The same token may have come back and taken a seat of its own.
        if room.seats.get(id).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
            room.seats.remove(id);
        }
    }
}

impl Room {
    /// Calls those whose turn it is.
    fn settle(&self, now: Moment) {
        let first = self.view.first();
        for (id, call) in &self.seats {
            call.set_turn(first.contains(id), now);
        }
    }
}
