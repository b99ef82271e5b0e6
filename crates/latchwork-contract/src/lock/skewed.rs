//! A client whose clock is wrong.

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::{
    AcquireRequest, Acquired, Grant, LockProvider, Moment, Proof, Sleep, Token,
};
use latchwork_lock::{
    Capabilities, Clock, Fence, Holder, Inspection, Key, Page, PageRequest, Result,
};

/// Wraps a provider so that the process which uses it has a clock that is ahead.
///
/// Nothing that the backend decides may change (L2). Not for providers whose backend is this very
/// process: there the client's clock *is* the backend's.
pub(super) struct Skewed<P> {
    inner: P,
    clock: Arc<Ahead>,
}

struct Ahead {
    right: Arc<dyn Clock>,
    by: Duration,
}

impl<P: LockProvider> Skewed<P> {
    /// The provider as a client sees it whose clock is ahead by this much.
    pub(super) fn new(inner: P, by: Duration) -> Self {
        let clock = Arc::new(Ahead { right: inner.clock(), by });
        Skewed { inner, clock }
    }
}

impl Clock for Ahead {
    fn now(&self) -> Moment {
        self.right.now().after(self.by)
    }

    fn wall(&self) -> chrono::DateTime<chrono::Utc> {
        self.right.wall() + self.by
    }

    fn sleep_until(&self, until: Moment) -> Sleep {
        let by = u64::try_from(self.by.as_nanos()).unwrap_or(u64::MAX);
        self.right.sleep_until(Moment::from_nanos(until.as_nanos().saturating_sub(by)))
    }
}

impl<P: LockProvider> LockProvider for Skewed<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        let mut acquired = self.inner.acquire(request).await?;
        if let Acquired::Granted(grant) = &mut acquired {
            grant.trusted_from = grant.trusted_from.map(|from| from.after(self.clock.by));
        }
        Ok(acquired)
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.inner.renew(proof, ttl).await
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.inner.release(proof).await
    }
    fn release_later(&self, proof: Proof<'_>) {
        self.inner.release_later(proof);
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        self.inner.hand_over(proof).await
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        self.inner.rotate(proof, fresh, ttl).await
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.inner.inspect(key).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        self.inner.list(prefix, page).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.inner.break_lock(key, fence).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
