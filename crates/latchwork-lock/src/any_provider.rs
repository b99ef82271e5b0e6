//! Any provider behind one type.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::provider::DynLockProvider;
use crate::{
    AcquireRequest, Acquired, Capabilities, Clock, Fence, Grant, Holder, Inspection, Key,
    LockProvider, Page, PageRequest, Proof, Result, StaleFence, Token,
};

/// Any provider, chosen at run time: for what takes a provider and need not know which. Clones are
/// the same one.
#[derive(Clone)]
pub struct AnyLockProvider(Arc<dyn DynLockProvider>);

impl AnyLockProvider {
    /// Puts a provider behind the one type.
    pub fn new(provider: impl LockProvider) -> Self {
        AnyLockProvider(Arc::new(provider))
    }

    pub(crate) fn of(provider: Arc<dyn DynLockProvider>) -> Self {
        AnyLockProvider(provider)
    }
}

impl fmt::Debug for AnyLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyLockProvider").field(&self.0.name()).finish()
    }
}

impl LockProvider for AnyLockProvider {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        self.0.poll_acquire(request, again, waker)
    }
    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        self.0.release_now(proof)
    }
    fn release_later(&self, proof: Proof<'_>) {
        self.0.release_later(proof);
    }
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        self.0.acquire(request).await
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.0.renew(proof, ttl).await
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.0.release(proof).await
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        self.0.hand_over(proof).await
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        self.0.rotate(proof, fresh, ttl).await
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.0.inspect(key).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        self.0.list(prefix, page).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.0.break_lock(key, fence).await
    }
    async fn check_fence(&self, name: &str, fence: Fence) -> Result<Result<(), StaleFence>> {
        self.0.check_fence(name, fence).await
    }
    async fn close(&self) {
        self.0.close().await;
    }
}
