//! The checker on histories with kills, stops, breaks and hand-overs: each rule can fail, and
//! none raises a false alarm.

use latchwork_lock::Mode::{Exclusive, Shared};
use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Mode};

use super::{Event, History, Rule, What, check};

/// The rules that a history breaks; told in short: (time, process, request, what), of one key.
fn broken(events: &[(u64, u32, u64, What)]) -> Vec<Rule> {
    let events = events.iter().enumerate().map(|(number, (at, process, request, what))| Event {
        at: Moment::from_nanos(*at),
        process: *process,
        number: number as u64,
        key: "k".into(),
        request: *request,
        what: *what,
    });
    check(&History::new(events.collect())).iter().map(|found| found.rule).collect()
}

fn asked(mode: Mode) -> What {
    What::Asked { mode, until: Moment::from_nanos(1_000) }
}

fn granted(fence: u64, until: u64) -> What {
    What::Granted { fence: Fence::new(fence), until: Moment::from_nanos(until) }
}

fn resuming(from: u64) -> What {
    What::Resuming { from, mode: Exclusive }
}

fn ended(fence: u64, since: u64) -> What {
    What::Broken { fence: Some(Fence::new(fence)), since: Moment::from_nanos(since) }
}

const QUEUED: What = What::Queued { position: 1 };
const ENDS: What = What::ProcessEnds { who: 1 };
const STOPS: What = What::ProcessStops { who: 1 };
const GOES: What = What::ProcessGoes { who: 1 };

#[test]
fn what_the_dead_have_held_may_be_free_and_not_before() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 0, 0, ENDS),
        // Between that and the signal.
        (4, 1, 2, asked(Shared)),
        (5, 1, 2, granted(2, 50)),
        (6, 2, 3, asked(Exclusive)),
        (7, 2, 3, granted(3, 50)),
    ];
    assert_eq!(broken(&events), []);
    events[2].0 = 8;
    events.truncate(3);
    events.extend([(6, 2, 3, asked(Exclusive)), (7, 2, 3, granted(3, 50))]);
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn what_the_dead_have_handed_over_is_held() {
    let events = [
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::HandedOver),
        (4, 0, 0, ENDS),
        (6, 2, 2, asked(Exclusive)),
        (7, 2, 2, granted(2, 90)),
    ];
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn a_resumed_lease_was_held_all_the_time() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::HandedOver),
        (10, 2, 2, resuming(1)),
        (14, 2, 2, granted(2, 90)),
        (15, 2, 2, What::Releasing),
    ];
    assert_eq!(broken(&events), []);
    // Somebody in between, for so short that it overlaps with neither stretch.
    events.extend([
        (4, 3, 3, asked(Exclusive)),
        (11, 3, 3, granted(3, 99)),
        (12, 3, 3, What::Releasing),
    ]);
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn what_was_over_before_its_resumer_knew_may_be_anothers() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::HandedOver),
        (10, 2, 2, resuming(1)),
        // Its process stands still, past the end of the lease.
        (60, 3, 3, asked(Exclusive)),
        (61, 3, 3, granted(4, 90)),
        (62, 3, 3, What::Releasing),
        (70, 2, 2, granted(3, 69)),
    ];
    assert_eq!(broken(&events), []);
    // The first holder's own stretch still counts.
    events.extend([(5, 4, 4, asked(Exclusive)), (6, 4, 4, granted(2, 9))]);
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn of_two_resumers_one_wins() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::HandedOver),
        (4, 2, 2, resuming(1)),
        (5, 3, 3, resuming(1)),
        (6, 2, 2, granted(2, 90)),
        (7, 3, 3, What::Lost),
    ];
    assert_eq!(broken(&events), []);
    events[6].3 = granted(3, 90);
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn a_resumed_fence_grows_and_passes_no_queue() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(5, 50)),
        (3, 1, 1, What::HandedOver),
        (4, 3, 3, asked(Exclusive)),
        (5, 3, 3, QUEUED),
        (6, 2, 2, resuming(1)),
        (7, 2, 2, granted(6, 90)),
        (8, 2, 2, What::Releasing),
        (9, 3, 3, granted(7, 90)),
    ];
    assert_eq!(broken(&events), []);
    events[6].3 = granted(4, 90);
    assert_eq!(broken(&events), [Rule::Fences]);
}

#[test]
fn a_break_ends_the_lease_it_names() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        // The answer comes after it was broken already.
        (5, 1, 1, granted(1, 50)),
        (6, 0, 1, ended(1, 3)),
        (7, 2, 2, asked(Exclusive)),
        (8, 2, 2, granted(2, 50)),
    ];
    assert_eq!(broken(&events), []);
    events[2].3 = ended(9, 3);
    assert_eq!(broken(&events), [Rule::Exclusion]);
    // Without an answer any may have been broken that was asked for before.
    events[2].3 = What::Broken { fence: None, since: Moment::from_nanos(3) };
    assert_eq!(broken(&events), []);
    events[0].0 = 7;
    events[1].0 = 7;
    assert_eq!(broken(&events), [Rule::Exclusion]);
}

#[test]
fn what_was_broken_is_not_renewed() {
    let renewed = What::Renewed { until: Moment::from_nanos(60) };
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::Renewing),
        (5, 0, 1, ended(1, 4)),
        (6, 1, 1, renewed), // it was asked for before
    ];
    assert_eq!(broken(&events), []);
    events[2].0 = 6;
    events[4].0 = 7;
    assert_eq!(broken(&events), [Rule::Revived]);
    events[3].3 = ended(9, 4);
    assert_eq!(broken(&events), []);
}

#[test]
fn what_was_broken_is_not_resumed() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, granted(1, 50)),
        (3, 1, 1, What::HandedOver),
        (5, 0, 1, ended(1, 4)),
        (6, 2, 2, resuming(1)),
        (7, 2, 2, What::Lost),
    ];
    assert_eq!(broken(&events), []);
    events[5].3 = granted(2, 90);
    assert_eq!(broken(&events), [Rule::Revived]);
}

#[test]
fn who_is_stopped_or_broken_in_the_queue_may_be_passed() {
    let passed = |before: What, who: u32, after: What| {
        broken(&[
            (1, 1, 1, asked(Exclusive)),
            (2, 0, 1, QUEUED),
            (3, 0, who.into(), before),
            (4, 2, 2, asked(Exclusive)),
            (5, 2, 2, granted(1, 10)),
            (6, 2, 2, What::Releasing),
            (7, 0, 0, after),
            (8, 1, 1, granted(2, 50)),
        ])
    };
    assert_eq!(passed(STOPS, 0, GOES), []);
    assert_eq!(passed(ended(9, 2), 1, ended(9, 2)), []);
    let stalled = |since| What::Stalled { since: Moment::from_nanos(since) };
    assert_eq!(passed(GOES, 0, stalled(3)), []);
    assert_eq!(passed(GOES, 0, stalled(0)), []);
    // Another was stopped.
    assert_eq!(passed(GOES, 0, What::ProcessStops { who: 2 }), [Rule::Order]);
}

#[test]
fn the_dead_are_overtaken() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 0, 1, QUEUED),
        (3, 0, 0, ENDS),
        (4, 2, 2, asked(Exclusive)),
        (5, 2, 2, granted(1, 10)),
    ];
    assert_eq!(broken(&events), []);
    events.remove(2);
    assert_eq!(broken(&events), [Rule::Order]);
}

#[test]
fn who_stood_still_may_have_missed_its_turn() {
    let mut events = vec![
        (1, 1, 1, asked(Exclusive)),
        (2, 1, 1, QUEUED),
        (3, 2, 2, asked(Exclusive)),
        (4, 2, 2, granted(1, 10)),
        (5, 2, 2, What::Releasing),
        (6, 1, 1, granted(2, 50)),
    ];
    assert_eq!(broken(&events), [Rule::Order]);
    let still = What::StoodStill { since: Moment::from_nanos(3) };
    // Another's standstill is no excuse.
    events.insert(4, (5, 2, 0, still));
    assert_eq!(broken(&events), [Rule::Order]);
    events.insert(4, (5, 1, 0, still));
    assert_eq!(broken(&events), []);
}
