//! The events of each request, put together.

use std::collections::BTreeMap;

use latchwork_lock::{Fence, Mode, Moment};

use super::{Event, What};

/// All that is known of one request.
#[derive(Clone, Copy)]
pub(super) struct Lifetime<'a> {
    pub(super) asked: &'a Event,
    pub(super) mode: Mode,
    /// When it surely wants it no more.
    pub(super) patience: Moment,
    pub(super) queued: Option<&'a Event>,
    pub(super) granted: Option<Held<'a>>,
}

/// The stretch in which a lease was surely held.
#[derive(Clone, Copy)]
pub(super) struct Held<'a> {
    pub(super) event: &'a Event,
    pub(super) fence: Fence,
    pub(super) until: Moment,
}

/// The requests of each key, in the order in which they were asked.
pub(super) fn lifetimes(events: &[Event]) -> BTreeMap<&str, Vec<Lifetime<'_>>> {
    let mut requests: BTreeMap<(&str, u64), Lifetime<'_>> = BTreeMap::new();
    for event in events {
        let name = (event.key.as_str(), event.request);
        if let What::Asked { mode, until } = event.what {
            let fresh =
                Lifetime { asked: event, mode, patience: until, queued: None, granted: None };
            requests.insert(name, fresh);
        } else if let Some(request) = requests.get_mut(&name) {
            request.add(event);
        }
    }
    let mut keys: BTreeMap<&str, Vec<Lifetime<'_>>> = BTreeMap::new();
    for ((key, _), request) in requests {
        keys.entry(key).or_default().push(request);
    }
    for requests in keys.values_mut() {
        requests.sort_by_key(|request| request.asked.at);
    }
    keys
}

impl<'a> Lifetime<'a> {
    fn add(&mut self, event: &'a Event) {
        match event.what {
            What::Queued { .. } => {
                self.queued.get_or_insert(event);
            }
            What::Granted { fence, until } => self.granted = Some(Held { event, fence, until }),
            What::Renewed { until } => {
                // Only what was still held can be held for longer.
                if let Some(held) = &mut self.granted
                    && held.until >= event.at
                {
                    held.until = until;
                }
            }
            // That it is lost is learned too late to say since when, so trust is cut here too.
            What::Releasing | What::Breaking | What::Lost | What::Expired => {
                if let Some(held) = &mut self.granted {
                    held.until = held.until.min(event.at);
                }
            }
            What::GaveUp => self.patience = self.patience.min(event.at),
            What::Asked { .. } | What::Written { .. } => {}
        }
    }
}
