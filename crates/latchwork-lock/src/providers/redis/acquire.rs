//! Requests for a lease: how one is made, and how a waiter goes on when it is woken.

use std::sync::Arc;

use super::notify::Notifier;
use super::record;
use super::scripts::AcquireStep;
use super::scripts::response::AcquireResponse;
use super::store::Store;
use super::waiters::waiter::WakeReason;
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
    // Declared before the handle, and so dropped after it: while the handle exists, a request whose
    // connection is lost is repeated, and the release must follow that.
    let mut pending;
    let (handle, behind) = store.waiters.register(&request.key, id);
    let mut step = if behind { AcquireStep::Behind } else { AcquireStep::First };
    loop {
        let sent_at = store.clock.now();
        let response = if step == AcquireStep::Behind {
            pending = Some(store.enqueue(DURING, request, id, &handle));
            notifier.start(store);
            let reason = handle.wait(&*store.clock, deadline).await;
            if let Some(pending) = pending.take() {
                pending.disarm();
            }
            match reason {
                WakeReason::Answered(response) => response?,
                WakeReason::Granted(grant) => return Ok(Acquired::Granted(grant)),
                WakeReason::AskAgain => {
                    step = next_step(store, deadline);
                    continue;
                }
                WakeReason::GiveUp => return Ok(give_up(store, request)),
            }
        } else {
            store.acquire(DURING, request, id, step).await?
        };
        match response {
            AcquireResponse::Granted(mut grant, started) => {
                grant.waited |= matches!(step, AcquireStep::Again | AcquireStep::Last);
                // The ttl started in the server, after the request was sent.
                grant.trusted_from = (grant.waited && started).then_some(sent_at);
                return Ok(Acquired::Granted(grant));
            }
            AcquireResponse::Refused(holder) => return Ok(Acquired::Taken(holder)),
            AcquireResponse::Queued(expires_in) => {
                handle.mark_queued(expires_in, &*store.clock);
                notifier.start(store);
                match handle.wait(&*store.clock, deadline).await {
                    WakeReason::Granted(grant) => return Ok(Acquired::Granted(grant)),
                    WakeReason::AskAgain | WakeReason::Answered(_) => {
                        step = next_step(store, deadline);
                    }
                    WakeReason::GiveUp => return Ok(give_up(store, request)),
                }
            }
        }
    }
}

/// The next request of a requester that has waited.
fn next_step(store: &Store, deadline: Moment) -> AcquireStep {
    if store.clock.now() >= deadline { AcquireStep::Last } else { AcquireStep::Again }
}

/// Releases what the waiter may hold, without another request: that could find a grant that is about
/// to end. For the same reason this is no error, since the caller could repeat its request after one.
fn give_up(store: &Arc<Store>, request: &AcquireRequest) -> Acquired {
    store.release_later(&request.key, record::id(request.token));
    Acquired::Taken(None)
}
