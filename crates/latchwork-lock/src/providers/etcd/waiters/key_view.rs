//! A key's holders and queue as this process knows them: a read, and the watch events since.

use std::collections::{BTreeMap, HashMap};

use crate::Mode;
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::KeyState;
use crate::rules::Id;

/// Where a waiter is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterStatus {
    /// It may claim: its position, and the previous fence if that is known.
    First {
        position: i64,
        previous: Option<i64>,
    },
    Behind,
    /// It is not in the queue (any more).
    NotQueued,
}

/// A watch event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryChange {
    pub(crate) revision: i64,
    pub(crate) part: Part,
    pub(crate) mode: Mode,
    pub(crate) id: Id,
    /// The revision of the entry's creation; `None` if it was deleted.
    pub(crate) created: Option<i64>,
}

/// A key as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct KeyView {
    /// The newest revision that it includes; older changes are ignored.
    revision: i64,
    /// Whether there is a read since which no change was missed. Without one, nothing is known about
    /// positions.
    complete: bool,
    /// The revision after which the watch reports every change; 0 without a watch.
    watched_after: i64,
    /// Changes that were reported before there was such a read.
    early: Vec<EntryChange>,
    holders: HashMap<Id, Mode>,
    /// By the revision of their creation: the order in which they are served.
    queue: BTreeMap<i64, (Id, Mode)>,
    positions: HashMap<Id, i64>,
    /// The fence of the last grant, if none can have been missed.
    last_grant: Option<i64>,
    /// The position of the last waiter that a transaction of this process has served as the first of
    /// the queue. The watch may not have reported it yet, but everybody up to it is gone.
    served: i64,
}

impl KeyView {
    /// A watch was created that reports the changes after this revision. Returns whether the view
    /// includes everything before.
    pub(crate) fn watch_created(&mut self, revision: i64) -> bool {
        self.watched_after = revision;
        self.complete &= self.revision >= revision;
        self.complete
    }

    /// The watch has ended. Until there is another one, only reads change the view.
    pub(crate) fn watch_ended(&mut self) {
        self.watched_after = 0;
        self.early.clear();
    }

    /// Applies a read; returns whether it changed anything.
    pub(crate) fn apply_read(&mut self, seen: &KeyState) -> bool {
        // Between an older read and the watch a change may have been missed.
        if seen.revision < self.watched_after || (self.complete && seen.revision < self.revision) {
            return false;
        }
        let mut fresh = KeyView { revision: seen.revision, complete: true, ..KeyView::default() };
        for entry in seen.entries() {
            fresh.put(entry.part, entry.mode, entry.id, entry.created);
        }
        // Other grants may have come and gone since, unless a writer holds the key.
        let writer = seen.holders().find(|entry| entry.mode == Mode::Exclusive);
        fresh.last_grant = match writer {
            Some(writer) => Some(writer.created),
            None if self.complete && seen.revision == self.revision => self.last_grant,
            None => None,
        };
        (fresh.watched_after, fresh.served) = (self.watched_after, self.served);
        fresh.apply_changes(&std::mem::take(&mut self.early));
        let same = self.complete && fresh.holders == self.holders && fresh.queue == self.queue;
        *self = fresh;
        !same
    }

    /// Applies the changes of one message: those of one revision always arrive together.
    pub(crate) fn apply_changes(&mut self, changes: &[EntryChange]) {
        if !self.complete {
            self.early.extend_from_slice(changes);
            return;
        }
        let known = self.revision;
        for change in changes.iter().filter(|change| change.revision > known) {
            self.revision = self.revision.max(change.revision);
            match change.created {
                Some(created) => {
                    if change.part == Part::Hold && created == change.revision {
                        self.last_grant = Some(created);
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
                self.positions.insert(id, created);
            }
        }
    }

    fn remove(&mut self, part: Part, id: Id) {
        match part {
            Part::Hold => {
                self.holders.remove(&id);
            }
            Part::Wait => {
                if let Some(position) = self.positions.remove(&id) {
                    self.queue.remove(&position);
                }
            }
        }
    }

    fn has_writer(&self) -> bool {
        self.holders.values().any(|mode| *mode == Mode::Exclusive)
    }

    /// The waiters that may claim: one writer, or the readers before the first writer.
    pub(crate) fn claimants(&self) -> Vec<Id> {
        if !self.complete {
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

    /// The position and id of the writer that is next when the holder releases; `None` if a reader
    /// is next.
    pub(crate) fn next_writer(&self) -> Option<(i64, Id)> {
        let queue = self.is_live().then_some(&self.queue)?;
        let (position, (id, mode)) = queue.range(self.served + 1..).next()?;
        (*mode == Mode::Exclusive).then_some((*position, *id))
    }

    /// The waiter at this position was served as the first of the queue.
    pub(crate) fn mark_served(&mut self, position: i64) {
        self.served = self.served.max(position);
    }

    /// Whether there are waiters, as far as is known.
    pub(crate) fn has_waiters(&self) -> bool {
        self.is_live() && !self.queue.is_empty()
    }

    /// Whether it is complete, and a watch keeps it so.
    pub(crate) fn is_live(&self) -> bool {
        self.complete && self.watched_after > 0
    }

    /// The status of a waiter that was in the queue at the revision `queued_at`.
    pub(crate) fn status(&self, id: Id, queued_at: i64) -> WaiterStatus {
        if !self.complete || self.revision < queued_at {
            return WaiterStatus::Behind; // as far as is known
        }
        let Some(position) = self.positions.get(&id).copied() else {
            return WaiterStatus::NotQueued;
        };
        let Some((_, mode)) = self.queue.get(&position) else { return WaiterStatus::NotQueued };
        let mut ahead = self.queue.range(..position);
        let (first, previous) = match mode {
            Mode::Exclusive => (self.holders.is_empty() && ahead.next().is_none(), self.last_grant),
            // Other readers may have come and gone in between.
            Mode::Shared => {
                (!self.has_writer() && ahead.all(|(_, (_, mode))| *mode == Mode::Shared), None)
            }
        };
        if first { WaiterStatus::First { position, previous } } else { WaiterStatus::Behind }
    }
}

#[cfg(test)]
mod tests;
