//! One question to the provider, with patience (L17).

use std::time::Duration;

use crate::retry::Backoff;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Grant, Held, Locks, Moment, Proof, Result, Wait,
};

impl Locks {
    /// The grant, where the provider can tell at once that it is ours.
    pub(crate) fn ask_now(&self, request: &AcquireRequest) -> Result<Option<Grant>> {
        match self.provider().acquire_now(request) {
            Some(Ok(Acquired::Granted(grant))) => Ok(Some(grant)),
            Some(Err(error)) => Err(error),
            Some(Ok(Acquired::Taken(_))) | None => Ok(None),
        }
    }

    /// Asks, waits and, while the backend is away, asks again with the same token. The inner
    /// result is the answer, its error always that somebody else has the key.
    pub(crate) async fn ask(&self, mut request: AcquireRequest) -> Result<Result<Held>> {
        let clock = self.clock();
        let started = clock.now();
        let patience = request.wait;
        let deadline = match patience {
            Wait::No => started,
            Wait::For(timeout) => started.after(timeout),
            Wait::Forever => Moment::NEVER,
        };
        let mut backoff = Backoff::new(Duration::from_millis(50));
        let mut asked_before = false;
        loop {
            let abandoned = Abandoned::new(self, &request);
            let error = match self.provider().acquire(&request).await {
                Ok(Acquired::Granted(grant)) => {
                    let fresh = !asked_before || grant.trusted_from.is_some();
                    let grant = if fresh {
                        Ok(Some(grant))
                    } else {
                        self.begin_term(&request, grant).await
                    };
                    match grant {
                        Ok(Some(grant)) => {
                            abandoned.disarm();
                            return Ok(Ok(Held::new(self, request, grant)));
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
                    let key = self.strip(request.key.as_str()).to_owned();
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
                tracing::debug!(key = %request.key, %error, "asking again");
                clock.sleep_until(now.after(backoff.pause()).min(deadline)).await;
            }
            abandoned.disarm();
            asked_before = true;
            if patience != Wait::Forever {
                request.wait = match deadline.since(clock.now()) {
                    Duration::ZERO => Wait::No,
                    left => Wait::For(left),
                };
            }
        }
    }

    /// A grant found on asking again may be as old as the first question: starts its ttl anew.
    async fn begin_term(&self, request: &AcquireRequest, grant: Grant) -> Result<Option<Grant>> {
        let now = self.clock().now();
        let proof = Proof { key: &request.key, token: request.token };
        let held = self.provider().renew(proof, request.ttl).await?;
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
