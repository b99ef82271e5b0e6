//! One attempt of a request: an edit of the key's record.

use std::sync::Arc;

use super::blocking;
use super::store::Store;
use crate::Result;
use crate::coordination::acquire::{AcquireAttempt, AttemptOutcome};
use crate::coordination::waiters::WaiterRegistry;
use crate::reporter::Reporter;
use crate::rules::Decision;

/// Decides an attempt, on a thread that may block.
pub(super) async fn attempt(
    store: &Arc<Store>,
    waiters: &Arc<WaiterRegistry>,
    attempt: AcquireAttempt,
) -> Result<AttemptOutcome> {
    let (store, waiters) = (store.clone(), waiters.clone());
    blocking::run("acquiring a lease", move || decide(&store, &waiters, &attempt)).await
}

fn decide(
    store: &Store,
    waiters: &WaiterRegistry,
    attempt: &AcquireAttempt,
) -> Result<AttemptOutcome> {
    let wait = !attempt.patience.is_zero();
    let ((decision, began), rules) = store.edit(&attempt.request.key, |rules, edit| {
        // Under the key's lock: the release that follows a cancelled request comes after this.
        if attempt.caller.is_cancelled() {
            return (Decision::Refused, false);
        }
        let now = edit.now;
        let requester = attempt.requester(now, store.here.asker(attempt.deadline));
        rules.request_in_turn(requester, wait, attempt.has_waited, now, &mut edit.fences())
    })?;
    let holder = match decision {
        Decision::Refused => rules.holders.first().map(|held| {
            let report = Reporter::new(&*store.clock);
            Box::new(report.holder(held, held.requester.extra.label()))
        }),
        _ => None,
    };
    if decision == Decision::Queued {
        waiters.mark_queued(attempt.id);
    }
    Ok(AttemptOutcome { began, holder, ..AttemptOutcome::of(decision) })
}
