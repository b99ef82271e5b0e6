//! A waiter's access to the registry, and how it waits for its next step.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures::future::select;

use super::WaiterRegistry;
use super::key_view::WaiterStatus;
use super::waiter::{Delivery, LocalWaiter};
use crate::providers::etcd::record::{KeyState, Requester};
use crate::{Clock, Grant, Moment};

/// A registered waiter. Dropping it removes it from the registry.
pub(crate) struct WaiterHandle {
    registry: Arc<WaiterRegistry>,
    waiter: Arc<LocalWaiter>,
}

/// What a waiter does when it is woken, or its time is over.
pub(crate) enum NextStep {
    /// It holds the key: a grant was delivered.
    Granted(Grant),
    /// It claims the key: its position, and the previous fence if that is known.
    Claim {
        position: i64,
        previous: Option<i64>,
    },
    /// It has lost its place, and joins the queue again.
    Enqueue,
    GiveUp,
}

impl WaiterRegistry {
    /// Registers a waiter, before it joins the queue, so that no change is missed.
    pub(crate) fn register(
        self: &Arc<Self>,
        requester: &Arc<Requester>,
        wanted: &Arc<AtomicBool>,
    ) -> WaiterHandle {
        let waiter = Arc::new(LocalWaiter::new(requester.clone(), wanted.clone()));
        let mut inner = self.inner.lock();
        let queue = inner.keys.entry(requester.key.clone()).or_default();
        queue.waiters.insert(requester.id, waiter.clone());
        queue.was_empty = false;
        let unwatched = queue.watch.is_none();
        drop(inner);
        if unwatched {
            self.busy.send_replace(true);
            self.keys_changed.notify_one();
        }
        WaiterHandle { registry: self.clone(), waiter }
    }
}

impl WaiterHandle {
    /// Applies a read of the key.
    pub(crate) fn on_read(&self, seen: &KeyState, now: Moment) {
        self.registry.on_read(&self.waiter.requester.key, seen, now);
    }

    /// The waiter was in the queue at this revision, and sleeps from now on.
    pub(crate) fn mark_queued(&self, revision: i64) {
        self.waiter.set_queued_at(revision);
        self.fall_asleep();
    }

    /// The waiter does nothing until it is woken. Called by the job that answers its task, since the
    /// task may not be polled for a while.
    pub(crate) fn fall_asleep(&self) {
        self.waiter.fall_asleep();
    }

    /// Waits until there is something to do, at the latest until the deadline.
    ///
    /// Cancel safety: a grant that is delivered meanwhile stays with the waiter.
    pub(crate) async fn next_step(&self, clock: &dyn Clock, deadline: Moment) -> NextStep {
        loop {
            let over = clock.now() >= deadline;
            match self.waiter.take_delivery() {
                Delivery::Granted(grant) => return NextStep::Granted(grant),
                Delivery::InTransit if over => return NextStep::GiveUp,
                Delivery::InTransit => {}
                Delivery::Nothing => match self.status() {
                    WaiterStatus::First { position, previous } => {
                        return NextStep::Claim { position, previous };
                    }
                    WaiterStatus::Behind | WaiterStatus::NotQueued if over => {
                        return NextStep::GiveUp;
                    }
                    WaiterStatus::NotQueued => return NextStep::Enqueue,
                    WaiterStatus::Behind => self.fall_asleep(),
                },
            }
            let woken = std::pin::pin!(self.waiter.woken.notified());
            if deadline == Moment::NEVER {
                woken.await;
            } else {
                select(woken, clock.sleep_until(deadline)).await;
            }
        }
    }

    fn status(&self) -> WaiterStatus {
        let Requester { key, id, .. } = &*self.waiter.requester;
        let inner = self.registry.inner.lock();
        let queue = inner.keys.get(key);
        queue.map_or(WaiterStatus::NotQueued, |queue| {
            queue.view.status(*id, self.waiter.queued_at())
        })
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        let Requester { key, id, .. } = &*self.waiter.requester;
        let mut inner = self.registry.inner.lock();
        let Some(queue) = inner.keys.get_mut(key) else { return };
        // The same token may have come back and registered another waiter.
        if queue.waiters.get(id).is_some_and(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            queue.waiters.remove(id);
        }
    }
}
