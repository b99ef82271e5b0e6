//! The loop of a request that waits in a backend's queue.
//!
//! The waiter [registers](super::waiters), sends its request and, while it is queued, sends it again
//! whenever its position may have changed, until it is granted or its deadline has passed. The
//! backend decides each attempt by the [rules](crate::rules), in one atomic step.

use std::sync::Arc;
use std::time::Duration;

use super::cancel::{CancelFlag, CancelOnDrop};
use super::waiters::WaiterRegistry;
use crate::rules::{Decision, Id, Requester};
use crate::{AcquireRequest, Acquired, Clock, Holder, Key, Moment, Result, Wait};

/// Where requests are decided.
pub(crate) trait AcquireBackend: Sync {
    fn clock(&self) -> &Arc<dyn Clock>;

    fn waiters(&self) -> &Arc<WaiterRegistry>;

    /// Sends the request once. Dropped, it may still be decided: see [`AcquireAttempt::caller`].
    fn attempt(
        &self,
        attempt: AcquireAttempt,
    ) -> impl Future<Output = Result<AttemptOutcome>> + Send;

    /// The request is queued: makes sure that the waiters of this process are woken.
    fn watch_waiters(&self);

    /// Queues a release, which also leaves the queue.
    fn release_later(&self, key: &Key, id: Id);
}

/// One attempt of a request.
pub(crate) struct AcquireAttempt {
    pub(crate) request: AcquireRequest,
    pub(crate) id: Id,
    /// Until when its place is kept, and how long that is from now on: until it waits no longer, and as
    /// long after that as the request wants.
    pub(crate) deadline: Moment,
    pub(crate) patience: Duration,
    /// Whether an attempt before was queued.
    pub(crate) has_waited: bool,
    /// An attempt whose caller has gone must not be granted: the release that follows it may have
    /// been there before.
    pub(crate) caller: CancelFlag,
}

/// The answer to an attempt.
pub(crate) struct AttemptOutcome {
    pub(crate) decision: Decision,
    /// Whether the ttl of the grant began with this very attempt.
    pub(crate) began: bool,
    pub(crate) holder: Option<Box<Holder>>,
    /// For the first in the queue: how long until something ahead of it expires.
    pub(crate) due_in: Option<Duration>,
}

/// Requests a lease and waits as the request says.
///
/// A request that [keeps](AcquireRequest::keep) its place is never released here, neither at its
/// deadline nor when it is dropped: another call with its token, perhaps in another process, may
/// have gone on with it, and may even have been granted the key.
///
/// Cancel safe: dropped, the request is released, unless it keeps its place.
pub(crate) async fn acquire(
    backend: &impl AcquireBackend,
    request: &AcquireRequest,
    id: Id,
) -> Result<Acquired> {
    let clock = backend.clock();
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let caller = CancelOnDrop::new();
    let keeps = !request.keep.is_zero();
    let mut queued = ReleaseOnDrop { backend, key: &request.key, id, caller, keeps, armed: true };
    let waiter = backend.waiters().register(request, id);
    let mut has_waited = false;
    loop {
        if let Some(grant) = waiter.take_grant().await {
            queued.armed = false;
            return Ok(Acquired::Granted(grant));
        }
        let sent_at = clock.now();
        let keep = if request.wait == Wait::No { Duration::ZERO } else { request.keep };
        let attempt = AcquireAttempt {
            request: request.clone(),
            id,
            deadline: deadline.after(keep),
            patience: deadline.since(sent_at).saturating_add(keep),
            has_waited,
            caller: queued.caller.flag(),
        };
        match backend.attempt(attempt).await {
            Ok(AttemptOutcome { decision: Decision::Granted(mut grant), began, .. }) => {
                queued.armed = false;
                grant.waited |= has_waited;
                // The ttl began after this moment.
                grant.trusted_from = (grant.waited && began).then_some(sent_at);
                return Ok(Acquired::Granted(grant));
            }
            Ok(AttemptOutcome { decision: Decision::Refused, holder, .. }) => {
                queued.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(AttemptOutcome { decision: Decision::Queued, due_in, .. }) => {
                has_waited = true;
                if keeps && clock.now() >= deadline {
                    queued.armed = false;
                    return Ok(Acquired::Taken(None));
                }
                waiter.set_due(due_in.map_or(Moment::NEVER, |left| clock.now().after(left)));
                backend.watch_waiters();
                waiter.changed(&**clock, deadline).await;
            }
            Err(error) => {
                // A retry with this token keeps its place in the queue: no release may overtake it.
                queued.armed = !error.is_temporary();
                return Err(error);
            }
        }
    }
}

impl AcquireAttempt {
    /// Whether a grant that was there before is to last its whole ttl again; see
    /// [`AcquireRequest::keep`].
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn extends(&self) -> bool {
        !self.request.keep.is_zero() && self.request.wait == Wait::No
    }

    /// The requester, as the rules have it.
    pub(crate) fn requester<X>(&self, now: Moment, extra: X) -> Requester<X> {
        Requester {
            id: self.id,
            mode: self.request.mode,
            owner: self.request.owner.clone(),
            note: self.request.note.clone(),
            ttl: self.request.ttl,
            since: now,
            extra,
        }
    }
}

impl AttemptOutcome {
    /// Of a decision whose grant began with this attempt.
    pub(crate) fn of(decision: Decision) -> Self {
        AttemptOutcome { decision, began: true, holder: None, due_in: None }
    }
}

/// A request that is in the queue, or about to be. Dropped, it is released, or keeps its place.
struct ReleaseOnDrop<'a, B: AcquireBackend> {
    backend: &'a B,
    key: &'a Key,
    id: Id,
    caller: CancelOnDrop,
    keeps: bool,
    armed: bool,
}

impl<B: AcquireBackend> Drop for ReleaseOnDrop<'_, B> {
    fn drop(&mut self) {
        if self.armed {
            // Cancel before the release: an attempt that is decided after the release sees it.
            self.caller.cancel();
            if !self.keeps {
                self.backend.release_later(self.key, self.id);
            }
        }
    }
}
