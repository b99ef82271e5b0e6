//! Leases that went on after they were broken.

use std::collections::HashMap;

use latchwork_lock::Fence;

use super::check::violation;
use super::{Event, Rule, Violation, What};

/// What is known of a request while the events go by.
#[derive(Clone, Copy, Default)]
struct Seen<'a> {
    fence: Option<Fence>,
    /// The question that is under way, and the fence of the lease that it is about.
    asked: Option<(&'a Event, Option<Fence>)>,
}

/// Renewals and resumptions that were asked for when the break had been answered already, and
/// went well all the same.
pub(super) fn revived(events: &[Event]) -> Vec<Violation> {
    let mut requests: HashMap<(&str, u64), Seen<'_>> = HashMap::new();
    let mut broken: HashMap<(&str, Fence), &Event> = HashMap::new();
    let mut found = Vec::new();
    for event in events {
        let name = (event.key.as_str(), event.request);
        match event.what {
            What::Broken { fence: Some(fence), .. } => {
                broken.entry((event.key.as_str(), fence)).or_insert(event);
            }
            What::Renewing => {
                let seen = requests.entry(name).or_default();
                seen.asked = Some((event, seen.fence));
            }
            What::Resuming { from, .. } => {
                let first = requests.get(&(event.key.as_str(), from)).copied();
                let about = first.and_then(|first| first.fence);
                requests.insert(name, Seen { fence: None, asked: Some((event, about)) });
            }
            What::Renewed { .. } | What::Granted { .. } => {
                let seen = requests.entry(name).or_default();
                if let Some((asked, Some(fence))) = seen.asked.take()
                    && let Some(broken) = broken.get(&(event.key.as_str(), fence))
                    && broken.at < asked.at
                {
                    found.push(violation(Rule::Revived, broken, event));
                }
                if let What::Granted { fence, .. } = event.what {
                    seen.fence = Some(fence);
                }
            }
            _ => {}
        }
    }
    found
}
