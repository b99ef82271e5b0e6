//! What the promises forbid.

use std::fmt;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Mode};

use super::lifetimes::{Held, Lifetime, lifetimes};
use super::revived::revived;
use super::{Event, History, What};

/// The rules that a history can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Two were in that exclude each other (L1).
    Exclusion,
    /// A later grant did not get a higher fence (L4).
    Fences,
    /// Somebody was served before one who had queued earlier (L5, L6).
    Order,
    /// A write was let through after one with a newer fence (L20).
    StaleWrite,
    /// A lease was renewed or resumed after an administrator had ended it (L12, L13).
    Revived,
    /// One who waited got no answer in time (L5, L17).
    Forgotten,
}

/// Two events that cannot both have happened under the promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule was broken.
    pub rule: Rule,
    /// What happened first.
    pub first: Event,
    /// What must not have happened after it.
    pub second: Event,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken:\n  {}\n  {}", self.rule, self.first, self.second)
    }
}

/// Everything in a history that the promises forbid.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for requests in lifetimes(history.events()).values() {
        exclusion(requests, &mut found);
        fences(requests, &mut found);
        // Who resumes a lease stands in no queue.
        let queueing: Vec<_> =
            requests.iter().filter(|request| !request.resumes).copied().collect();
        order(&queueing, &mut found);
        overtaken(&queueing, &mut found);
    }
    stale_writes(history.events(), &mut found);
    found.extend(revived(history.events()));
    found
}

pub(super) fn violation(rule: Rule, first: &Event, second: &Event) -> Violation {
    Violation { rule, first: first.clone(), second: second.clone() }
}

/// A sweep over the grants by their start, with those that have not ended yet beside it.
fn exclusion(requests: &[Lifetime<'_>], found: &mut Vec<Violation>) {
    let mut grants: Vec<(Mode, Held<'_>)> = requests
        .iter()
        .filter(|request| !request.passed_on)
        .filter_map(|request| Some((request.mode, request.granted?)))
        .collect();
    grants.sort_by_key(|(_, held)| held.since);
    let mut inside: Vec<(Mode, Held<'_>)> = Vec::new();
    for (mode, held) in grants {
        inside.retain(|(_, other)| other.until > held.since);
        if held.until <= held.since {
            continue; // over before it was known: it overlaps with nothing for sure
        }
        for (other_mode, other) in &inside {
            if mode == Mode::Exclusive || *other_mode == Mode::Exclusive {
                found.push(violation(Rule::Exclusion, other.event, held.event));
            }
        }
        inside.push((mode, held));
    }
}

/// A request made after a grant was known gets a higher fence; and no two get the same.
fn fences(requests: &[Lifetime<'_>], found: &mut Vec<Violation>) {
    let mut grants: Vec<Held<'_>> = requests.iter().filter_map(|r| r.granted).collect();
    grants.sort_by_key(|held| held.fence);
    for pair in grants.windows(2) {
        if pair[0].fence == pair[1].fence {
            found.push(violation(Rule::Fences, pair[0].event, pair[1].event));
        }
    }
    grants.sort_by_key(|held| held.event.at);
    let known = grants.iter().map(|held| (held.event.at, held.fence, held.event));
    for (newest, later) in behind(requests, known) {
        found.push(violation(Rule::Fences, newest, later));
    }
}

/// A request made after another was seen in the queue is served after it. Readers that stand next to
/// each other are let in together, and which of them claims its part first says nothing.
fn order(requests: &[Lifetime<'_>], found: &mut Vec<Violation>) {
    let queued = |mode: Option<Mode>| {
        let certain = requests.iter().filter(move |request| mode.is_none_or(|m| m == request.mode));
        let mut certain: Vec<(Moment, Fence, &Event)> = certain
            .filter(|request| !outlived_its_wait(request))
            .filter_map(|request| {
                let event = request.queued?;
                Some((event.at, request.granted?.fence, event))
            })
            .collect();
        certain.sort_by_key(|(at, ..)| *at);
        certain.into_iter()
    };
    let (readers, writers): (Vec<_>, Vec<_>) =
        requests.iter().copied().partition(|request| request.mode == Mode::Shared);
    let late = behind(&writers, queued(None));
    for (earlier, later) in late.into_iter().chain(behind(&readers, queued(Some(Mode::Exclusive))))
    {
        found.push(violation(Rule::Order, earlier, later));
    }
}

/// Those grants whose fence is lower than one that was certain when they were asked for, with
/// the event that made it certain. Both lists are in the order of time.
fn behind<'a>(
    requests: &[Lifetime<'a>],
    certain: impl Iterator<Item = (Moment, Fence, &'a Event)>,
) -> Vec<(&'a Event, &'a Event)> {
    let mut certain = certain.peekable();
    let mut highest: Option<(Fence, &Event)> = None;
    let mut found = Vec::new();
    for request in requests {
        while let Some((_, fence, event)) = certain.next_if(|(at, ..)| *at < request.asked.at) {
            if highest.is_none_or(|(highest, _)| fence > highest) {
                highest = Some((fence, event));
            }
        }
        if let (Some((fence, event)), Some(held)) = (highest, request.granted)
            && held.fence < fence
        {
            found.push((event, held.event));
        }
    }
    found
}

/// Whether it was served only after its wait was over. It had left the queue by then, and tried once
/// more before it gave up.
fn outlived_its_wait(request: &Lifetime<'_>) -> bool {
    request.granted.is_some_and(|held| held.event.at >= request.deadline)
}

/// A waiter that is not served during its wait must not see one served who asked later.
fn overtaken(requests: &[Lifetime<'_>], found: &mut Vec<Violation>) {
    let starved =
        requests.iter().filter(|request| request.granted.is_none() || outlived_its_wait(request));
    for waiting in starved {
        let Some(queued) = waiting.queued else { continue };
        // In the order of asking, so those who asked later are one stretch of the list.
        let later = requests.partition_point(|request| request.asked.at <= queued.at);
        for request in &requests[later..] {
            if request.asked.at >= waiting.patience {
                break;
            }
            // Readers are let in together: one that gives up before it has claimed its part was
            // not overtaken by the others.
            let together = waiting.mode == Mode::Shared && request.mode == Mode::Shared;
            if let Some(held) = request.granted
                && held.event.at < waiting.patience
                // Its grant may have come first, and been noticed late.
                && waiting.granted.is_none_or(|own| held.fence < own.fence)
                && !together
            {
                found.push(violation(Rule::Order, queued, held.event));
            }
        }
    }
}

/// Writes to one key that were let through carry fences that never fall.
fn stale_writes(events: &[Event], found: &mut Vec<Violation>) {
    let mut writes: Vec<(&str, u64, Fence, &Event)> = events
        .iter()
        .filter_map(|event| match event.what {
            What::Written { fence, place } => Some((event.key.as_str(), place, fence, event)),
            _ => None,
        })
        .collect();
    writes.sort_by_key(|(key, place, ..)| (*key, *place));
    let mut newest: Option<(&str, Fence, &Event)> = None;
    for (key, _, fence, event) in writes {
        match newest {
            Some((same, newer, before)) if same == key && newer > fence => {
                found.push(violation(Rule::StaleWrite, before, event));
            }
            _ => newest = Some((key, fence, event)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history told in short: (time, request, what), all of one key.
    fn told(events: &[(u64, u64, What)]) -> History {
        let events = events.iter().enumerate().map(|(number, (at, request, what))| Event {
            at: Moment::from_nanos(*at),
            process: 1,
            number: number as u64,
            key: "k".into(),
            request: *request,
            what: *what,
        });
        History::new(events.collect())
    }

    fn asked(mode: Mode) -> What {
        What::Asked { mode, until: Moment::from_nanos(1_000) }
    }

    fn granted(fence: u64, until: u64) -> What {
        What::Granted { fence: Fence::new(fence), until: Moment::from_nanos(until) }
    }

    fn written(fence: u64, place: u64) -> What {
        What::Written { fence: Fence::new(fence), place }
    }

    /// The one violation, by the numbers of its events.
    fn only(history: &History) -> (Rule, u64, u64) {
        match check(history).as_slice() {
            [one] => (one.rule, one.first.number, one.second.number),
            other => panic!("one violation was expected: {other:?}"),
        }
    }

    const QUEUED: What = What::Queued { position: 1 };
    use Mode::{Exclusive, Shared};

    #[test]
    fn a_good_history_passes() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, granted(1, 100)),
            (3, 2, asked(Shared)),
            (4, 2, QUEUED),
            (5, 3, asked(Shared)),
            (6, 3, QUEUED),
            (7, 1, written(1, 1)),
            (8, 1, What::Releasing),
            // Both readers at once, the answers in the other order.
            (9, 3, granted(3, 200)),
            (10, 2, granted(2, 200)),
            (11, 4, asked(Exclusive)),
            (12, 4, QUEUED),
            (13, 2, What::Releasing),
            (14, 3, What::Releasing),
            (15, 4, granted(4, 30)),
            // Stopped past its end, and refused: no write of fence 4 behind that of fence 5.
            (31, 5, asked(Exclusive)),
            (32, 5, granted(5, 60)),
            (33, 5, written(5, 2)),
            (34, 4, What::Expired),
        ]);
        assert_eq!(check(&history), []);
    }

    #[test]
    fn two_writers_at_once_are_found() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, granted(1, 50)),
            (3, 2, asked(Exclusive)),
            (4, 2, granted(2, 50)),
            (5, 1, What::Releasing),
        ]);
        assert_eq!(only(&history), (Rule::Exclusion, 1, 3));
    }

    #[test]
    fn a_reader_beside_a_writer_is_found() {
        for (first, second) in [(Shared, Exclusive), (Exclusive, Shared)] {
            let history = told(&[
                (1, 1, asked(first)),
                (2, 1, granted(1, 50)),
                (3, 2, asked(second)),
                (4, 2, granted(2, 50)),
            ]);
            assert_eq!(only(&history), (Rule::Exclusion, 1, 3));
        }
    }

    #[test]
    fn a_renewal_counts() {
        let mut events = vec![
            (1, 1, asked(Exclusive)),
            (2, 1, granted(1, 10)),
            (9, 1, What::Renewed { until: Moment::from_nanos(20) }),
            (11, 2, asked(Exclusive)),
            (12, 2, granted(2, 50)),
        ];
        assert_eq!(only(&told(&events)), (Rule::Exclusion, 1, 4));
        // An answer that came after the end of the trust prolongs nothing.
        events[2].0 = 11;
        assert_eq!(check(&told(&events)), []);
    }

    #[test]
    fn a_broken_lease_may_be_followed() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, granted(1, 50)),
            (3, 1, What::Breaking),
            (4, 2, asked(Exclusive)),
            (5, 2, granted(2, 50)),
        ]);
        assert_eq!(check(&history), []);
    }

    #[test]
    fn a_fence_that_falls_is_found() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, granted(7, 50)),
            (3, 1, What::Releasing),
            (4, 2, asked(Exclusive)),
            (5, 2, granted(6, 50)),
        ]);
        assert_eq!(only(&history), (Rule::Fences, 1, 4));
    }

    #[test]
    fn a_fence_given_twice_is_found() {
        // Asked for at the same time, so that only the sameness is wrong.
        let history = told(&[
            (1, 1, asked(Shared)),
            (2, 2, asked(Shared)),
            (3, 1, granted(7, 50)),
            (4, 2, granted(7, 50)),
        ]);
        assert_eq!(only(&history), (Rule::Fences, 2, 3));
    }

    #[test]
    fn overtaking_in_the_queue_is_found() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, QUEUED),
            (3, 2, asked(Exclusive)),
            (4, 2, granted(1, 10)),
            (5, 2, What::Releasing),
            (6, 1, granted(2, 50)),
        ]);
        assert_eq!(only(&history), (Rule::Order, 1, 3));
    }

    #[test]
    fn readers_are_let_in_together_and_a_writer_between_them_is_not_overtaken() {
        let mut events = vec![
            (1, 1, asked(Shared)),
            (2, 1, QUEUED),
            (3, 2, asked(Shared)),
            (4, 2, granted(1, 10)),
            (5, 1, granted(2, 50)),
        ];
        assert_eq!(check(&told(&events)), []);
        // The first one a writer, and then the second.
        events[0].2 = asked(Exclusive);
        events[3].2 = granted(1, 4);
        assert_eq!(only(&told(&events)), (Rule::Order, 1, 3));
        events[0].2 = asked(Shared);
        events[2].2 = asked(Exclusive);
        assert_eq!(only(&told(&events)), (Rule::Order, 1, 3));
    }

    #[test]
    fn overtaking_one_who_is_never_served_is_found() {
        let mut events = vec![
            (1, 1, asked(Exclusive)),
            (2, 1, QUEUED),
            (3, 2, asked(Shared)),
            (4, 2, granted(1, 10)),
            (9, 1, What::GaveUp),
        ];
        assert_eq!(only(&told(&events)), (Rule::Order, 1, 3));
        // Served after the other had given up.
        events[4].0 = 3;
        assert_eq!(check(&told(&events)), []);
    }

    #[test]
    fn one_whose_wait_is_over_has_left_the_queue_and_may_try_once_more() {
        let mut events = vec![
            (1, 1, What::Asked { mode: Exclusive, until: Moment::from_nanos(10) }),
            (2, 1, QUEUED),
            (3, 2, asked(Shared)),
            (12, 2, granted(1, 13)),
            (15, 1, granted(2, 50)),
        ];
        assert_eq!(check(&told(&events)), []);
        // During its wait nobody may overtake it, however late it is served.
        events[3].0 = 4;
        assert_eq!(only(&told(&events)), (Rule::Order, 1, 3));
        // It was served first, and noticed it late.
        (events[3].2, events[4].2) = (granted(2, 50), granted(1, 4));
        assert_eq!(check(&told(&events)), []);
    }

    #[test]
    fn who_asks_before_the_other_was_seen_in_the_queue_may_be_first() {
        let history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 2, asked(Exclusive)),
            (3, 1, QUEUED),
            (4, 2, granted(1, 10)),
            (5, 2, What::Releasing),
            (6, 1, granted(2, 50)),
        ]);
        assert_eq!(check(&history), []);
    }

    #[test]
    fn a_stale_write_is_found() {
        let history = told(&[(1, 1, written(5, 1)), (2, 2, written(6, 2)), (3, 1, written(5, 3))]);
        assert_eq!(only(&history), (Rule::StaleWrite, 1, 2));
    }

    #[test]
    fn keys_are_apart() {
        let mut history = told(&[
            (1, 1, asked(Exclusive)),
            (2, 1, granted(2, 50)),
            (3, 2, asked(Exclusive)),
            (4, 2, granted(1, 50)),
            (5, 1, written(2, 1)),
            (6, 2, written(1, 2)),
        ])
        .events()
        .to_vec();
        for event in history.iter_mut().filter(|event| event.request == 2) {
            event.key = "another".into();
        }
        assert_eq!(check(&History::new(history)), []);
    }

    #[test]
    fn histories_of_several_processes_are_merged() {
        let recorder = super::super::Recorder::new(Vec::new());
        recorder.record("k", 1, asked(Exclusive)).expect("written");
        recorder.record("k", 1, granted(1, u64::MAX)).expect("written");
        let first = recorder.into_inner();
        let recorder = super::super::Recorder::new(Vec::new());
        recorder.record("k", 2, asked(Exclusive)).expect("written");
        recorder.record("k", 2, granted(2, u64::MAX)).expect("written");
        let mut second = recorder.into_inner();
        second.extend_from_slice(b"{\"at\":1,\"pro"); // killed while it wrote
        let history = History::read([second.as_slice(), first.as_slice()]).expect("read");
        assert_eq!(history.events().len(), 4);
        assert!(history.events().is_sorted_by_key(|event| event.at));
        assert_eq!(check(&history)[0].rule, Rule::Exclusion);
        second.extend_from_slice(b"\n{}\n");
        assert!(History::read([second.as_slice()]).is_err(), "a hole in the middle is told");
    }
}
