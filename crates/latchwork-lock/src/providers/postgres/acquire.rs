//! One attempt of a request: in a message that it may share where that is enough, else by the rules.

use super::batches::Batches;
use super::message::BatchOutcome;
use super::record::RequesterInfo;
use super::scripts::{AcquireCall, AcquireReply};
use super::store::{BACKGROUND, Store};
use crate::coordination::acquire::{AcquireAttempt, AttemptOutcome};
use crate::coordination::server_record;
use crate::rules::Decision;
use crate::{Result, Wait};

const DURING: &str = "acquiring a lease";

/// Decides an attempt.
pub(super) async fn attempt(batches: &Batches, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
    // The last attempt after waiting may be granted only if the waiter is still known; and only the
    // rules move a place to another process.
    let is_usual = attempt.request.keep.is_zero() || attempt.request.wait == Wait::No;
    if is_usual
        && (!attempt.has_waited || !attempt.patience.is_zero())
        && let Some(outcome) = try_fast_path(batches, &attempt).await?
    {
        return Ok(outcome);
    }
    let store = batches.store.clone();
    let open = store.open_requests.open(attempt.id);
    let decided = async move {
        let outcome = decide(&store, attempt).await;
        drop(open);
        outcome
    };
    BACKGROUND.run(DURING, decided).await
}

/// One function call in the server, which is enough for most requests; none where the rules must
/// decide.
async fn try_fast_path(
    batches: &Batches,
    attempt: &AcquireAttempt,
) -> Result<Option<AttemptOutcome>> {
    let AcquireAttempt { request, id, patience, has_waited, .. } = attempt;
    let patience = (request.wait != Wait::Forever).then_some(*patience);
    let open = batches.store.open_requests.open(*id);
    let call = AcquireCall::new(request, *id, patience, *has_waited, open);
    // If the answer was lost, the rules see by its id whether the server got the request.
    let BatchOutcome::Done(reply) = batches.acquire(call).await? else { return Ok(None) };
    Ok(Some(match reply {
        AcquireReply::Granted(grant) => AttemptOutcome::of(Decision::Granted(grant)),
        AcquireReply::Queued(due_in) => {
            AttemptOutcome { due_in, ..AttemptOutcome::of(Decision::Queued) }
        }
        AcquireReply::Refused(holder) => {
            AttemptOutcome { holder, ..AttemptOutcome::of(Decision::Refused) }
        }
    }))
}

async fn decide(store: &Store, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
    let id = attempt.id;
    let wait = !attempt.patience.is_zero();
    let returns = !attempt.request.keep.is_zero() && !attempt.has_waited && wait;
    let (decided, rules, now) = store
        .edit_for(DURING, &attempt.request.key, returns.then_some(id), |rules, edit| {
            // Under the key's lock: the release that follows a cancelled request comes after this.
            if attempt.caller.is_cancelled() {
                return (Decision::Refused, false);
            }
            let now = edit.now;
            let queued = rules.queue.iter().find(|w| w.id == id).map(|w| w.extra.clone());
            let until = now.after(attempt.patience);
            let new = || RequesterInfo::new(&store.process, &store.client, until);
            let extra = match queued {
                None => new(),
                // A new call goes on with the place of an earlier one, which may have been made in
                // another process: from now on this one tells whether its waiter lives.
                Some(queued) if returns => {
                    let mut moved = new();
                    moved.place = queued.place;
                    moved
                }
                // A waiter that is queued already stays as it was, and costs no write.
                Some(queued) => queued,
            };
            let requester = attempt.requester(now, extra);
            let fences = &mut edit.fences();
            let mut decided =
                rules.request_in_turn(requester, wait, attempt.has_waited, now, fences);
            if attempt.extends() && matches!(decided.0, Decision::Granted(_)) {
                rules.extend(id, attempt.request.ttl, now);
                decided.1 = true;
            }
            decided
        })
        .await?;
    if decided.0 == Decision::Queued {
        store.waiters.mark_queued(id);
    }
    Ok(server_record::outcome(decided, &rules, id, now))
}
