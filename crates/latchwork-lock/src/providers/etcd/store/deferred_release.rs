//! Counts the releases that run in the background, so that `close` can wait for them (L21).

use tokio::sync::{Semaphore, watch};

use crate::Key;
use crate::providers::etcd::background::BACKGROUND;

/// How many run at a time, so that many dropped guards do not keep others from the connection.
const MAX_CONCURRENT: usize = 32;

pub(crate) struct DeferredReleases {
    pending: watch::Sender<usize>,
    pub(super) permits: Semaphore,
}

impl DeferredReleases {
    pub(super) fn new() -> Self {
        let permits = Semaphore::new(MAX_CONCURRENT);
        DeferredReleases { pending: watch::Sender::new(0), permits }
    }

    /// Starts a release in the background.
    pub(super) fn spawn(&self, key: &Key, release: impl Future<Output = ()> + Send + 'static) {
        let pending = self.pending.clone();
        match BACKGROUND.handle() {
            Ok(runtime) => {
                pending.send_modify(|pending| *pending += 1);
                runtime.spawn(async move {
                    release.await;
                    pending.send_modify(|pending| *pending -= 1);
                });
            }
            Err(error) => {
                tracing::warn!(%key, %error, "not released: the lease expires by its ttl")
            }
        }
    }

    /// Completes when none is pending.
    pub(crate) async fn flush(&self) {
        let mut pending = self.pending.subscribe();
        let _ = pending.wait_for(|pending| *pending == 0).await;
    }
}
