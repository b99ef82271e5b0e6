//! A key as this process knows it, and how its waiters stand by that.

use std::collections::{BTreeMap, HashMap};

use super::record::{Part, State};
use crate::Mode;
use crate::rules::Id;

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

/// A key as this process knows it: a read, and what the stream told since.
#[derive(Debug, Default)]
pub(super) struct View {
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
    /// A transaction of this process has served the waiter of this place, and nobody stood before it:
    /// whatever the stream has yet to tell, those up to here are gone.
    served: i64,
}

impl View {
    /// A watch has begun behind this revision; whether what is known reaches up to it.
    pub(super) fn begin(&mut self, revision: i64) -> bool {
        self.watched = revision;
        self.whole &= self.revision >= revision;
        self.whole
    }

    /// The watch has ended. Until there is another one, only reads tell anything.
    pub(super) fn end(&mut self) {
        self.watched = 0;
        self.early.clear();
    }

    /// A read; whether it was news.
    pub(super) fn set(&mut self, seen: &State) -> bool {
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
        (fresh.watched, fresh.served) = (self.watched, self.served);
        fresh.apply(&std::mem::take(&mut self.early));
        let same = self.whole && fresh.holders == self.holders && fresh.queue == self.queue;
        *self = fresh;
        !same
    }

    /// Changes of one answer: those of one revision always come together.
    pub(super) fn apply(&mut self, changes: &[Change]) {
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
    pub(super) fn first(&self) -> Vec<Id> {
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

    /// The writer that is next in line when the holder goes, and its place; none for readers.
    pub(super) fn next_writer(&self) -> Option<(i64, Id)> {
        let told = self.is_told().then_some(&self.queue)?;
        let (created, (id, mode)) = told.range(self.served + 1..).next()?;
        (*mode == Mode::Exclusive).then_some((*created, *id))
    }

    /// The waiter of this place was served, and nobody stood before it.
    pub(super) fn served(&mut self, created: i64) {
        self.served = self.served.max(created);
    }

    /// Whether somebody waits, as far as is told.
    pub(super) fn has_queue(&self) -> bool {
        self.is_told() && !self.queue.is_empty()
    }

    /// Whether it is whole, and a watch keeps it so.
    pub(super) fn is_told(&self) -> bool {
        self.whole && self.watched > 0
    }

    /// How one stands who stood in line at the revision `since`.
    pub(super) fn standing(&self, id: Id, since: i64) -> Standing {
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
    fn the_next_writer_is_the_first_who_was_not_served() {
        let mut view = whole();
        view.apply(&[put(2, Hold, Exclusive, 1), put(3, Wait, Exclusive, 2)]);
        assert_eq!(view.next_writer(), None, "nobody tells what happens");
        view.watched = 1;
        assert_eq!(view.next_writer(), Some((3, 2)));
        view.served(3);
        assert_eq!(view.next_writer(), None, "the stream is behind");
        view.apply(&[put(4, Wait, Exclusive, 3), put(5, Wait, Shared, 4)]);
        assert_eq!(view.next_writer(), Some((4, 3)));
        view.served(4);
        assert_eq!(view.next_writer(), None, "a reader is next");
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
