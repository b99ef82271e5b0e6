//! What one key looks like in memory, and where the keys of one shard are kept.

use std::task::Waker;
use std::time::Duration;

use hashbrown::{HashTable, hash_table};

use super::plain::Plain;
use crate::rules::{Held, Id, Party, Reporter, Rules};
use crate::{AcquireRequest, Fence, Inspection, Key, Moment, process_label};

/// The keys of one shard.
///
/// Mostly there is one at most, and its place is beside the shard's lock: what two cores pass to
/// and fro is then three cache lines in a row, and no table is searched.
pub(super) struct Entries {
    /// With a blank key while there is none: what was there need not be cleared away, nor the room
    /// for the next be prepared.
    first: Entry,
    rest: HashTable<Entry>,
}

impl Default for Entries {
    fn default() -> Self {
        Entries { first: Entry::blank(), rest: HashTable::new() }
    }
}

/// Below this a table is not made smaller: what 16 buckets hold.
const KEPT_ENTRIES: usize = 14;

impl Entries {
    /// Room for a key; none when the key is there.
    #[inline(always)]
    pub(super) fn vacant(&mut self, key: &Key) -> Option<&mut Entry> {
        let hash = key.process_hash();
        if self.first.key.is_blank() {
            // Asked first whether there are any, because to look for one is not free.
            let taken = !self.rest.is_empty() && self.rest.find(hash, |e| e.key == *key).is_some();
            return if taken { None } else { Some(&mut self.first) };
        }
        if self.first.key == *key {
            return None;
        }
        match self.rest.entry(hash, |e| e.key == *key, |e| e.key.process_hash()) {
            hash_table::Entry::Vacant(vacant) => Some(vacant.insert(Entry::blank()).into_mut()),
            hash_table::Entry::Occupied(_) => None,
        }
    }

    pub(super) fn find(&mut self, key: &Key) -> Option<&mut Entry> {
        if self.first.key == *key {
            return Some(&mut self.first);
        }
        self.rest.find_mut(key.process_hash(), |e| e.key == *key)
    }

    /// The same of a key that is known to be there, and so is the first where there is no other.
    #[inline]
    pub(super) fn find_taken(&mut self, key: &Key) -> Option<&mut Entry> {
        if self.rest.is_empty() { Some(&mut self.first) } else { self.find(key) }
    }

    /// The same for one who may hold it: a token is found sooner than a name is compared.
    #[inline]
    pub(super) fn find_for(&mut self, key: &Key, id: Id) -> Option<&mut Entry> {
        let holds = |state: &State| match state {
            State::Plain(plain) => plain.is_held_by(id),
            State::Full(rules) => rules.holders.first().is_some_and(|held| held.party.id == id),
        };
        if !self.first.key.is_blank() && holds(&self.first.state) {
            return Some(&mut self.first);
        }
        self.find(key)
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let gone = if self.first.key == *key {
            Some(self.first.take())
        } else {
            let found = self.rest.find_entry(key.process_hash(), |e| e.key == *key);
            found.ok().map(|entry| entry.remove().0)
        };
        self.shrink();
        gone
    }

    /// Ends the lease of the first key, if it is a lone one with this token. A token is found
    /// sooner than a name is compared.
    #[inline(always)]
    pub(super) fn end_first(&mut self, id: Id) -> bool {
        let ends = !self.first.key.is_blank() && self.first.state.is_lone(id);
        if ends {
            // A lone lease has nothing else to give back.
            self.first.key.clear();
            if self.rest.capacity() > 0 {
                self.shrink();
            }
        }
        ends
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let first = Some(&mut self.first).filter(|first| !first.key.is_blank());
        first.into_iter().chain(self.rest.iter_mut())
    }

    pub(super) fn retain(&mut self, mut stays: impl FnMut(&mut Entry) -> bool) {
        if !self.first.key.is_blank() && !stays(&mut self.first) {
            self.first.take();
        }
        self.rest.retain(stays);
        self.shrink();
    }

    /// Gives memory back after a flood of keys, and all of it when none is left (L16).
    fn shrink(&mut self) {
        let (len, capacity) = (self.rest.len(), self.rest.capacity());
        if len == 0 && self.first.key.is_blank() {
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

/// How a key is kept: plainly for as long as that will do, and then by the full rules until it is
/// free.
pub(super) enum State {
    Plain(Plain),
    Full(Box<Rules<Seat>>),
}

impl State {
    /// The first grant of a key that nobody had.
    #[inline]
    pub(super) fn begin(&mut self, request: &AcquireRequest, now: Moment, fence: Fence) {
        if Plain::suits(request) {
            if let State::Plain(plain) = self {
                plain.begin(request, now, fence);
            }
            return;
        }
        let expires = now.after(request.ttl);
        let party = party(request, now, Seat { waker: None, deadline: now });
        let mut rules = Box::new(Rules::default());
        rules.last_fence = Some(fence);
        rules.holders.push(Held { party, fence, previous: None, expires, claimed: true });
        *self = State::Full(rules);
    }

    /// When the lease with this token ends, behind which nobody waits.
    pub(super) fn lone_until(&self, id: Id) -> Option<Moment> {
        match self {
            State::Plain(plain) if plain.is_lone() && plain.is_held_by(id) => Some(plain.expires),
            _ => None,
        }
    }

    pub(super) fn is_lone(&self, id: Id) -> bool {
        matches!(self, State::Plain(plain) if plain.is_held_by(id) && plain.is_lone())
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

#[inline]
pub(super) fn halves(id: Id) -> [u64; 2] {
    [(id >> 64) as u64, id as u64]
}

pub(super) fn whole([high, low]: [u64; 2]) -> Id {
    Id::from(high) << 64 | Id::from(low)
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
    #[inline]
    fn blank() -> Entry {
        Entry {
            key: Key::blank(),
            state: State::Plain(Plain {
                id: [0; 2],
                fence: Fence::new(0),
                expires: Moment::from_nanos(0),
                ttl: Duration::ZERO,
                line: None,
            }),
        }
    }

    /// What is in it, and a blank one instead.
    fn take(&mut self) -> Entry {
        std::mem::replace(self, Entry::blank())
    }

    /// The full rules, which the key follows from now on.
    pub(super) fn rules(&mut self) -> &mut Rules<Seat> {
        if let State::Plain(plain) = &self.state {
            self.state = State::Full(plain.rules());
        }
        match &mut self.state {
            State::Full(rules) => rules,
            State::Plain(_) => unreachable!("replaced above"),
        }
    }

    pub(super) fn inspect(&self, report: &Reporter) -> Inspection {
        let show = |rules| report.inspection(self.key.as_str(), rules, |_| process_label().into());
        match &self.state {
            State::Plain(plain) => show(&*plain.rules()),
            State::Full(rules) => show(&**rules),
        }
    }
}
