//! What one key looks like in memory, and where the keys of one shard are kept.

use std::task::Waker;
use std::time::Duration;

use hashbrown::{HashTable, hash_table};

use crate::rules::{Held, Id, Party, Reporter, Rules};
use crate::{AcquireRequest, Fence, Inspection, Key, Mode, Moment, process_label};

/// The keys of one shard.
///
/// Mostly there is one at most, and its place is beside the shard's lock: what two cores pass to
/// and fro is then three cache lines in a row, and no table is searched.
#[derive(Default)]
pub(super) struct Entries {
    first: Option<Entry>,
    rest: HashTable<Entry>,
}

/// Below this a table is not made smaller: what 16 buckets hold.
const KEPT_ENTRIES: usize = 14;

/// What became of an attempt to end a [`Lone`] lease.
pub(super) enum Ended {
    /// It has ended.
    Yes,
    /// There is no such key.
    NoKey,
    /// The key is in another state.
    Otherwise,
}

impl Entries {
    /// Room for a key; none when the key is there.
    #[inline(always)]
    pub(super) fn vacant(&mut self, key: &Key) -> Option<&mut Entry> {
        let hash = key.process_hash();
        match &self.first {
            Some(first) if first.key == *key => None,
            Some(_) => {
                let entry = self.rest.entry(hash, |e| e.key == *key, |e| e.key.process_hash());
                match entry {
                    hash_table::Entry::Vacant(vacant) => {
                        Some(vacant.insert(Entry::BLANK).into_mut())
                    }
                    hash_table::Entry::Occupied(_) => None,
                }
            }
            // Asked first whether there are any, because to look for one is not free.
            None if !self.rest.is_empty() && self.rest.find(hash, |e| e.key == *key).is_some() => {
                None
            }
            None => Some(self.first.insert(Entry::BLANK)),
        }
    }

    pub(super) fn find(&mut self, key: &Key) -> Option<&mut Entry> {
        match &mut self.first {
            Some(first) if first.key == *key => Some(first),
            _ => self.rest.find_mut(key.process_hash(), |e| e.key == *key),
        }
    }

    /// The same for one who may hold it: a token is found sooner than a name is compared.
    #[inline]
    pub(super) fn find_for(&mut self, key: &Key, id: Id) -> Option<&mut Entry> {
        let holds = |state: &State| match state {
            State::Full(rules) => rules.holders.first().is_some_and(|held| held.party.id == id),
            State::Lone(_) => false,
        };
        if self.first.as_ref().is_some_and(|first| holds(&first.state)) {
            return self.first.as_mut();
        }
        self.find(key)
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let gone = match &self.first {
            Some(first) if first.key == *key => self.first.take(),
            _ => match self.rest.find_entry(key.process_hash(), |e| e.key == *key) {
                Ok(entry) => Some(entry.remove().0),
                Err(_) => None,
            },
        };
        self.shrink();
        gone
    }

    /// Ends a lone lease. A token is found sooner than a name is compared.
    #[inline(always)]
    pub(super) fn end_lone(&mut self, key: &Key, id: Id) -> Ended {
        if let Some(first) = &self.first
            && first.state.is_lone(id)
        {
            self.first = None;
            if self.rest.capacity() > 0 {
                self.shrink();
            }
            return Ended::Yes;
        }
        match self.find_for(key, id) {
            None => Ended::NoKey,
            Some(entry) if entry.state.is_lone(id) => {
                self.remove(key);
                Ended::Yes
            }
            Some(_) => Ended::Otherwise,
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.first.iter_mut().chain(self.rest.iter_mut())
    }

    pub(super) fn retain(&mut self, mut stays: impl FnMut(&mut Entry) -> bool) {
        if self.first.as_mut().is_some_and(|first| !stays(first)) {
            self.first = None;
        }
        self.rest.retain(stays);
        self.shrink();
    }

    /// Gives memory back after a flood of keys, and all of it when none is left (L16).
    fn shrink(&mut self) {
        let (len, capacity) = (self.rest.len(), self.rest.capacity());
        if len == 0 && self.first.is_none() {
            self.rest = HashTable::new();
        } else if capacity > KEPT_ENTRIES && len < capacity / 4 {
            self.rest.shrink_to((2 * len).max(KEPT_ENTRIES), |e| e.key.process_hash());
        }
    }
}

/// One key.
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) state: State,
}

/// Nearly every key has one exclusive holder without a name, and nobody waits: that fits into two
/// cache lines. Whatever else happens to a key is a matter for the full rules.
pub(super) enum State {
    Lone(Lone),
    Full(Box<Rules<Seat>>),
}

pub(super) struct Lone {
    /// In halves: whole, its alignment would cost eight bytes.
    id: [u64; 2],
    fence: Fence,
    since: Moment,
    expires: Moment,
    ttl: Duration,
}

impl State {
    /// The first grant of a key that nobody had.
    #[inline]
    pub(super) fn begin(&mut self, request: &AcquireRequest, now: Moment, fence: Fence) {
        let plain = request.mode == Mode::Exclusive;
        if plain && request.owner.is_none() && request.note.is_none() {
            if let State::Lone(lone) = self {
                lone.id = halves(request.token.expose());
                lone.fence = fence;
                lone.since = now;
                lone.expires = now.after(request.ttl);
                lone.ttl = request.ttl;
            }
            return;
        }
        let expires = now.after(request.ttl);
        let party = party(request, now, Seat { waker: None, deadline: now });
        let held = Held { party, fence, previous: None, expires, claimed: true };
        *self = State::full(held);
    }

    /// When the lone lease with this token ends.
    pub(super) fn lone_until(&self, id: Id) -> Option<Moment> {
        match self {
            State::Lone(lone) if lone.id == halves(id) => Some(lone.expires),
            _ => None,
        }
    }

    pub(super) fn is_lone(&self, id: Id) -> bool {
        matches!(self, State::Lone(lone) if lone.id == halves(id))
    }

    fn full(held: Held<Seat>) -> Self {
        let mut rules = Box::new(Rules::default());
        rules.last_fence = Some(held.fence);
        rules.holders.push(held);
        State::Full(rules)
    }
}

#[inline]
pub(super) fn party(request: &AcquireRequest, now: Moment, extra: Seat) -> Box<Party<Seat>> {
    // Room first, then the value: so it is written where it stays.
    Box::write(
        Box::new_uninit(),
        Party {
            id: request.token.expose(),
            mode: request.mode,
            owner: request.owner.clone(),
            note: request.note.clone(),
            ttl: request.ttl,
            since: now,
            extra,
        },
    )
}

fn halves(id: Id) -> [u64; 2] {
    [(id >> 64) as u64, id as u64]
}

/// What is remembered of whoever asked: how to wake it, and until when it wants to wait.
pub(super) struct Seat {
    pub(super) waker: Option<Waker>,
    pub(super) deadline: Moment,
}

impl Rules<Seat> {
    /// When a lease that somebody waits behind runs out; the timer knows the deadlines of the
    /// waiters from when they came.
    pub(super) fn look_again(&self) -> Moment {
        if self.queue.is_empty() { Moment::NEVER } else { self.next_expiry() }
    }
}

impl Entry {
    const BLANK: Entry = Entry {
        key: Key::BLANK,
        state: State::Lone(Lone {
            id: [0; 2],
            fence: Fence::new(0),
            since: Moment::from_nanos(0),
            expires: Moment::from_nanos(0),
            ttl: Duration::ZERO,
        }),
    };

    pub(super) fn rules(&mut self) -> &mut Rules<Seat> {
        if let State::Lone(lone) = &self.state {
            let party = Box::new(Party {
                id: Id::from(lone.id[0]) << 64 | Id::from(lone.id[1]),
                mode: Mode::Exclusive,
                owner: None,
                note: None,
                ttl: lone.ttl,
                since: lone.since,
                extra: Seat { waker: None, deadline: lone.since },
            });
            let held = Held {
                party,
                fence: lone.fence,
                previous: None,
                expires: lone.expires,
                claimed: true,
            };
            self.state = State::full(held);
        }
        match &mut self.state {
            State::Full(rules) => rules,
            State::Lone(_) => unreachable!("replaced above"),
        }
    }

    pub(super) fn inspect(&mut self, report: &Reporter) -> Inspection {
        let key = self.key.clone();
        report.inspection(key.as_str(), self.rules(), |_| process_label().to_owned())
    }
}
