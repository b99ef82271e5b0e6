//! Requests for a lease: how one is made, and how a waiter goes on when it is woken.

use std::sync::Arc;

use super::notify::Notifier;
use super::record;
use super::scripts::AcquireStep;
use super::scripts::response::AcquireResponse;
use super::store::Store;
use super::waiters::handle::WaiterHandle;
use super::waiters::waiter::WakeReason;
use crate::rules::Id;
use crate::{AcquireRequest, Acquired, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// Requests a lease and waits as the request says.
///
/// Cancel safety: a caller that drops the future must release.
pub(super) async fn acquire(
    store: &Arc<Store>,
    notifier: &Notifier,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let id = record::id(request.token);
    let deadline = match request.wait {
        Wait::No => {
            return Ok(match store.acquire(DURING, request, id, AcquireStep::Once).await? {
                AcquireResponse::Granted(grant, _) => Acquired::Granted(grant),
                AcquireResponse::Refused(holder) => Acquired::Taken(holder),
                AcquireResponse::Queued(_) => Acquired::Taken(None),
            });
        }
        Wait::For(span) => store.clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let (handle, behind) = store.waiters.register(&request.key, id);
    let mut step = if behind { AcquireStep::Behind } else { AcquireStep::First };
    let mut sent_at = store.clock.now();
    let mut reason = if behind {
        notifier.start(store);
        enqueue(store, request, id, &handle, deadline).await
    } else {
        WakeReason::Answered(store.acquire(DURING, request, id, step).await)
    };
    loop {
        reason = match reason {
            WakeReason::Granted(grant) => return Ok(Acquired::Granted(grant)),
            WakeReason::GiveUp => return Ok(give_up(store, request)),
            WakeReason::AskAgain => {
                sent_at = store.clock.now();
                let over = sent_at >= deadline;
                step = if over { AcquireStep::Last } else { AcquireStep::Again };
                WakeReason::Answered(store.acquire(DURING, request, id, step).await)
            }
            WakeReason::Answered(response) => match response? {
                AcquireResponse::Granted(mut grant, started) if handle.take_grant(grant.fence) => {
                    grant.waited |= matches!(step, AcquireStep::Again | AcquireStep::Last);
                    // The ttl started in the server, after the request was sent.
                    grant.trusted_from = (grant.waited && started).then_some(sent_at);
                    return Ok(Acquired::Granted(grant));
                }
                AcquireResponse::Granted(..) => handle.wait(&*store.clock, deadline).await,
                AcquireResponse::Refused(holder) => return Ok(Acquired::Taken(holder)),
                AcquireResponse::Queued(expires_in) => {
                    handle.mark_queued(expires_in, &*store.clock);
                    notifier.start(store);
                    handle.wait(&*store.clock, deadline).await
                }
            },
        };
    }
}

/// Joins the queue behind others of this process, and waits.
async fn enqueue(
    store: &Arc<Store>,
    request: &AcquireRequest,
    id: Id,
    handle: &WaiterHandle,
    deadline: Moment,
) -> WakeReason {
    let pending = store.enqueue(DURING, request, id, handle);
    let reason = handle.wait(&*store.clock, deadline).await;
    pending.disarm();
    reason
}

/// Releases what the waiter may hold, without another request: that could find a grant that is about
/// to end. For the same reason this is no error, since the caller could repeat its request after one.
fn give_up(store: &Arc<Store>, request: &AcquireRequest) -> Acquired {
    store.release_later(&request.key, record::id(request.token));
    Acquired::Taken(None)
}
