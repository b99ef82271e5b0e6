//! One question to the provider, with patience (L17).

use std::time::Duration;

use crate::retry::Backoff;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Grant, Held, Locks, Moment, Proof, Result, Wait,
};

impl Held {
    /// The grant, where the provider can tell at once that it is ours.
    #[inline]
    pub(crate) fn ask_now(&self) -> Result<Option<Grant>> {
        match self.locks.provider().acquire_now(&self.request) {
            Some(Ok(Acquired::Granted(grant))) => Ok(Some(grant)),
            Some(Err(error)) => Err(error),
            Some(Ok(Acquired::Taken(_))) | None => Ok(None),
        }
    }

    /// Asks, waits and, while the backend is away, asks again with the same token. The inner
    /// result is the answer, its error always that somebody else has the key.
    pub(crate) async fn ask(mut self: Box<Self>) -> Result<Result<Box<Self>>> {
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
                    let fresh = tries.is_none() || grant.trusted_from.is_some();
                    match if fresh { Ok(Some(grant)) } else { self.begin_term(grant).await } {
                        Ok(Some(grant)) => {
                            abandoned.disarm();
                            return Ok(Ok(self.granted(grant)));
                        }
                        Ok(None) => None,
                        Err(error) => Some(error),
                    }
                }
                Ok(Acquired::Taken(holder)) => {
                    abandoned.disarm();
                    let waited = match patience {
                        Wait::No => Duration::ZERO,
                        _ => clock.now().since(started),
                    };
                    let key = self.key().to_owned();
                    return Ok(Err(ErrorKind::LockAcquisition { key, waited, holder }.into()));
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

    /// A grant found on asking again may be as old as the first question: starts its ttl anew.
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
