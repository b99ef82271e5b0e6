use super::*;
use crate::providers::etcd::record::Entry;

fn put(revision: i64, part: Part, mode: Mode, id: Id) -> EntryChange {
    EntryChange { revision, part, mode, id, created: Some(revision) }
}

fn deleted(revision: i64, part: Part, mode: Mode, id: Id) -> EntryChange {
    EntryChange { revision, part, mode, id, created: None }
}

use Mode::{Exclusive, Shared};
use Part::{Hold, Wait};

fn complete() -> KeyView {
    KeyView { complete: true, ..KeyView::default() }
}

#[test]
fn a_queue_is_served_in_the_order_of_its_revisions() {
    let mut view = complete();
    view.apply_changes(&[
        put(1, Hold, Exclusive, 1),
        put(2, Wait, Exclusive, 9),
        put(3, Wait, Shared, 2),
    ]);
    assert_eq!(view.status(9, 0), WaiterStatus::Behind);
    assert!(view.claimants().is_empty());
    view.apply_changes(&[deleted(4, Hold, Exclusive, 1)]);
    assert_eq!(view.claimants(), [9]);
    assert_eq!(view.status(9, 0), WaiterStatus::First { position: 2, previous: Some(1) });
    assert_eq!(view.status(2, 0), WaiterStatus::Behind);
    view.apply_changes(&[deleted(5, Wait, Exclusive, 9), put(5, Hold, Exclusive, 9)]);
    assert_eq!(view.status(9, 0), WaiterStatus::NotQueued);
    assert_eq!(view.status(2, 0), WaiterStatus::Behind);
}

#[test]
fn the_next_writer_is_the_first_that_was_not_served() {
    let mut view = complete();
    view.apply_changes(&[put(2, Hold, Exclusive, 1), put(3, Wait, Exclusive, 2)]);
    assert_eq!(view.next_writer(), None, "there is no watch");
    view.watched_after = 1;
    assert_eq!(view.next_writer(), Some((3, 2)));
    view.mark_served(3);
    assert_eq!(view.next_writer(), None, "the watch has not reported it yet");
    view.apply_changes(&[put(4, Wait, Exclusive, 3), put(5, Wait, Shared, 4)]);
    assert_eq!(view.next_writer(), Some((4, 3)));
    view.mark_served(4);
    assert_eq!(view.next_writer(), None, "a reader is next");
}

#[test]
fn readers_before_the_first_writer_claim_together() {
    let mut view = complete();
    view.apply_changes(&[
        put(1, Hold, Shared, 1),
        put(2, Wait, Shared, 2),
        put(3, Wait, Shared, 3),
        put(4, Wait, Exclusive, 4),
        put(5, Wait, Shared, 5),
    ]);
    assert_eq!(view.claimants(), [2, 3]);
    assert_eq!(view.status(3, 0), WaiterStatus::First { position: 3, previous: None });
    assert_eq!(view.status(5, 0), WaiterStatus::Behind);
}

#[test]
fn old_changes_and_renewals_change_nothing() {
    let mut view = complete();
    view.apply_changes(&[put(7, Hold, Exclusive, 1), put(8, Wait, Exclusive, 2)]);
    view.apply_changes(&[deleted(6, Hold, Exclusive, 1)]);
    assert_eq!(view.status(2, 0), WaiterStatus::Behind);
    // A renewal keeps the revision of the creation: the last grant is still that of revision 7.
    view.apply_changes(&[EntryChange { created: Some(7), ..put(9, Hold, Exclusive, 1) }]);
    view.apply_changes(&[deleted(10, Hold, Exclusive, 1)]);
    assert_eq!(view.status(2, 0), WaiterStatus::First { position: 8, previous: Some(7) });
}

#[test]
fn a_read_makes_the_last_fence_unknown() {
    let mut view = complete();
    view.apply_changes(&[put(7, Hold, Exclusive, 1), put(8, Wait, Exclusive, 2)]);
    assert!(view.apply_read(&KeyState::new(20, Vec::new())));
    assert_eq!(view.last_grant, None);
    assert!(!view.apply_read(&KeyState::new(19, Vec::new())), "an older read is ignored");
}

/// The watch may be faster than the first read.
#[test]
fn changes_before_the_first_read_are_kept_for_it() {
    let ahead = Entry::of(Wait, Exclusive, 1, 3);
    let own = Entry::of(Wait, Exclusive, 2, 5);
    let mut view = KeyView::default();
    assert!(!view.watch_created(4));
    view.apply_changes(&[put(5, Wait, Exclusive, 2)]);
    view.apply_changes(&[put(6, Wait, Exclusive, 3)]);
    assert_eq!(view.status(2, 0), WaiterStatus::Behind, "the waiters ahead are not known");
    assert!(!view.apply_read(&KeyState::new(3, vec![])), "it is older than the watch");
    assert!(view.apply_read(&KeyState::new(5, vec![ahead, own])));
    assert_eq!(view.status(2, 0), WaiterStatus::Behind);
    assert_eq!(view.status(3, 0), WaiterStatus::Behind, "changes after the read are applied");
    view.apply_changes(&[deleted(7, Wait, Exclusive, 1)]);
    assert_eq!(view.status(2, 0), WaiterStatus::First { position: 5, previous: None });
}

#[test]
fn a_new_waiter_is_not_taken_for_a_removed_one() {
    let mut view = complete();
    view.apply_changes(&[put(3, Hold, Exclusive, 1)]);
    assert_eq!(view.status(2, 5), WaiterStatus::Behind, "its own change has not arrived");
    view.apply_changes(&[put(5, Wait, Exclusive, 2), deleted(6, Hold, Exclusive, 1)]);
    assert_eq!(view.status(2, 5), WaiterStatus::First { position: 5, previous: Some(3) });
}

#[test]
fn a_view_older_than_its_watch_is_not_complete() {
    let mut view = KeyView::default();
    assert!(view.apply_read(&KeyState::new(5, vec![Entry::of(Wait, Exclusive, 2, 5)])));
    assert!(view.watch_created(5), "no change is missed");
    view.watch_ended();
    assert!(!view.watch_created(9), "a change may be missed");
    assert_eq!(view.status(2, 0), WaiterStatus::Behind);
    assert!(view.apply_read(&KeyState::new(9, vec![])));
    assert_eq!(view.status(2, 0), WaiterStatus::NotQueued);
}
