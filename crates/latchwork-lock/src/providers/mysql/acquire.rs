//! One attempt of a request: by a statement of its own where that is enough, else by the rules.

use super::record::RequesterInfo;
use super::release::release;
use super::store::{BACKGROUND, Store, TakeOutcome};
use crate::coordination::acquire::{AcquireAttempt, AttemptOutcome};
use crate::coordination::server_record;
use crate::rules::{Decision, Requester};
use crate::{Grant, Moment, Result, Wait};
use std::sync::Arc;
use std::time::Duration;

const DURING: &str = "acquiring a lease";

/// Decides an attempt, in a job that runs to its end.
pub(super) async fn attempt(store: &Arc<Store>, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
    let store = store.clone();
    BACKGROUND.run(DURING, async move { decide(&store, attempt).await }).await
}

async fn decide(store: &Store, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
    let id = attempt.id;
    if !attempt.has_waited
        && let Some(outcome) = try_fast_path(store, &attempt).await?
    {
        return Ok(outcome);
    }
    let wait = !attempt.patience.is_zero();
    let (decided, rules, now) = store
        .edit(DURING, &attempt.request.key, |rules, edit| {
            // Under the key's lock: the release that follows a cancelled request comes after this,
            // or came before it, and before what the fast path may have done.
            if attempt.caller.is_cancelled() {
                rules.release(id);
                rules.leave(id);
                return (Decision::Refused, false);
            }
            let now = edit.now;
            // A waiter that is queued already stays as it was, and costs no write.
            let queued = rules.queue.iter().find(|w| w.id == id).map(|w| w.extra.clone());
            let requester = requester(store, &attempt, now, queued);
            rules.request_in_turn(requester, wait, attempt.has_waited, now, &mut edit.fences())
        })
        .await?;
    if decided.0 == Decision::Queued {
        store.waiters.mark_queued(id);
    }
    Ok(server_record::outcome(decided, &rules, id, now))
}

/// Takes a free key or queues behind an exclusive holder, in one message; none where the rules must
/// decide.
async fn try_fast_path(store: &Store, attempt: &AcquireAttempt) -> Result<Option<AttemptOutcome>> {
    if attempt.caller.is_cancelled() {
        return Ok(None);
    }
    let (key, owner) = (&attempt.request.key, &attempt.request.owner);
    let requester = requester(store, attempt, Moment::default(), None);
    let taken = if store.waiters.has_waiters(key) {
        TakeOutcome::ByWriter // most likely
    } else {
        store.take(DURING, key, &requester).await?
    };
    let patience = (attempt.request.wait != Wait::Forever).then_some(attempt.patience);
    let outcome = match taken {
        TakeOutcome::Granted(fence) => AttemptOutcome::of(Decision::Granted(Grant::first(fence))),
        // A request with an owner may be of the holder itself.
        TakeOutcome::ByWriter if owner.is_none() && attempt.patience > Duration::ZERO => {
            let Some(due_in) = store.enqueue(DURING, key, &requester, patience).await? else {
                return Ok(None);
            };
            store.waiters.mark_queued(attempt.id);
            AttemptOutcome { due_in, ..AttemptOutcome::of(Decision::Queued) }
        }
        _ => return Ok(None),
    };
    if attempt.caller.is_cancelled() {
        // The release that follows a cancelled request may have been there before it.
        release(store, key, attempt.id).await?;
    }
    Ok(Some(outcome))
}

fn requester(
    store: &Store,
    attempt: &AcquireAttempt,
    now: Moment,
    queued: Option<RequesterInfo>,
) -> Requester<RequesterInfo> {
    let until = now.after(attempt.patience);
    let extra = queued.unwrap_or_else(|| RequesterInfo::new(&store.process, &store.client, until));
    attempt.requester(now, extra)
}
