//! A due time on both clocks: see [`latchwork_sql::sqlite::boot`].
//!
//! What counts from now on (a run-lease, a postponement, what is due at once) is stored on the boot
//! clock too, and judged by it: a wall clock that is set must not take a live process's work, nor
//! keep a dead one's. What a pause waits for is a time of the wall clock, and is judged by that.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::sqlite::boot::{ClockId, Now, OtherClock, Stamp};

use crate::Status;
use crate::store::{ContextHead, Waiting};
use crate::stores::columns::{micros, span, time};

/// The clocks of this process, as the rows of the file know them.
#[derive(Clone)]
pub(super) struct Here {
    clock: Arc<dyn Clock>,
    boot_clock: ClockId,
}

impl Here {
    pub(super) fn new() -> Self {
        let boot_clock = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or(ClockId::UNKNOWN, |id| ClockId::new(&id, 0));
        Here { clock: SystemClock::shared(), boot_clock }
    }

    pub(super) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Here { clock, ..self }
    }

    pub(super) fn now(&self) -> Now {
        let (ns, wall) = (self.clock.now().as_nanos(), micros(self.clock.wall()));
        Now { clock: self.boot_clock, ns, wall }
    }
}

/// The due time of a row on the boot clock that wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DueStamp {
    pub(super) clock: Option<i64>,
    pub(super) ns: Option<i64>,
    /// The due time on the wall clock for which it was written.
    pub(super) of: Option<i64>,
}

impl DueStamp {
    /// What to store of a row that is written now.
    pub(super) fn of(head: &ContextHead, now: Now) -> Self {
        let Some(due_at) = head.due_at.filter(|at| !is_of_wall(head, *at)) else {
            return DueStamp::default();
        };
        if now.clock == ClockId::UNKNOWN {
            return DueStamp::default();
        }
        let mut ns = now.ns_of_wall(micros(due_at));
        if head.run.is_none() && head.retry_at != Some(due_at) {
            // It is due at once, and its wall time may be of before the clock was set.
            ns = ns.min(now.ns);
        }
        DueStamp {
            clock: Some(now.clock.0),
            ns: Some(i64::try_from(ns).unwrap_or(i64::MAX)),
            of: Some(micros(due_at)),
        }
    }

    /// Puts the end of a run-lease or a postponement where the boot clock has it, in terms of the
    /// wall clock as it is now.
    ///
    /// # Errors
    /// [`OtherClock`] when it was written in this boot by a clock that is not ours.
    pub(super) fn correct(self, head: &mut ContextHead, now: Now) -> Result<(), OtherClock> {
        let (Some(clock), Some(ns), Some(due_at)) = (self.clock, self.ns, head.due_at) else {
            return Ok(());
        };
        if self.of != Some(micros(due_at)) {
            return Ok(()); // an older program has written since, which knows the wall clock only
        }
        let ns = now.ns(Stamp { clock: ClockId(clock), at: micros(due_at), ns })?;
        let Some(at) = time(now.stamp(ns).at) else { return Ok(()) };
        if (at - due_at).abs() < NOISE {
            return Ok(());
        }
        if let Some(run) = &mut head.run {
            run.expires_at = at;
            head.due_at = Some(at);
        } else if head.retry_at == Some(due_at) {
            head.retry_at = Some(at);
            head.due_at = Some(at);
        }
        Ok(())
    }
}

/// Two clocks that are read one after the other are never quite apart by the same.
const NOISE: TimeDelta = TimeDelta::milliseconds(10);

/// Whether a due time is one of those that a pause waits for.
fn is_of_wall(head: &ContextHead, due_at: DateTime<Utc>) -> bool {
    let Some(Waiting { wake_at, timeout_at, renew_at, .. }) = &head.waiting else { return false };
    head.run.is_none()
        && head.status == Status::Paused
        && head.retry_at != Some(due_at)
        && [wake_at, timeout_at, renew_at].into_iter().flatten().any(|at| *at == due_at)
}

/// A reading of the clocks as the rules want it.
pub(super) fn wall(now: Now) -> DateTime<Utc> {
    time(now.wall).unwrap_or_default()
}

/// The end of a run-lease that begins now, on both clocks.
pub(super) fn until(now: Now, ttl: Duration) -> Stamp {
    let ttl = u64::try_from(span(ttl)).unwrap_or(0).saturating_mul(1_000);
    now.stamp(now.ns.saturating_add(ttl))
}

pub(super) fn ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
