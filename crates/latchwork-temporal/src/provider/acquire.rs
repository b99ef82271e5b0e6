//! One request: from its first signal until it is granted or given up.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, Moment, Wait, process_label};
use latchwork_lock::{Clock, Error, Fence, Key, Result, SystemClock};

use super::link::Links;
use super::report;
use crate::error::NAME;
use crate::messages::{Acquire, Id, OperationKind, Outcome, Patience};
use crate::state::micros;

/// How long a request that does not wait may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How much longer than its wait a request may take that has got no answer yet: a mutex that has to start, or
/// that many ask at once, takes a while to say that it is taken.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Requests a lease and waits as the request says.
///
/// Cancel safe: dropped, the request is released.
pub(super) async fn acquire(links: &Arc<Links>, request: &AcquireRequest) -> Result<Acquired> {
    let clock = SystemClock;
    let started = clock.now();
    let deadline = match request.wait {
        Wait::No => started,
        Wait::For(span) => started.after(span),
        Wait::Forever => Moment::NEVER,
    };
    let lease = id(request.token.expose());
    let mut queued =
        ReleaseOnDrop { links, key: &request.key, lease, answered: false, armed: true };
    let mut waiter = links.register(&request.key, lease);
    let mut again = false;
    loop {
        let sent_at = clock.now();
        let left = deadline.since(sent_at);
        let wait = match request.wait {
            Wait::No => Patience::No,
            Wait::For(_) => Patience::ForMicros(micros(left)),
            Wait::Forever => Patience::Forever,
        };
        let limit = match request.wait {
            Wait::For(_) => left.min(PATIENCE).saturating_add(FIRST_ANSWER),
            Wait::No | Wait::Forever => PATIENCE,
        };
        let kind = OperationKind::Acquire(Acquire {
            lease,
            mode: request.mode,
            owner: request.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            process: process_label().to_owned(),
            note: request.note.as_deref().map(str::to_owned),
            ttl_us: micros(request.ttl),
            wait,
            again,
            workflow: None,
        });
        let outcome = links.perform(&request.key, kind, true, sent_at.after(limit)).await;
        match outcome {
            Ok(Some(Outcome::Granted(granted))) => {
                queued.armed = false;
                let waited = granted.waited || again;
                let mut grant = Grant::first(Fence::new(granted.fence));
                grant.previous_fence = granted.previous_fence.map(Fence::new);
                grant.waited = waited;
                // The ttl began after this moment.
                grant.trusted_from = (waited && granted.began).then_some(sent_at);
                return Ok(Acquired::Granted(grant));
            }
            Ok(Some(Outcome::Refused { holder })) => {
                queued.armed = false;
                let now = u64::try_from(clock.wall().timestamp_micros()).unwrap_or(0);
                let holder = holder.map(|view| Box::new(report::holder(&view, now)));
                return Ok(Acquired::Taken(holder));
            }
            Ok(Some(Outcome::Queued)) => {
                queued.answered = true;
                again = true;
                waiter.mark_queued();
                let turn = std::pin::pin!(waiter.turn());
                if let Either::Right(_) = select(turn, clock.sleep_until(deadline)).await {
                    // The drop leaves the queue.
                    return Ok(Acquired::Taken(None));
                }
            }
            Ok(_) => {
                let reason = "its worker runs another version of Latchwork";
                return Err(Error::backend(NAME, "locking", reason, None));
            }
            Err(error) => {
                let error = error.into_lock_error("locking");
                // A retry with this token keeps its place in the queue: no release may overtake it.
                queued.armed = !error.is_temporary();
                return Err(error);
            }
        }
    }
}

/// A request that is in the queue, or about to be. Dropped, it is released.
struct ReleaseOnDrop<'a> {
    links: &'a Arc<Links>,
    key: &'a Key,
    lease: Id,
    /// Whether the mutex knows it.
    answered: bool,
    armed: bool,
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            // One that got no answer may still arrive: its release is left for it, in a mutex that is
            // started for that if need be.
            self.links.release_later(self.key, self.lease, !self.answered);
        }
    }
}

/// What histories show of a token.
pub(super) fn id(token: u128) -> Id {
    Id::of(&token.to_be_bytes())
}
