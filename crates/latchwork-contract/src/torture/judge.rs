//! All histories together, and what is to be said of them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::PathBuf;

use latchwork_lock::provider::Moment;

use super::process_context::{ProcessContext, process_of};
use crate::history::{Event, History, Rule, What, check, forgotten};

/// What happened in a run, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Requests that were made.
    pub asked: usize,
    /// Grants, with those by resuming.
    pub granted: usize,
    /// Requests that were seen in a queue, each time.
    pub queued: usize,
    /// Leases that were handed over.
    pub handed_over: usize,
    /// Attempts to resume one.
    pub resuming: usize,
    /// Guards of keys that nobody else asks for, dropped many at a time.
    pub dropped: usize,
    /// Requests that were seen in a queue when their process was killed.
    pub dead_waiters: usize,
    /// Leases that an administrator ended.
    pub broken: usize,
    /// Guarded writes that were let through.
    pub written: usize,
    /// Requests that met an outage.
    pub failed: usize,
    /// Processes that ended or were killed.
    pub ended: usize,
    /// Processes that were stopped for a while.
    pub stopped: usize,
    /// Times when the backend answered nobody.
    pub stalled: usize,
    /// Times when a process did not run for a while.
    pub stood_still: usize,
}

/// How many violations of one rule are shown; there are more in the histories.
const SHOWN: usize = 8;

/// Reads everything and finds nothing.
pub(super) fn judge(context: &ProcessContext, mut troubles: Vec<String>) -> Report {
    let torture = &context.assignment.torture;
    let directory = &context.assignment.directory;
    let history = read(context).expect("what was written can be read");
    let report = Report::of(history.events());
    troubles.extend(lost_updates(context).expect("the gate can be read"));
    if report.granted < 50 || report.queued < 10 || report.dropped < 10 {
        troubles.push("there were too few grants, waits and drops to say anything".to_owned());
    }
    let mut found = check(&history);
    found.extend(forgotten(&history, torture.slack));
    let violations = found.len();
    let mut shown: HashMap<Rule, usize> = HashMap::new();
    found.retain(|violation| {
        let count = shown.entry(violation.rule).or_default();
        *count += 1;
        *count <= SHOWN
    });
    troubles.extend(found.iter().map(ToString::to_string));
    assert!(
        troubles.is_empty(),
        "{torture}\nfound {violations} violations; the histories are in {}\n{report:?}\n{}",
        directory.display(),
        troubles.join("\n")
    );
    // Left behind it harms nobody.
    let _ = fs::remove_dir_all(directory);
    report
}

fn read(context: &ProcessContext) -> io::Result<History> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&context.assignment.directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    let files = files.iter().map(|path| File::open(path).map(BufReader::new));
    let history = History::read(files.collect::<io::Result<Vec<_>>>()?)?;
    let mut events = history.events().to_vec();
    events.extend(writes(context)?);
    Ok(History::new(events))
}

/// The writes as the gate tells them: a writer that was killed could not.
fn writes(context: &ProcessContext) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for key in &context.keys {
        for (number, line) in context.gate.log(key)?.iter().enumerate() {
            events.push(Event {
                at: Moment::default(), // unknown, and its place is what counts
                process: 0,
                number: number as u64,
                key: key.clone(),
                request: line.request,
                what: What::Written { fence: line.fence, place: number as u64 },
            });
        }
    }
    Ok(events)
}

/// Writes of another than the one who had announced itself last: what it had read was old.
fn lost_updates(context: &ProcessContext) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for key in &context.keys {
        let mut holder = None;
        for line in context.gate.log(key)? {
            if line.place == line.read {
                holder = Some(line.request);
            } else if holder != Some(line.request) {
                found.push(format!("an update of {key:?} was lost: {line:?} after {holder:x?}"));
            }
        }
    }
    Ok(found)
}

/// Counts requests that were seen in a queue and not answered when their process ended. Events are
/// in the order of time.
fn dead_waiters(events: &[Event]) -> usize {
    let mut dead = 0;
    let mut waiting = HashSet::new();
    for event in events {
        match event.what {
            What::Queued { .. } => drop(waiting.insert(event.request)),
            What::Granted { .. } | What::GaveUp | What::Failed => {
                waiting.remove(&event.request);
            }
            What::ProcessEnds { who } => {
                let before = waiting.len();
                waiting.retain(|request| process_of(*request) != who);
                dead += before - waiting.len();
            }
            _ => {}
        }
    }
    dead
}

impl Report {
    fn of(events: &[Event]) -> Self {
        let mut report = Report { dead_waiters: dead_waiters(events), ..Report::default() };
        for event in events {
            let count = match event.what {
                What::Asked { .. } => &mut report.asked,
                What::Granted { .. } => &mut report.granted,
                What::Queued { .. } => &mut report.queued,
                What::HandedOver => &mut report.handed_over,
                What::Resuming { .. } => &mut report.resuming,
                What::Dropped => &mut report.dropped,
                What::Broken { .. } => &mut report.broken,
                What::Written { .. } => &mut report.written,
                What::Failed => &mut report.failed,
                What::ProcessEnds { .. } => &mut report.ended,
                What::ProcessStops { .. } => &mut report.stopped,
                What::Stalled { .. } => &mut report.stalled,
                What::StoodStill { .. } => &mut report.stood_still,
                _ => continue,
            };
            *count += 1;
        }
        report
    }
}
