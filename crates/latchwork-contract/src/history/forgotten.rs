//! Who never got an answer.

use std::time::Duration;

use super::check::violation;
use super::lifetimes::lifetimes;
use super::processes::Processes;
use super::{History, Rule, Violation};

/// Requests that had no answer at all when their time and this slack after it were over.
///
/// Those of a process that ended before, or that was stopped meanwhile, could have none, and
/// those that were held up with everybody else. The slack is for a busy machine.
pub fn forgotten(history: &History, slack: Duration) -> Vec<Violation> {
    let events = history.events();
    let Some(last) = events.last() else { return Vec::new() };
    let processes = Processes::of(events);
    let mut found = Vec::new();
    for request in lifetimes(events).into_values().flatten() {
        let process = request.asked.process;
        let due = request.deadline.after(slack);
        let answer = request.answered.unwrap_or(last);
        let wait = (request.asked.at, due.min(answer.at));
        let excused = request.resumes
            || processes.end(process) <= due
            || processes.stopped(process, wait.0, wait.1)
            || processes.stalled(wait.0, wait.1);
        if answer.at > due && !excused {
            found.push(violation(Rule::Forgotten, request.asked, answer));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use latchwork_lock::Mode;
    use latchwork_lock::provider::Moment;

    use super::super::{Event, What};
    use super::*;

    fn told(events: &[(u64, What)]) -> Vec<Violation> {
        let events = events.iter().enumerate().map(|(number, (at, what))| Event {
            at: Moment::from_nanos(*at),
            process: 1,
            number: number as u64,
            key: "k".into(),
            request: 1,
            what: *what,
        });
        forgotten(&History::new(events.collect()), Duration::from_nanos(5))
    }

    const ASKED: What = What::Asked { mode: Mode::Exclusive, until: Moment::from_nanos(10) };
    const ENDS: What = What::ProcessEnds { who: 1 };
    const STOPS: What = What::ProcessStops { who: 1 };
    const GOES: What = What::ProcessGoes { who: 1 };

    #[test]
    fn an_answer_in_time_is_one() {
        assert_eq!(told(&[(1, ASKED), (15, What::GaveUp), (90, ENDS)]), []);
    }

    #[test]
    fn a_late_answer_and_none_are_found() {
        assert_eq!(told(&[(1, ASKED), (16, What::GaveUp)])[0].rule, Rule::Forgotten);
        assert_eq!(told(&[(1, ASKED), (90, ENDS)]).len(), 1);
    }

    #[test]
    fn the_dead_and_the_stopped_are_excused() {
        assert_eq!(told(&[(1, ASKED), (9, ENDS), (90, GOES)]), []);
        assert_eq!(told(&[(1, ASKED), (9, STOPS), (40, GOES), (41, What::GaveUp)]), []);
        let stalled = What::Stalled { since: Moment::from_nanos(12) };
        assert_eq!(told(&[(1, ASKED), (40, stalled), (41, What::GaveUp)]), []);
        // Stopped when it was late already.
        assert_eq!(told(&[(1, ASKED), (30, STOPS), (40, GOES), (41, What::GaveUp)]).len(), 1);
    }
}
