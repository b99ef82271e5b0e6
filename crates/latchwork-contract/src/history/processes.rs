//! When the processes of a history were killed, stopped and held up.

use std::collections::BTreeMap;

use latchwork_lock::provider::Moment;

use super::{Event, What};

/// When each process ended, and the stretches in which it stood still.
#[derive(Default)]
pub(super) struct Processes {
    ends: BTreeMap<u32, Moment>,
    stops: BTreeMap<u32, Vec<(Moment, Moment)>>,
    stood_still: BTreeMap<u32, Vec<(Moment, Moment)>>,
    stalls: Vec<(Moment, Moment)>,
}

impl Processes {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut found = Processes::default();
        for event in events {
            match event.what {
                What::ProcessEnds { who: process } => {
                    found.ends.entry(process).or_insert(event.at);
                }
                What::ProcessStops { who: process } => {
                    found.stops.entry(process).or_default().push((event.at, Moment::NEVER));
                }
                What::ProcessGoes { who: process } => {
                    if let Some(stop) = found.stops.entry(process).or_default().last_mut() {
                        stop.1 = event.at;
                    }
                }
                What::StoodStill { since } => {
                    found.stood_still.entry(event.process).or_default().push((since, event.at));
                }
                What::Stalled { since } => found.stalls.push((since, event.at)),
                _ => {}
            }
        }
        found
    }

    /// When it was about to end; never, if nobody told.
    pub(super) fn end(&self, process: u32) -> Moment {
        self.ends.get(&process).copied().unwrap_or(Moment::NEVER)
    }

    /// Whether it was stopped at any time in this stretch.
    pub(super) fn stopped(&self, process: u32, from: Moment, to: Moment) -> bool {
        let stops = self.stops.get(&process);
        stops.is_some_and(|stops| touch(stops, from, to))
    }

    /// Whether it did not run at some time in this stretch, although nobody had stopped it. That
    /// excuses a missed turn, and no missing answer.
    pub(super) fn stood_still(&self, process: u32, from: Moment, to: Moment) -> bool {
        let stretches = self.stood_still.get(&process);
        stretches.is_some_and(|stretches| touch(stretches, from, to))
    }

    /// Whether everybody was held up at any time in this stretch.
    pub(super) fn stalled(&self, from: Moment, to: Moment) -> bool {
        touch(&self.stalls, from, to)
    }
}

fn touch(stretches: &[(Moment, Moment)], from: Moment, to: Moment) -> bool {
    stretches.iter().any(|(begin, end)| *begin <= to && *end >= from)
}
