use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::{
    AcquireRequest, Acquired, Capabilities, Error, Fence, Grant, Holder, Inspection, Key,
    LockProvider, Page, PageRequest, Proof, Result, Token,
};

/// Grants everything to everybody: it excludes nobody.
///
/// For single-threaded tests that do not care about locks. Fences grow, so that code which sends
/// them along works; nothing else is declared.
#[derive(Clone, Debug, Default)]
pub struct NoOpLockProvider {
    fences: Arc<AtomicU64>,
}

impl NoOpLockProvider {
    /// A provider that grants everything.
    pub fn new() -> Self {
        Self::default()
    }

    fn refuse<T>(&self, operation: &str) -> Result<T> {
        Err(Error::not_supported(self.name(), operation))
    }

    fn grant(&self) -> Acquired {
        Acquired::Granted(Grant {
            fence: Fence::new(self.fences.fetch_add(1, Ordering::Relaxed) + 1),
            previous_fence: None,
            waited: false,
            trusted_from: None,
        })
    }
}

impl LockProvider for NoOpLockProvider {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn capabilities(&self) -> Capabilities {
        use crate::Capability::{Bounded, Renew, Shared, Wait};
        // Operations that cannot go wrong where nobody is excluded; of the guarantees only the
        // one that nothing is kept.
        const DECLARED: Capabilities = Capabilities::of(&[Shared, Wait, Renew, Bounded]);
        DECLARED
    }

    fn poll_acquire(
        &self,
        _: &AcquireRequest,
        _: bool,
        _: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        Some(Poll::Ready(Ok(self.grant())))
    }

    async fn acquire(&self, _: &AcquireRequest) -> Result<Acquired> {
        Ok(self.grant())
    }

    async fn renew(&self, _: Proof<'_>, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn release_now(&self, _: Proof<'_>) -> Option<Result<bool>> {
        Some(Ok(true))
    }

    async fn release(&self, _: Proof<'_>) -> Result<bool> {
        Ok(true)
    }

    fn release_later(&self, _: Proof<'_>) {}

    async fn hand_over(&self, _: Proof<'_>) -> Result<bool> {
        self.refuse("hand-over")
    }

    async fn rotate(&self, _: Proof<'_>, _: Token, _: Duration) -> Result<Option<Grant>> {
        self.refuse("hand-over")
    }

    async fn inspect(&self, _: &Key) -> Result<Inspection> {
        self.refuse("inspect")
    }

    async fn list(&self, _: &str, _: &PageRequest) -> Result<Page> {
        self.refuse("list")
    }

    async fn break_lock(&self, _: &Key, _: Option<Fence>) -> Result<Vec<Holder>> {
        self.refuse("break")
    }

    async fn close(&self) {}
}
