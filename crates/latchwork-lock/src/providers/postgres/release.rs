//! Giving back, and the releases that drops have queued (L21).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::batch::Lanes;
use super::scripts::Give;
use super::store::Store;
use super::watcher::{run, runtime};
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Error, Key, Result};

const DURING: &str = "releasing";

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: usize = 6;

/// How many at a time that need a connection each: a heap of dropped guards must not take the
/// whole pool.
const AT_ONCE: usize = 4;

/// How long a release lets the question before it go first. That may lie in a runtime which somebody
/// blocks; what it gets when it is late, it gives back itself.
const QUESTION: Duration = Duration::from_secs(1);

pub(super) struct Releases {
    left: watch::Sender<usize>,
    turns: Semaphore,
}

impl Releases {
    pub(super) fn new() -> Self {
        Releases { left: watch::Sender::new(0), turns: Semaphore::new(AT_ONCE) }
    }

    /// Ends when everything that was queued was tried.
    pub(super) async fn flush(&self) {
        let mut left = self.left.subscribe();
        let _ = left.wait_for(|left| *left == 0).await;
    }
}

/// Queues a release. Always on the provider's own thread: whoever drops a guard may go on to block
/// its runtime, or end it. And after the question that may still be under way, which was dropped: on
/// another connection it might come before that.
pub(super) fn later(lanes: &Arc<Lanes>, key: Key, id: Id) {
    let lanes = lanes.clone();
    match runtime() {
        Ok(runtime) => {
            lanes.releases.left.send_modify(|left| *left += 1);
            runtime.spawn(async move {
                let _ = timeout(QUESTION, lanes.store.unanswered.over(id)).await;
                if !matches!(lanes.give(Give::new(&key, id)).await, Ok(Ok(Some(_)))) {
                    let _turn = lanes.releases.turns.acquire().await;
                    patiently(&lanes.store, &key, id).await;
                }
                lanes.releases.left.send_modify(|left| *left -= 1);
            });
        }
        Err(error) => tracing::warn!(%key, %error, "no release: the ttl ends the lease"),
    }
}

/// Tries a release by the rules, more than once.
pub(super) async fn patiently(store: &Store, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..TRIES).rev() {
        match by_rules(store, key, id, None).await {
            Ok(_) => return,
            Err(error) if error.is_temporary() && left > 0 => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a queued release failed: the ttl ends the lease");
                return;
            }
        }
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) async fn release(lanes: &Lanes, key: &Key, id: Id) -> Result<bool> {
    let lost = match lanes.give(Give::new(key, id)).await? {
        Ok(Some(held)) => return Ok(held),
        Ok(None) => None,
        Err(lost) => Some(lost),
    };
    let (store, key) = (lanes.store.clone(), key.clone());
    run(DURING, async move { by_rules(&store, &key, id, lost).await }).await
}

/// The same where the rules must decide; `lost` is what became of the short way before.
pub(super) async fn by_rules(
    store: &Store,
    key: &Key,
    id: Id,
    lost: Option<Error>,
) -> Result<bool> {
    let change = |rules: &mut crate::rules::Rules<_>, _: &mut _| {
        let held = rules.release(id).is_some();
        if !held {
            rules.leave(id);
        }
        held
    };
    let held = store.edit(DURING, key, change).await?.0;
    match lost {
        // Ended by the question whose answer was lost, or before: it cannot be told.
        Some(lost) if !held => Err(lost),
        _ => Ok(held),
    }
}
