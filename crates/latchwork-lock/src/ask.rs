//! One question to the provider, with patience (L17).

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::deadlock::{Waiting, log_own_holder};
use crate::held_box::HeldBox;
use crate::retry::Backoff;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Grant, Held, Holder, Locks, Moment, Proof, Result,
    Wait, process_label,
};

/// What a provider said.
pub(crate) enum Answer {
    /// The lease is held, and its grant is noted where it stays: it is too large to be handed about.
    Granted,
    /// Somebody else has the key.
    Taken(Option<Box<Holder>>),
    /// It could not be asked.
    Failed(Error),
    /// It does not answer in place: it must be asked properly.
    NotInPlace,
}

impl HeldBox {
    /// Asks for the lease and waits for it. The inner result is the answer, its error always that
    /// somebody else has the key.
    #[inline]
    pub(crate) async fn ask(mut self) -> Result<Result<Self>> {
        match poll_fn(|cx| Poll::Ready(self.look(false, cx.waker()))).await {
            Poll::Ready(Answer::Granted) => Ok(Ok(self)),
            first => self.go_on(first, true).await,
        }
    }

    /// Goes on after the first look; `awaited` when that look left the waker of this very task.
    pub(crate) async fn go_on(
        self,
        first: Poll<Answer>,
        mut awaited: bool,
    ) -> Result<Result<Self>> {
        let (held, answer) = match first {
            Poll::Ready(answer) => (self, answer),
            Poll::Pending => {
                let mut queued = Queued(Some(self));
                let _waiting = queued.begin()?;
                let answer = poll_fn(|cx| {
                    if std::mem::take(&mut awaited) {
                        return Poll::Pending;
                    }
                    queued.look(cx.waker())
                })
                .await;
                (queued.leave(), answer)
            }
        };
        match answer {
            Answer::Granted => Ok(Ok(held)),
            Answer::Taken(holder) => Ok(Err(held.taken(held.request.wait, holder))),
            Answer::Failed(error) => Err(error),
            Answer::NotInPlace => {
                let _waiting = Waiting::begin(&held)?;
                Box::pin(held.ask_patiently()).await
            }
        }
    }

    /// Asks and, while the backend is away, asks again with the same token.
    async fn ask_patiently(mut self) -> Result<Result<Self>> {
        let started = self.request.sent_at;
        let patience = self.request.wait;
        let deadline = match patience {
            Wait::No => started,
            Wait::For(timeout) => started.after(timeout),
            Wait::Forever => Moment::NEVER,
        };
        let mut tries = None;
        loop {
            let clock = self.locks.clock();
            let abandoned = Abandoned::new(&self.locks, &self.request);
            let error = match self.locks.provider().acquire(&self.request).await {
                Ok(Acquired::Granted(grant)) => {
                    // An answer that was long under way, or found on asking again, may be as old
                    // as the first question; nobody should be given a guard that is over.
                    let from = grant.trusted_from.unwrap_or(self.request.sent_at);
                    let at_once = tries.is_none() && !grant.waited;
                    let known = at_once || grant.trusted_from.is_some();
                    let fresh = known && clock.now().since(from) < self.request.ttl / 2;
                    match if fresh { Ok(Some(grant)) } else { self.begin_term(grant).await } {
                        Ok(Some(grant)) => {
                            abandoned.disarm();
                            self.granted(grant);
                            return Ok(Ok(self));
                        }
                        Ok(None) => None,
                        Err(error) => Some(error),
                    }
                }
                Ok(Acquired::Taken(holder)) => {
                    abandoned.disarm();
                    return Ok(Err(self.taken(patience, holder)));
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                if !error.is_temporary() {
                    abandoned.disarm(); // it was refused: there is nothing to give back
                    return Err(error);
                }
                let now = clock.now();
                if now >= deadline {
                    return Err(error); // and a release is queued
                }
                tracing::debug!(key = self.key(), %error, "asking again");
                let pause = tries.get_or_insert_with(Backoff::first).pause();
                clock.sleep_until(now.after(pause).min(deadline)).await;
            }
            tries.get_or_insert_with(Backoff::first);
            let now = clock.now();
            abandoned.disarm();
            self.request.sent_at = now;
            let left = deadline.since(now);
            if patience != Wait::Forever {
                self.request.wait = if left.is_zero() { Wait::No } else { Wait::For(left) };
            }
        }
    }
}

impl Held {
    /// Asks a provider that answers in place, or looks `again` whether there is an answer by now.
    #[inline]
    pub(crate) fn look(&mut self, again: bool, waker: &Waker) -> Poll<Answer> {
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

/// A request in the queue of a provider that answers in place: dropped, it leaves the queue.
struct Queued(Option<HeldBox>);

impl Queued {
    fn begin(&self) -> Result<Option<Waiting>> {
        self.0.as_ref().map_or(Ok(None), |held| Waiting::begin(held))
    }

    fn look(&mut self, waker: &Waker) -> Poll<Answer> {
        self.0.as_mut().map_or(Poll::Pending, |held| held.look(true, waker))
    }

    fn leave(mut self) -> HeldBox {
        let Some(held) = self.0.take() else { unreachable!("only this takes it, and itself") };
        held
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            held.locks.provider().release_later(held.proof());
        }
    }
}

/// A question whose answer nobody may be there to hear: dropped, it queues a release.
pub(crate) struct Abandoned<'a> {
    locks: &'a Locks,
    request: &'a AcquireRequest,
}

impl<'a> Abandoned<'a> {
    pub(crate) fn new(locks: &'a Locks, request: &'a AcquireRequest) -> Self {
        Abandoned { locks, request }
    }

    /// The answer was heard.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.locks
            .provider()
            .release_later(Proof { key: &self.request.key, token: self.request.token });
    }
}
