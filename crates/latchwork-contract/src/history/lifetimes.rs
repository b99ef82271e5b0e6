//! The events of each request, put together.

use std::collections::BTreeMap;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Mode};

use super::processes::Processes;
use super::{Event, What};

/// All that is known of one request.
#[derive(Clone, Copy)]
pub(super) struct Lifetime<'a> {
    pub(super) asked: &'a Event,
    pub(super) mode: Mode,
    /// Until when it said that it would wait.
    pub(super) deadline: Moment,
    /// When it surely wants it no more.
    pub(super) patience: Moment,
    pub(super) queued: Option<&'a Event>,
    /// The first answer of any kind.
    pub(super) answered: Option<&'a Event>,
    pub(super) granted: Option<Held<'a>>,
    /// It goes on with a lease that another request got.
    pub(super) resumes: bool,
    /// Another request goes on with its lease.
    pub(super) passed_on: bool,
    handed_over: bool,
}

/// The stretch in which a lease was surely held.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) event: &'a Event,
    pub(super) fence: Fence,
    pub(super) since: Moment,
    pub(super) until: Moment,
}

type Requests<'a> = BTreeMap<(&'a str, u64), Lifetime<'a>>;

/// The requests of each key, in the order in which they were asked.
pub(super) fn lifetimes(events: &[Event]) -> BTreeMap<&str, Vec<Lifetime<'_>>> {
    let processes = Processes::of(events);
    let mut requests = Requests::new();
    for event in events {
        // Between the writing down of its end and the signal it may have done more.
        if event.at > processes.end(event.process) {
            continue;
        }
        let name = (event.key.as_str(), event.request);
        match event.what {
            What::Asked { mode, until } => {
                requests.insert(name, Lifetime::new(event, mode, until));
            }
            What::Resuming { from, mode } => {
                // Whichever resumer gets it, the first holder's copy may be dead from here on.
                if let Some(first) = requests.get_mut(&(event.key.as_str(), from)) {
                    first.cut(event.at);
                }
                let fresh = Lifetime { resumes: true, ..Lifetime::new(event, mode, event.at) };
                requests.insert(name, fresh);
            }
            _ => {
                if let Some(request) = requests.get_mut(&name) {
                    request.add(event);
                }
            }
        }
    }
    for request in requests.values_mut() {
        request.suffer(&processes);
    }
    breaks(events, &mut requests);
    chains(events, &mut requests);
    let mut keys: BTreeMap<&str, Vec<Lifetime<'_>>> = BTreeMap::new();
    for ((key, _), request) in requests {
        keys.entry(key).or_default().push(request);
    }
    for requests in keys.values_mut() {
        requests.sort_by_key(|request| request.asked.at);
    }
    keys
}

/// Ends what an administrator has ended. It may have been before the holder wrote its grant down,
/// so it goes by the fence and not by the order of events.
fn breaks<'a>(events: &'a [Event], requests: &mut Requests<'a>) {
    for event in events {
        let What::Broken { fence, since } = event.what else { continue };
        // Everything of this key.
        let named = (event.key.as_str(), 0)..=(event.key.as_str(), u64::MAX);
        for ((_, request), lifetime) in requests.range_mut(named) {
            let held = lifetime.granted.map(|held| held.fence);
            let ended = match fence {
                Some(fence) => held == Some(fence),
                None => lifetime.asked.at < event.at,
            };
            if ended {
                lifetime.cut(since);
            } else if *request == event.request || fence.is_none() {
                // It was broken before it was claimed, and its place in the queue with it.
                lifetime.queued = None;
            }
        }
    }
}

/// A lease that was resumed was held from its first grant on, since only a living one can be.
fn chains<'a>(events: &'a [Event], requests: &mut Requests<'a>) {
    for event in events {
        let What::Resuming { from, .. } = event.what else { continue };
        let (first, next) = ((event.key.as_str(), from), (event.key.as_str(), event.request));
        let Some(since) = requests.get(&first).and_then(|first| first.granted) else { continue };
        let Some(held) = requests.get_mut(&next).and_then(|next| next.granted.as_mut()) else {
            continue;
        };
        if held.until <= held.since {
            continue; // over before it was known: nobody can tell until when it was held
        }
        held.since = since.since;
        if let Some(first) = requests.get_mut(&first) {
            first.passed_on = true;
        }
    }
}

impl<'a> Lifetime<'a> {
    fn new(asked: &'a Event, mode: Mode, until: Moment) -> Self {
        Lifetime {
            asked,
            mode,
            deadline: until,
            patience: until,
            queued: None,
            answered: None,
            granted: None,
            resumes: false,
            passed_on: false,
            handed_over: false,
        }
    }

    fn add(&mut self, event: &'a Event) {
        match event.what {
            What::Queued { .. } => {
                self.queued.get_or_insert(event);
            }
            What::Granted { fence, until } => {
                self.answered.get_or_insert(event);
                self.granted = Some(Held { event, fence, since: event.at, until });
            }
            What::Renewed { until } => {
                // Only what was still held can be held for longer.
                if let Some(held) = &mut self.granted
                    && held.until >= event.at
                {
                    held.until = until;
                }
            }
            // That it is lost is learned too late to say since when, so trust is cut here too.
            What::Releasing | What::Breaking | What::Lost | What::Expired => self.cut(event.at),
            What::GaveUp => {
                self.answered.get_or_insert(event);
                self.patience = self.patience.min(event.at);
            }
            What::Failed => {
                self.answered.get_or_insert(event);
                self.patience = self.asked.at;
            }
            What::HandedOver => self.handed_over = true,
            What::Asked { .. }
            | What::Renewing
            | What::Dropped
            | What::Resuming { .. }
            | What::Broken { .. }
            | What::Stalled { .. }
            | What::StoodStill { .. }
            | What::Written { .. }
            | What::ProcessEnds { .. }
            | What::ProcessStops { .. }
            | What::ProcessGoes { .. } => {}
        }
    }

    fn cut(&mut self, at: Moment) {
        if let Some(held) = &mut self.granted {
            held.until = held.until.min(at);
        }
    }

    /// What the end and the stops of its process mean for it.
    fn suffer(&mut self, processes: &Processes) {
        let end = processes.end(self.asked.process);
        self.patience = self.patience.min(end);
        if !self.handed_over {
            self.cut(end);
        }
        // Who stands still does not claim what it is offered, and that passes on.
        let answer = self.answered.map_or(self.deadline, |answer| answer.at);
        let (process, asked) = (self.asked.process, self.asked.at);
        if processes.stopped(process, asked, answer)
            || processes.stood_still(process, asked, answer)
            || processes.stalled(asked, answer)
        {
            self.queued = None;
        }
    }
}
