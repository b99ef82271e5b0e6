//! What PostgreSQL and MariaDB store of a requester alike, in microseconds of the server's clock.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::acquire::AttemptOutcome;
use super::liveness::Session;
use crate::reporter::Reporter;
use crate::rules::{Decision, Id, Rules};
use crate::{Fence, Moment};

/// How long a process is believed to be alive after a heartbeat.
pub(crate) const ALIVE: Duration = Duration::from_secs(6);

/// What is stored of a requester besides its request. `C` identifies its provider among all that use
/// the database.
#[derive(Clone, Debug)]
pub(crate) struct RequesterInfo<C> {
    pub(crate) process: Arc<str>,
    pub(crate) client: C,
    /// Its position in the queue; none for one that has just come.
    pub(crate) place: Option<i64>,
    /// When it gives up, by the server's clock.
    pub(crate) until: Moment,
    /// Until when its process is believed to be alive.
    pub(crate) alive: Moment,
}

impl<C: Clone> RequesterInfo<C> {
    pub(crate) fn new(process: &Arc<str>, client: &C, until: Moment) -> Self {
        let (process, client) = (process.clone(), client.clone());
        RequesterInfo { process, client, place: None, until, alive: Moment::NEVER }
    }

    pub(crate) fn label(&self) -> String {
        self.process.as_ref().to_owned()
    }
}

impl<C: Clone + Ord> Session for RequesterInfo<C> {
    type Client = C;

    fn client(&self) -> &C {
        &self.client
    }

    fn alive(&self) -> Moment {
        self.alive
    }
}

/// The answer to an attempt of `id` that the rules have decided at this time of the server.
pub(crate) fn outcome<C: Clone>(
    (decision, began): (Decision, bool),
    rules: &Rules<RequesterInfo<C>>,
    id: Id,
    now: Moment,
) -> AttemptOutcome {
    let holder = match decision {
        Decision::Refused => rules
            .holders
            .first()
            .map(|held| Box::new(reporter(now).holder(held, held.requester.extra.label()))),
        _ => None,
    };
    let is_first = rules.queue.front().is_some_and(|first| first.id == id);
    let due_in = is_first.then(|| rules.next_expiry().since(now));
    AttemptOutcome { decision, began, holder, due_in }
}

/// By one reading of the server's clock.
pub(crate) fn reporter(now: Moment) -> Reporter {
    let wall = DateTime::<Utc>::from_timestamp_micros(micros(now)).unwrap_or_default();
    Reporter::of(now, wall)
}

/// The server's clock as a moment. It is not this machine's, so it must not be compared with one of
/// the provider's clock.
pub(crate) fn moment(micros: i64) -> Moment {
    Moment::from_nanos(micros.max(0).unsigned_abs().saturating_mul(1_000))
}

/// Rounded up: a lease may last a moment longer than its holder thinks, never shorter.
pub(crate) fn ttl_micros(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Rounded up, like the ttl.
pub(crate) fn micros(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

pub(crate) fn fence_of(number: i64) -> Fence {
    Fence::new(number.max(0).unsigned_abs())
}

pub(crate) fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}
