use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::store::{PollKind, Store};
#[cfg(shuttle)]
use super::timer::Ticking;
use crate::rules::CLAIM_WINDOW;
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Page, PageRequest, Proof, Result, SystemClock, Token,
};

/// Locks between the tasks and threads of one process; clones share them.
///
/// Bounded: an entry exists while its key is held or waited for. Fences start at the wall clock
/// in microseconds, so that they go on growing when the process starts again.
///
/// ```
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{InMemoryLockProvider, Locks};
///
/// let locks = Locks::new(InMemoryLockProvider::new());
/// let guard = locks.lock("order:123").acquire().await?;
/// assert!(locks.lock("order:123").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct InMemoryLockProvider {
    store: Arc<Store>,
}

impl InMemoryLockProvider {
    /// A new, empty set of locks on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// The same on another clock, such as a [`ManualClock`](crate::ManualClock).
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let store = Arc::new(Store::new(clock));
        let weak = Arc::downgrade(&store);
        store.clock.on_jump(Arc::new(move || {
            if let Some(store) = weak.upgrade() {
                store.timer.wake();
            }
        }));
        InMemoryLockProvider { store }
    }

    /// Ends every lease, as if broken; who waits is let in. For tests.
    pub fn clear(&self) {
        self.store.clear();
    }

    /// How many keys there is an entry for: those that are held or waited for.
    #[doc(hidden)]
    pub fn entries(&self) -> usize {
        self.store.entries()
    }

    /// One round of the timer, which the model check runs as a thread of its own.
    #[cfg(shuttle)]
    pub fn tick(&self) {
        self.store.tick(self.store.clock.now());
    }
}

impl LockProvider for InMemoryLockProvider {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::*;
        const DECLARED: Capabilities = Capabilities::of(&[
            Shared,
            Wait,
            Renew,
            TakeOver,
            HandOver,
            Inspect,
            List,
            Break,
            Exclusion,
            Expiry,
            Tokens,
            Fairness,
            Notification,
            Bounded,
        ])
        .with_granularity(Duration::from_millis(50))
        .with_claim_window(CLAIM_WINDOW);
        DECLARED
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    fn poll_acquire(
        &self,
        request: &AcquireRequest,
        again: bool,
        waker: &Waker,
    ) -> Option<Poll<Result<Acquired>>> {
        let asked = if again { PollKind::Again } else { PollKind::First };
        self.store.poll(request, asked, waker)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        // A caller of this method may have another clock, and ours decides.
        let request = AcquireRequest { sent_at: self.store.clock.now(), ..request.clone() };
        Waiting::new(&self.store, &request).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        Ok(self.store.renew(proof.key, proof.token.expose(), ttl))
    }

    fn release_now(&self, proof: Proof<'_>) -> Option<Result<bool>> {
        Some(Ok(self.store.release(proof.key, proof.token.expose())))
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        Ok(self.store.release(proof.key, proof.token.expose()))
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.store.release(proof.key, proof.token.expose());
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        Ok(self.store.hand_over(proof.key, proof.token.expose()))
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        Ok(self.store.rotate(proof.key, proof.token.expose(), fresh.expose(), ttl))
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        Ok(self.store.inspect(key))
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        let mut keys = self.store.list(prefix);
        keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Page::cut(keys, page))
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        Ok(self.store.break_lock(key, fence))
    }

    async fn close(&self) {}
}

/// A request that waits. Dropped, it leaves the queue or releases what it was granted.
struct Waiting<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest,
    queued: bool,
}

impl<'a> Waiting<'a> {
    fn new(store: &'a Arc<Store>, request: &'a AcquireRequest) -> Self {
        Waiting { store, request, queued: false }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let asked = if self.queued { PollKind::Again } else { PollKind::Perhaps };
        let answer = self.store.poll(self.request, asked, cx.waker());
        let answer = answer.unwrap_or(Poll::Pending);
        self.queued = answer.is_pending();
        answer
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.queued {
            self.store.release(&self.request.key, self.request.token.expose());
        }
    }
}

impl Default for InMemoryLockProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for InMemoryLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryLockProvider").finish_non_exhaustive()
    }
}
