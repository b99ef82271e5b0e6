//! A waiter's access to the registry, and how it waits.

use std::sync::Arc;
use std::time::Duration;

use futures::future::select;

use super::WaiterRegistry;
use super::waiter::{LocalWaiter, NextStep, WakeReason};
use crate::rules::Id;
use crate::{Clock, Fence, Key, Moment};

/// A registered waiter. Dropping it removes it from the registry.
pub(crate) struct WaiterHandle {
    registry: Arc<WaiterRegistry>,
    waiter: Arc<LocalWaiter>,
}

impl WaiterRegistry {
    /// Registers a waiter, before its request is sent, so that no notification is missed. The flag
    /// says whether others of this process wait for the key.
    pub(crate) fn register(self: &Arc<Self>, key: &Key, id: Id) -> (WaiterHandle, bool) {
        let waiter = Arc::new(LocalWaiter::new(key.clone(), id));
        let mut inner = self.inner.lock();
        let behind = inner.has_waiters(key);
        inner.waiters.insert(id, waiter.clone());
        drop(inner);
        (WaiterHandle { registry: self.clone(), waiter }, behind)
    }
}

impl WaiterHandle {
    /// The waiter is in the queue; `expires_in` is the time until the next lease of the key expires.
    pub(crate) fn mark_queued(&self, expires_in: Option<Duration>, clock: &dyn Clock) {
        self.registry.mark_queued(&self.waiter, expires_in, clock);
    }

    /// Takes the grant that a request of the waiter's task was answered with. False if it must not be
    /// used, since the process returns it.
    pub(crate) fn take_grant(&self, fence: Fence) -> bool {
        self.waiter.take_grant(fence)
    }

    /// The waiter, for a request to join the queue that is sent now.
    pub(crate) fn start_request(&self) -> Arc<LocalWaiter> {
        self.waiter.request_started();
        self.waiter.clone()
    }

    /// Waits until the waiter has something to do, at the latest until the deadline; but never ends
    /// before the response to its request to join the queue.
    ///
    /// Cancel safety: a grant that is delivered meanwhile stays with the waiter.
    pub(crate) async fn wait(&self, clock: &dyn Clock, deadline: Moment) -> WakeReason {
        loop {
            let step = self.waiter.next_step(clock.now() >= deadline);
            let woken = std::pin::pin!(self.waiter.woken.notified());
            match step {
                NextStep::Wake(reason) => return reason,
                NextStep::Wait if deadline != Moment::NEVER => {
                    select(woken, clock.sleep_until(deadline)).await;
                }
                NextStep::Wait | NextStep::WaitForResponse => woken.await,
            }
        }
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        self.waiter.abandon();
        let mut inner = self.registry.inner.lock();
        // The same token may have come back and registered another waiter.
        if !inner.is_current(&self.waiter) {
            return;
        }
        let LocalWaiter { key, id, .. } = &*self.waiter;
        inner.waiters.remove(id);
        if let Some(queue) = inner.keys.get_mut(key) {
            queue.ids.remove(id);
            if queue.ids.is_empty() {
                inner.keys.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{Grant, SystemClock};

    #[tokio::test]
    async fn a_waiter_does_not_leave_before_its_request_is_answered() {
        let registry = Arc::new(WaiterRegistry::default());
        let (key, clock) = (Key::new("key").expect("legal"), SystemClock);
        for granted in [false, true] {
            let (handle, _) = registry.register(&key, 1);
            let waiter = handle.start_request();
            if granted {
                registry.deliver_grant(1, Grant::first(Fence::new(3)), clock.now());
            }
            let mut waiting = Box::pin(handle.wait(&clock, clock.now()));
            assert!(waiting.as_mut().now_or_never().is_none(), "its time is over, and yet");
            registry.mark_queued(&waiter, None, &clock);
            waiter.request_finished(true, "testing");
            match waiting.await {
                WakeReason::Granted(_) => assert!(granted),
                WakeReason::AskAgain => assert!(!granted),
                _ => panic!("it is in the queue"),
            }
        }
        assert!(registry.is_empty(), "no waiter is left");
    }

    #[tokio::test]
    async fn a_waiter_makes_no_request_while_its_grant_is_returned() {
        let registry = Arc::new(WaiterRegistry::default());
        let (key, clock) = (Key::new("key").expect("legal"), SystemClock);
        let (handle, _) = registry.register(&key, 1);
        let granted_at = clock.now();
        let later = granted_at.after(Duration::from_secs(1));
        registry.deliver_grant(1, Grant::first(Fence::new(3)), granted_at);
        assert!(registry.reclaim_unclaimed(granted_at).is_empty(), "too soon");
        let unclaimed = registry.reclaim_unclaimed(later);
        assert_eq!(unclaimed[0].fence, Fence::new(3));
        let mut waiting = Box::pin(handle.wait(&clock, Moment::NEVER));
        assert!(waiting.as_mut().now_or_never().is_none());
        registry.deliver_grant(1, Grant::first(Fence::new(3)), later);
        assert!(waiting.as_mut().now_or_never().is_none(), "it is about to end");
        assert_eq!(registry.reclaim_unclaimed(later).len(), 1, "until it is returned");
        assert!(matches!(handle.wait(&clock, granted_at).await, WakeReason::GiveUp));
        unclaimed[0].waiter.grant_returned();
        assert!(matches!(waiting.await, WakeReason::AskAgain));
    }

    /// A grant may reach a waiter twice: by a release, and as the response to its own request.
    #[tokio::test]
    async fn a_returned_grant_is_not_taken_from_a_response() {
        let registry = Arc::new(WaiterRegistry::default());
        let key = Key::new("key").expect("legal");
        let (handle, _) = registry.register(&key, 1);
        let at = |seconds| Moment::default().after(Duration::from_secs(seconds));
        registry.deliver_grant(1, Grant::first(Fence::new(3)), at(0));
        let unclaimed = registry.reclaim_unclaimed(at(1)).remove(0);
        assert!(!handle.take_grant(Fence::new(3)), "it is being returned");
        unclaimed.waiter.grant_returned();
        assert!(!handle.take_grant(Fence::new(3)), "it was returned");
        assert!(handle.take_grant(Fence::new(4)), "a later one");
        registry.deliver_grant(1, Grant::first(Fence::new(5)), at(2));
        assert!(handle.take_grant(Fence::new(5)), "its task comes first");
        assert!(registry.reclaim_unclaimed(at(9)).is_empty(), "it has taken it");
    }
}
