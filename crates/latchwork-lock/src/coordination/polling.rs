//! The task that looks after the waiters of a provider.
//!
//! It reads the statuses of all waiters of the process together, at an interval that the provider
//! chooses: often where the backend sends no notifications, seldom where they can only be lost.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::waiters::{WaiterRegistry, WaiterStatus};
use crate::rules::Id;
use crate::{Clock, Key, Result};

/// How long a grant stays in the slot of a waiter that does not take it. With the pause between two
/// rounds, that is less than the claim window.
const UNCLAIMED: Duration = Duration::from_millis(800);

/// The pause after a failed read.
const FAILED: Duration = Duration::from_millis(100);

/// Where the statuses of waiters are read.
pub trait StatusSource: Send + 'static {
    /// A key, as the backend names it.
    type Key: Eq + Hash + Send + Sync;

    /// The waiters of this process.
    fn waiters(&self) -> &Arc<WaiterRegistry>;

    /// The provider's clock.
    fn clock(&self) -> &dyn Clock;

    /// How long to pause before the next read; `interval` is the shortest that a waiter asked for.
    fn pause(&self, interval: Duration) -> Duration;

    /// Reads the statuses of the waiters of this process, in the order of their queues, and tells
    /// the backend that the process is alive.
    fn read(&mut self) -> impl Future<Output = Result<Vec<WaiterStatus<Self::Key>>>> + Send;

    /// Releases a lease that its waiter has not taken, and tries for some time.
    fn release_unclaimed(&self, key: Key, id: Id) -> impl Future<Output = ()> + Send + 'static;
}

/// Looks after the waiters until the sender of `stopped` is dropped.
pub async fn poll_waiters(mut source: impl StatusSource, mut stopped: Receiver<()>) {
    let waiters = source.waiters().clone();
    let mut is_failing = false;
    loop {
        let pause = waiters.begin_pause().map_or(Duration::MAX, |interval| source.pause(interval));
        tokio::select! {
            _ = stopped.changed() => return,
            () = waiters.poller_woken() => {}
            () = sleep(pause) => {}
        }
        waiters.end_pause();
        for (key, id) in waiters.reclaim_unclaimed(source.clock().now(), UNCLAIMED) {
            let waiters = waiters.clone();
            let released = source.release_unclaimed(key, id);
            tokio::spawn(async move {
                released.await;
                waiters.mark_reclaimed(id);
            });
        }
        let requested = waiters.waiting_ids();
        if requested.is_empty() {
            continue;
        }
        match source.read().await {
            Ok(statuses) => {
                is_failing = false;
                waiters.apply_statuses(&statuses, &requested, source.clock().now());
            }
            Err(error) => {
                // A waiter is told when its wait ends, unless the failure has passed by then.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "cannot read the queue positions of lock waiters; retrying");
                }
                sleep(FAILED).await;
            }
        }
    }
}
