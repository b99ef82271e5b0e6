//! How a waiter wakes: by the release before it, or by the one timer of the store.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::Duration;

use super::store::{Asked, Store};
use crate::{AcquireRequest, Acquired, Moment, Result};

/// A request that waits for its turn. Dropped, it leaves the queue or hands on what it was given.
pub(super) struct Waiting<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest,
    queued: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(store: &'a Arc<Store>, request: &'a AcquireRequest) -> Self {
        Waiting { store, request, queued: false }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let asked = if self.queued { Asked::Again } else { Asked::Perhaps };
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

/// One thread per store, asleep until the first moment that matters to a waiter. Started by the
/// first waiter, ended with the store.
///
/// A thread and not a task: waiters may live in any runtime, or in none.
pub(super) struct Timer {
    /// When the thread means to wake, in nanoseconds.
    planned: AtomicU64,
    thread: OnceLock<Option<Thread>>,
}

impl Default for Timer {
    fn default() -> Self {
        Timer { planned: AtomicU64::new(u64::MAX), thread: OnceLock::new() }
    }
}

impl Timer {
    /// Makes sure that the store is looked at no later than `at`.
    pub(super) fn ring_at(&self, store: &Arc<Store>, at: Moment) {
        if cfg!(shuttle) || at.as_nanos() >= self.planned.load(Ordering::Acquire) {
            return;
        }
        self.planned.fetch_min(at.as_nanos(), Ordering::AcqRel);
        let thread = self.thread.get_or_init(|| {
            let store = Arc::downgrade(store);
            let run = move || while let Some(nap) = store.upgrade().map(|s| s.timer.round(&s)) {
                std::thread::park_timeout(nap);
            };
            match std::thread::Builder::new().name("latchwork-timer".into()).spawn(run) {
                Ok(handle) => Some(handle.thread().clone()),
                Err(error) => {
                    tracing::error!(%error, "no thread for lock expiry: waiters wake by releases only");
                    None
                }
            }
        });
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    /// Makes the thread look at the clock again, or notice that its store is gone.
    pub(super) fn poke(&self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Ends what is due and tells how long to sleep.
    fn round(&self, store: &Store) -> Duration {
        // Before the look: whoever rings during it unparks us, and we look again.
        self.planned.store(u64::MAX, Ordering::Release);
        let now = store.clock.now();
        let next = store.tick(now);
        let next = self.planned.fetch_min(next.as_nanos(), Ordering::AcqRel).min(next.as_nanos());
        match next {
            u64::MAX => Duration::MAX,
            // Sleeps stand still while the machine is suspended; leases do not.
            next => Moment::from_nanos(next).since(now).min(Duration::from_secs(1)),
        }
    }
}
