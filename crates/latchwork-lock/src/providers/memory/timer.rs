//! Wakes waiters whose lease ahead has expired, or whose deadline has passed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crate::{Clock, Moment};

/// What a timer looks after.
pub(super) trait Ticking: Send + Sync + 'static {
    fn timer(&self) -> &Timer;

    fn clock(&self) -> &dyn Clock;

    /// Ends what is due at `now`, and returns when to look again.
    fn tick(&self, now: Moment) -> Moment;
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
    pub(super) fn wake_at<T: Ticking>(&self, store: &Arc<T>, at: Moment) {
        if cfg!(shuttle) || at.as_nanos() >= self.planned.load(Ordering::Acquire) {
            return;
        }
        self.planned.fetch_min(at.as_nanos(), Ordering::AcqRel);
        let thread = self.thread.get_or_init(|| {
            let store = Arc::downgrade(store);
            let run = move || while let Some(nap) = store.upgrade().map(|s| s.timer().round(&*s)) {
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
    pub(super) fn wake(&self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Ends what is due and tells how long to sleep.
    fn round(&self, store: &impl Ticking) -> Duration {
        // Reset before the tick: a concurrent `wake_at` then unparks the thread for another round.
        self.planned.store(u64::MAX, Ordering::Release);
        let now = store.clock().now();
        let next = store.tick(now);
        let next = self.planned.fetch_min(next.as_nanos(), Ordering::AcqRel).min(next.as_nanos());
        match next {
            u64::MAX => Duration::MAX,
            // Sleeps stand still while the machine is suspended; leases do not.
            next => Moment::from_nanos(next).since(now).min(Duration::from_secs(1)),
        }
    }
}
