//! The releases that drops have queued (L21).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::store::Store;
use super::watcher::runtime;
use crate::retry::Backoff;
use crate::rules::{Id, Rules};
use crate::{Key, Result};

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: usize = 6;

/// How many at a time: a heap of dropped guards must not take the whole pool.
const AT_ONCE: usize = 4;

pub(super) struct Releases {
    left: watch::Sender<usize>,
    turns: Arc<Semaphore>,
}

impl Releases {
    pub(super) fn new() -> Self {
        Releases { left: watch::Sender::new(0), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Queues a release.
    pub(super) fn queue(&self, store: &Arc<Store>, key: Key, id: Id) {
        let (store, left, turns) = (store.clone(), self.left.clone(), self.turns.clone());
        match runtime() {
            Ok(runtime) => {
                left.send_modify(|left| *left += 1);
                runtime.spawn(async move {
                    let _turn = turns.acquire().await;
                    patiently(&store, &key, id).await;
                    left.send_modify(|left| *left -= 1);
                });
            }
            Err(error) => tracing::warn!(%key, %error, "no release: the ttl ends the lease"),
        }
    }

    /// Ends when everything that was queued was tried.
    pub(super) async fn flush(&self) {
        let mut left = self.left.subscribe();
        let _ = left.wait_for(|left| *left == 0).await;
    }
}

/// Tries a release, more than once.
pub(super) async fn patiently(store: &Store, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..TRIES).rev() {
        match release(store, key, id).await {
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
pub(super) async fn release(store: &Store, key: &Key, id: Id) -> Result<bool> {
    let given = if store.desk.waits_for(key) {
        store.hand_on("releasing", key, id).await?
    } else {
        store.give_back("releasing", key, id).await?
    };
    let lost = match given {
        Ok(true) => return Ok(true),
        Ok(false) => None,
        Err(lost) => Some(lost),
    };
    let change = |rules: &mut Rules<_>, _: &mut _| {
        let held = rules.release(id).is_some();
        if !held {
            rules.leave(id);
        }
        held
    };
    let held = store.edit("releasing", key, change).await?.0;
    match lost {
        // Ended by the question whose answer was lost, or before: it cannot be told.
        Some(lost) if !held => Err(lost),
        _ => Ok(held),
    }
}
