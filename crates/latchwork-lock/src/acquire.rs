//! One request to the provider, repeated while the backend is unavailable (L17).

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::deadlock::{Waiting, log_own_holder};
use crate::retry::Backoff;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Grant, Held, Holder, Locks, Moment, Proof, Result,
    Wait, process_label,
};

/// What a provider answered to a pending lease.
pub(crate) enum Answer {
    /// The lease is held, and its grant is stored in it.
    Granted,
    /// Another holder has the key.
    Taken(Option<Box<Holder>>),
    /// The request failed.
    Failed(Error),
    /// The provider does not answer without waiting: `acquire` must be awaited.
    NotInPlace,
}

impl Held {
    /// Requests the lease and waits for it. The inner result is the provider's answer; its error is
    /// always that another holder has the key.
    ///
    /// In place, because a lease is some 300 bytes and each layer of futures would copy it.
    pub(crate) async fn acquire(&mut self) -> Result<Result<()>> {
        let first = poll_fn(|cx| Poll::Ready(self.poll_provider(false, cx.waker()))).await;
        match first {
            Poll::Ready(Answer::Granted) => Ok(Ok(())),
            first => self.finish(first, true).await,
        }
    }

    /// Continues after the first poll; `registered` when that poll left the waker of this task.
    pub(crate) async fn finish(
        &mut self,
        first: Poll<Answer>,
        mut registered: bool,
    ) -> Result<Result<()>> {
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let queued = LeaveQueueOnDrop(self);
                let _waiting = Waiting::begin(queued.0)?;
                let answer = poll_fn(|cx| {
                    if std::mem::take(&mut registered) {
                        return Poll::Pending;
                    }
                    queued.0.poll_provider(true, cx.waker())
                })
                .await;
                queued.disarm();
                answer
            }
        };
        match answer {
            Answer::Granted => Ok(Ok(())),
            Answer::Taken(holder) => Ok(Err(self.taken(self.request.wait, holder))),
            Answer::Failed(error) => Err(error),
            Answer::NotInPlace => {
                let _waiting = Waiting::begin(self)?;
                Box::pin(self.acquire_with_retry()).await
            }
        }
    }

    /// Requests the lease, and again with the same token while the backend is unavailable.
    async fn acquire_with_retry(&mut self) -> Result<Result<()>> {
        let started = self.request.sent_at;
        let patience = self.request.wait;
        let deadline = match patience {
            Wait::No => started,
            Wait::For(timeout) => started.after(timeout),
            Wait::Forever => Moment::NEVER,
        };
        let mut backoff = None;
        loop {
            let clock = self.locks.clock();
            let release = ReleaseOnDrop::new(&self.locks, &self.request);
            let error = match self.locks.provider().acquire(&self.request).await {
                Ok(Acquired::Granted(grant)) => {
                    // An answer that took long, or that a repeated request found, may be as old as
                    // the first request. A caller must not be given a lease that is nearly over.
                    let from = grant.trusted_from.unwrap_or(self.request.sent_at);
                    let at_once = backoff.is_none() && !grant.waited;
                    let known = at_once || grant.trusted_from.is_some();
                    let fresh = known && clock.now().since(from) < self.request.ttl / 2;
                    match if fresh { Ok(Some(grant)) } else { self.begin_term(grant).await } {
                        Ok(Some(grant)) => {
                            release.disarm();
                            self.granted(grant);
                            return Ok(Ok(()));
                        }
                        Ok(None) => None,
                        Err(error) => Some(error),
                    }
                }
                Ok(Acquired::Taken(holder)) => {
                    release.disarm();
                    return Ok(Err(self.taken(patience, holder)));
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if !error.is_temporary() {
                    release.disarm(); // the backend rejected it: there is nothing to release
                    return Err(error);
                }
                let now = clock.now();
                if now >= deadline {
                    return Err(error); // and the drop queues a release
                }
                tracing::debug!(key = self.key(), %error, "retrying a lock request");
                let pause = backoff.get_or_insert_with(Backoff::first).pause();
                clock.sleep_until(now.after(pause).min(deadline)).await;
            }
            backoff.get_or_insert_with(Backoff::first);
            let now = clock.now();
            release.disarm();
            self.request.sent_at = now;
            let left = deadline.since(now);
            if patience != Wait::Forever {
                self.request.wait = if left.is_zero() { Wait::No } else { Wait::For(left) };
            }
        }
    }

    /// Asks a provider that answers without waiting; `again` after it has queued this request.
    #[inline]
    pub(crate) fn poll_provider(&mut self, again: bool, waker: &Waker) -> Poll<Answer> {
        match self.locks.provider().poll_acquire(&self.request, again, waker) {
            Some(Poll::Ready(Ok(Acquired::Granted(grant)))) => {
                self.granted(grant);
                Poll::Ready(Answer::Granted)
            }
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Ok(Acquired::Taken(holder)))) => Poll::Ready(Answer::Taken(holder)),
            Some(Poll::Ready(Err(error))) => Poll::Ready(Answer::Failed(error)),
            None => Poll::Ready(Answer::NotInPlace),
        }
    }

    fn taken(&self, patience: Wait, holder: Option<Box<Holder>>) -> Error {
        let waited = match patience {
            Wait::No => Duration::ZERO,
            _ => self.locks.clock().now().since(self.since()),
        };
        if patience != Wait::No && holder.as_ref().is_some_and(|by| by.process == process_label()) {
            log_own_holder(self);
        }
        ErrorKind::LockAcquisition { key: self.key().to_owned(), waited, holder }.into()
    }

    /// Starts the ttl of a grant anew; none when the lease is over already.
    async fn begin_term(&self, grant: Grant) -> Result<Option<Grant>> {
        let now = self.locks.clock().now();
        let held = self.locks.provider().renew(self.proof(), self.request.ttl).await?;
        Ok(held.then_some(Grant { trusted_from: Some(now), ..grant }))
    }
}

impl Error {
    /// That somebody else has the key, as a value.
    pub(crate) fn unless_taken<T>(self) -> Result<Option<T>> {
        match self.kind() {
            ErrorKind::LockAcquisition { .. } => Ok(None),
            _ => Err(self),
        }
    }
}

/// A request in the queue of a provider that answers without waiting. Dropped, it leaves the queue.
struct LeaveQueueOnDrop<'a>(&'a mut Held);

impl LeaveQueueOnDrop<'_> {
    /// The provider has answered: the request is no longer queued.
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for LeaveQueueOnDrop<'_> {
    fn drop(&mut self) {
        self.0.locks.provider().release_later(self.0.proof());
    }
}

/// Queues a release when it is dropped: the backend may grant a request whose caller has gone.
pub(crate) struct ReleaseOnDrop<'a> {
    locks: &'a Locks,
    request: &'a AcquireRequest,
}

impl<'a> ReleaseOnDrop<'a> {
    pub(crate) fn new(locks: &'a Locks, request: &'a AcquireRequest) -> Self {
        ReleaseOnDrop { locks, request }
    }

    /// The caller has the answer: nothing is released.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        self.locks
            .provider()
            .release_later(Proof { key: &self.request.key, token: self.request.token });
    }
}
