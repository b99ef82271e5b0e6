//! Shows the state of a key to people.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::rules::{HolderState, Requester, Rules};
use crate::{Clock, Holder, Inspection, Moment, Waiter};

/// Turns moments into wall times for a report, all by one pair of readings.
pub(crate) struct Reporter {
    /// By which it is judged what has run out.
    now: Moment,
    /// By which times are shown, together with the wall clock.
    shown: Moment,
    wall: DateTime<Utc>,
}

impl Reporter {
    pub(crate) fn new(clock: &dyn Clock) -> Self {
        Self::of(clock.now(), clock.wall())
    }

    /// By a pair of readings of a backend's own clock.
    pub(crate) fn of(now: Moment, wall: DateTime<Utc>) -> Self {
        Reporter { now, shown: now, wall }
    }

    /// For leases that begin this much after the moment at which they were granted.
    pub(crate) fn ahead(self, lag: Duration) -> Self {
        Reporter { shown: self.now.after(lag), ..self }
    }

    fn at(&self, moment: Moment) -> DateTime<Utc> {
        wall_at(self.wall, self.shown, moment)
    }

    pub(crate) fn holder<X>(&self, held: &HolderState<X>, process: impl Into<String>) -> Holder {
        Holder {
            owner: held.requester.owner.clone(),
            process: process.into(),
            mode: held.requester.mode,
            fence: held.fence,
            since: self.at(held.requester.since),
            expires_at: self.at(held.expires),
            expires_in: held.expires.since(self.shown),
            note: held.requester.note.as_deref().map(str::to_owned),
        }
    }

    /// Holders and waiters of a key; `process` names the process of a requester.
    pub(crate) fn inspection<X>(
        &self,
        key: &str,
        rules: &Rules<X>,
        process: impl Fn(&X) -> String,
    ) -> Inspection {
        // Two threads may have read the time a tick apart, but who stands first came first.
        let mut latest = Moment::default();
        let waiter = |(at, requester): (usize, &Requester<X>)| {
            latest = latest.max(requester.since);
            Waiter {
                owner: requester.owner.clone(),
                process: process(&requester.extra),
                mode: requester.mode,
                position: at + 1,
                since: self.at(latest),
                expected_wait: None,
                note: requester.note.as_deref().map(str::to_owned),
            }
        };
        let found = Inspection {
            key: key.to_owned(),
            holders: rules
                .holders
                .iter()
                .filter(|h| h.expires > self.now)
                .map(|h| self.holder(h, process(&h.requester.extra)))
                .collect(),
            waiters: rules
                .queue
                .iter()
                .map(|requester| &**requester)
                .enumerate()
                .map(waiter)
                .collect(),
        };
        found.with_expected_waits(self.wall)
    }
}

/// The wall time of a moment, by a pair of readings taken together.
pub(crate) fn wall_at(wall: DateTime<Utc>, now: Moment, moment: Moment) -> DateTime<Utc> {
    let shifted = if moment >= now {
        wall.checked_add_signed(signed(moment.since(now)))
    } else {
        wall.checked_sub_signed(signed(now.since(moment)))
    };
    shifted.unwrap_or(wall)
}

fn signed(span: Duration) -> chrono::TimeDelta {
    chrono::TimeDelta::from_std(span).unwrap_or(chrono::TimeDelta::MAX)
}
