//! The in-memory provider with one flaw.
#![allow(dead_code, reason = "each test file that has this module uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, LockProvider, Proof, Token, Wait};
use latchwork_lock::{
    Capabilities, Clock, Fence, Holder, InMemoryLockProvider, Inspection, Key, Page, PageRequest,
    Result,
};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    ExcludesNobody,
    ReleasesForAnybody,
    RenewsForAnybody,
    FenceStands,
    ForgetsDrops,
    ForgetsReleases,
    NeverExpires,
    ExpiresEarly,
    ResumesTwice,
    BreaksNothing,
    BreaksAll,
    ShowsTokens,
    WakesLate,
    WaitsForEver,
    ForgetsWhoWaited,
    TrustsFromTheRequest,
    DeclaresNothing,
}

#[derive(Clone)]
pub(crate) struct Mutant {
    pub(crate) inner: InMemoryLockProvider,
    pub(crate) flaw: Option<Flaw>,
}

impl Mutant {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn ttl(&self, ttl: Duration) -> Duration {
        match self.flaw {
            Some(Flaw::NeverExpires) => Duration::from_secs(3_600),
            Some(Flaw::ExpiresEarly) => ttl / 3,
            _ => ttl,
        }
    }

    fn grant(&self, mut grant: Grant) -> Grant {
        match self.flaw {
            Some(Flaw::FenceStands) => grant.fence = Fence::new(7),
            Some(Flaw::ForgetsWhoWaited) => grant.waited = false,
            _ => {}
        }
        grant
    }
}

impl LockProvider for Mutant {
    fn name(&self) -> &'static str {
        "mutant"
    }
    fn capabilities(&self) -> Capabilities {
        if self.has(Flaw::DeclaresNothing) {
            return Capabilities::NONE;
        }
        self.inner.capabilities()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        let mut request = request.clone();
        request.ttl = self.ttl(request.ttl);
        if self.has(Flaw::ShowsTokens) {
            request.note = Some(format!("{:032x}", request.token.expose()).into());
        }
        if self.has(Flaw::ExcludesNobody) {
            request.wait = Wait::No;
        }
        if self.has(Flaw::WaitsForEver) && request.wait != Wait::No {
            request.wait = Wait::Forever;
        }
        match self.inner.acquire(&request).await? {
            Acquired::Granted(mut grant) => {
                if self.has(Flaw::TrustsFromTheRequest) {
                    grant.trusted_from = Some(request.sent_at);
                }
                if self.has(Flaw::WakesLate) && grant.waited {
                    tokio::time::sleep(Duration::from_millis(900)).await;
                }
                Ok(Acquired::Granted(self.grant(grant)))
            }
            Acquired::Taken(_) if self.has(Flaw::ExcludesNobody) => {
                Ok(Acquired::Granted(Grant::first(Fence::new(u64::MAX >> 2))))
            }
            taken => Ok(taken),
        }
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        let renewed = self.inner.renew(proof, self.ttl(ttl)).await?;
        Ok(renewed || self.has(Flaw::RenewsForAnybody))
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        if self.has(Flaw::ForgetsReleases) {
            return Ok(true);
        }
        if self.has(Flaw::ReleasesForAnybody) {
            return Ok(!self.inner.break_lock(proof.key, None).await?.is_empty());
        }
        let released = self.inner.release(proof).await?;
        Ok(released || self.has(Flaw::ExcludesNobody))
    }
    fn release_later(&self, proof: Proof<'_>) {
        if !self.has(Flaw::ForgetsDrops) {
            self.inner.release_later(proof);
        }
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        self.inner.hand_over(proof).await
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        if self.has(Flaw::ResumesTwice) {
            // Believes whoever comes: somebody holds the key, so it goes on.
            let found = self.inner.inspect(proof.key).await?;
            return Ok(found.holders.first().map(|holder| Grant::first(holder.fence)));
        }
        Ok(self.inner.rotate(proof, fresh, ttl).await?.map(|grant| self.grant(grant)))
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.inner.inspect(key).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        self.inner.list(prefix, page).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        match self.flaw {
            Some(Flaw::BreaksNothing) => Ok(self.inner.inspect(key).await?.holders),
            Some(Flaw::BreaksAll) => self.inner.break_lock(key, None).await,
            _ => self.inner.break_lock(key, fence).await,
        }
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
