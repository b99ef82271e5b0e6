//! The releases that drops have queued (L21).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::store::{Party, Store};
use super::watcher::runtime;
use crate::Key;
use crate::retry::Backoff;
use crate::rules::Id;

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: usize = 6;

/// How many at a time: a heap of dropped guards must not keep others from the connection.
const AT_ONCE: usize = 32;

/// How long after it was cut short a question can still be heard.
const HEARD: Duration = Duration::from_secs(1);

pub(super) struct Releases {
    left: watch::Sender<usize>,
    turns: Semaphore,
}

impl Releases {
    pub(super) fn new() -> Self {
        Releases { left: watch::Sender::new(0), turns: Semaphore::new(AT_ONCE) }
    }

    /// Queues a release.
    pub(super) fn queue(store: &Arc<Store>, key: Key, id: Id) {
        let own = store.clone();
        store.releases.spawn(&key.clone(), async move {
            let _turn = own.releases.turns.acquire().await;
            try_release(&own, &key, id).await;
        });
    }

    fn spawn(&self, key: &Key, release: impl Future<Output = ()> + Send + 'static) {
        let left = self.left.clone();
        match runtime() {
            Ok(runtime) => {
                left.send_modify(|left| *left += 1);
                runtime.spawn(async move {
                    release.await;
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

/// A question for somebody's lease. Dropped without an answer, by the end of the caller's runtime or
/// because none came, it may be heard yet, also after the release of one who has gone: so that is
/// repeated.
pub(super) struct CutShort {
    store: Arc<Store>,
    party: Arc<Party>,
    wanted: Arc<AtomicBool>,
    armed: bool,
}

impl CutShort {
    pub(super) fn new(store: &Arc<Store>, party: &Arc<Party>, wanted: &Arc<AtomicBool>) -> Self {
        let (store, party, wanted) = (store.clone(), party.clone(), wanted.clone());
        CutShort { store, party, wanted, armed: true }
    }

    /// Whatever came of it is known.
    pub(super) fn answered(mut self) {
        self.armed = false;
    }
}

impl Drop for CutShort {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (store, party, wanted) = (self.store.clone(), self.party.clone(), self.wanted.clone());
        self.store.releases.spawn(&self.party.key, async move {
            tokio::time::sleep(HEARD).await;
            // Who still wants it asks again with the same token.
            if !wanted.load(Ordering::Acquire) {
                try_release(&store, &party.key, party.id).await;
            }
        });
    }
}

async fn try_release(store: &Arc<Store>, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..TRIES).rev() {
        match store.release("releasing", key, id).await {
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
