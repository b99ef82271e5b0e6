//! What a mutex shows, in the words of the lock layer.

use std::time::Duration;

use latchwork_lock::chrono::{DateTime, Utc};
use latchwork_lock::{Fence, Holder, Inspection, Owner, Waiter};

use crate::messages::{HolderView, MutexStatus, WaiterView};

/// The holders and waiters of a status.
pub(super) fn inspection(status: &MutexStatus) -> Inspection {
    let now = status.now_us;
    let waiters = status.waiters.iter().zip(1..).map(|(view, place)| waiter(view, place));
    let found = Inspection {
        key: status.resource.clone(),
        holders: status.holders.iter().map(|view| holder(view, now)).collect(),
        waiters: waiters.collect(),
    };
    found.with_expected_waits(date(now))
}

/// A holder, as of a time.
pub(super) fn holder(view: &HolderView, now: u64) -> Holder {
    Holder {
        owner: view.owner.as_deref().and_then(|name| Owner::new(name).ok()),
        process: view.process.clone(),
        mode: view.mode,
        fence: Fence::new(view.fence),
        since: date(view.since_us),
        expires_at: date(view.expires_us),
        expires_in: Duration::from_micros(view.expires_us.saturating_sub(now)),
        note: view.note.clone(),
    }
}

fn waiter(view: &WaiterView, position: usize) -> Waiter {
    Waiter {
        owner: view.owner.as_deref().and_then(|name| Owner::new(name).ok()),
        process: view.process.clone(),
        mode: view.mode,
        position,
        since: date(view.since_us),
        expected_wait: None,
        note: view.note.clone(),
    }
}

fn date(micros: u64) -> DateTime<Utc> {
    i64::try_from(micros).ok().and_then(DateTime::from_timestamp_micros).unwrap_or_default()
}
