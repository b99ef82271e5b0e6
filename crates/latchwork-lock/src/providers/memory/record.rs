//! What one key looks like in memory, and where the keys of one shard are kept.

use hashbrown::HashTable;

use super::exclusive::ExclusiveKey;
use super::requester::{WakeAt, requester};
use crate::reporter::Reporter;
use crate::rules::{HolderState, Rules};
use crate::{AcquireRequest, Fence, Inspection, Key, Moment, process_label};

/// The keys of one shard.
///
/// Mostly there is one at most. It stands beside the shard's lock, so that two cores which pass it
/// to and fro share few cache lines, and no table is searched.
#[derive(Default)]
pub(super) struct Entries {
    first: Option<Entry>,
    rest: HashTable<Entry>,
}

/// Below this a table is not made smaller: what 16 buckets hold.
const KEPT_ENTRIES: usize = 14;

impl Entries {
    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.rest.insert_unique(entry.key.process_hash(), entry, |e| e.key.process_hash());
        }
    }

    pub(super) fn find(&mut self, key: &Key) -> Option<&mut Entry> {
        match &mut self.first {
            Some(first) if first.key == *key => Some(first),
            _ if self.rest.is_empty() => None,
            _ => self.rest.find_mut(key.process_hash(), |e| e.key == *key),
        }
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let removed = if self.first.as_ref().is_some_and(|first| first.key == *key) {
            self.first.take()
        } else {
            let found = self.rest.find_entry(key.process_hash(), |e| e.key == *key);
            found.ok().map(|entry| entry.remove().0)
        };
        self.shrink();
        removed
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.first.iter_mut().chain(self.rest.iter_mut())
    }

    pub(super) fn retain(&mut self, mut stays: impl FnMut(&mut Entry) -> bool) {
        self.first.take_if(|first| !stays(first));
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

/// How a key is kept: as an [`ExclusiveKey`] for as long as its requests allow it, and then by the
/// general rules until it is free.
pub(super) enum State {
    Exclusive(ExclusiveKey),
    General(Box<Rules<WakeAt>>),
}

impl State {
    /// The first grant of a key that nobody had.
    pub(super) fn granted(request: &AcquireRequest, now: Moment, fence: Fence) -> Self {
        if ExclusiveKey::suits(request) {
            return State::Exclusive(ExclusiveKey::granted(request, now, fence));
        }
        let expires = now.after(request.ttl);
        let requester = Box::new(requester(request, now, WakeAt { waker: None, deadline: now }));
        let mut rules = Box::new(Rules::default());
        rules.last_fence = Some(fence);
        rules.holders.push(HolderState {
            requester,
            fence,
            previous: None,
            expires,
            claimed: true,
        });
        State::General(rules)
    }
}

impl Entry {
    /// The general rules, which the key follows from now on.
    pub(super) fn rules(&mut self) -> &mut Rules<WakeAt> {
        if let State::Exclusive(key) = &self.state {
            self.state = State::General(key.rules());
        }
        match &mut self.state {
            State::General(rules) => rules,
            State::Exclusive(_) => unreachable!("replaced above"),
        }
    }

    pub(super) fn inspect(&self, report: &Reporter) -> Inspection {
        let show = |rules| report.inspection(self.key.as_str(), rules, |_| process_label().into());
        match &self.state {
            State::Exclusive(key) => show(&*key.rules()),
            State::General(rules) => show(&**rules),
        }
    }
}
