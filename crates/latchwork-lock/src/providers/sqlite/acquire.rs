//! One attempt of a request: a job of the [writer](super::writer).

use super::boot::LocalProcess;
use super::handle::WriterHandle;
use super::jobs::JobOptions;
use super::record::{ALIVE, RequesterInfo};
use super::store::Edit;
use crate::Result;
use crate::coordination::acquire::{AcquireAttempt, AttemptOutcome};
use crate::reporter::Reporter;
use crate::rules::{Decision, Requester, Rules};

/// Decides an attempt.
pub(super) async fn attempt(
    writer: &WriterHandle,
    attempt: AcquireAttempt,
) -> Result<AttemptOutcome> {
    let key = attempt.request.key.clone();
    let wait = !attempt.patience.is_zero();
    let requester = attempt.requester(writer.here.clock.now(), writer.asker());
    let keep = attempt.request.keep;
    // A call that goes on with its own place does not keep it for longer than its first attempt said.
    let keep_for = (!keep.is_zero() && !attempt.has_waited).then_some(attempt.patience);
    let options = JobOptions { needed: false, waiter: wait.then_some(attempt.id), keep_for };
    let (id, here) = (attempt.id, writer.here.client);
    let change = move |rules: &mut Rules<RequesterInfo>, edit: &mut Edit<'_>| {
        // A later call with this token has gone on with its place in another process, which tells
        // whether its waiter lives.
        let is_moved = || rules.queue.iter().any(|w| w.id == id && w.extra.client != here);
        if !keep.is_zero() && attempt.has_waited && is_moved() {
            return AttemptOutcome::of(Decision::Queued);
        }
        let mut requester: Requester<RequesterInfo> = requester.clone();
        requester.extra.alive = edit.now.after(ALIVE);
        let (now, has_waited) = (edit.now, attempt.has_waited);
        let (decision, mut began) =
            rules.request_in_turn(requester, wait, has_waited, now, &mut edit.fences());
        if attempt.extends() && matches!(decision, Decision::Granted(_)) {
            rules.extend(id, attempt.request.ttl, now);
            began = true;
        }
        AttemptOutcome { began, ..AttemptOutcome::of(decision) }
    };
    writer.edit_with("acquiring a lease", &key, options, name_holder, change).await
}

/// Names a holder to a request that was refused.
fn name_holder(outcome: &mut AttemptOutcome, rules: &Rules<RequesterInfo>, here: &LocalProcess) {
    if outcome.decision == Decision::Refused {
        outcome.holder = rules.holders.first().map(|held| {
            Box::new(Reporter::new(&*here.clock).holder(held, held.requester.extra.label()))
        });
    }
}
