//! Reads the keys that are waited for now and then, in case the watch stream has missed something.

use std::time::Duration;

use tokio::time::sleep;

use super::orphaned_waiters::OrphanedWaiters;
use crate::Key;
use crate::providers::etcd::error::RequestError;
use crate::providers::etcd::store::Store;

const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How many keys are read at a time; a server accepts 128 operations by default.
const MAX_KEYS: usize = 64;

const DURING: &str = "waiting";

/// Polls all keys that are waited for.
pub(super) async fn poll(store: &Store) {
    let mut previous = OrphanedWaiters::default();
    let mut max_keys = MAX_KEYS;
    loop {
        store.waiters.until_busy().await;
        sleep(POLL_INTERVAL).await;
        let mut changed = false;
        let mut orphaned = OrphanedWaiters::default();
        for keys in store.waiters.waited_keys().chunks(max_keys) {
            match poll_keys(store, keys, &mut orphaned).await {
                Ok(news) => changed |= news,
                Err(error) => {
                    if error.is_too_many_operations() {
                        max_keys = (keys.len() / 2).max(1); // from the next poll on
                    }
                    let error = error.into_error(DURING);
                    tracing::debug!(%error, "the keys that are waited for were not read");
                }
            }
        }
        if !store.waiters.take_stream_activity() && changed {
            tracing::debug!("the watch stream has missed a change: opening a new one");
            store.waiters.stream_stalled.notify_one();
        }
        orphaned.remove(&previous, store).await;
        previous = orphaned;
    }
}

/// Reads a key whose watch has just been created.
pub(super) async fn poll_key(store: &Store, key: Key) {
    if let Err(error) = poll_keys(store, &[key], &mut OrphanedWaiters::default()).await {
        tracing::debug!(error = %error.into_error(DURING), "a key was not read");
    }
}

/// Whether anything was new.
async fn poll_keys(
    store: &Store,
    keys: &[Key],
    orphaned: &mut OrphanedWaiters,
) -> Result<bool, RequestError> {
    let states = store.read_keys(DURING, keys).await?;
    let now = store.clock.now();
    let mut changed = false;
    for (key, seen) in keys.iter().zip(&states) {
        changed |= store.waiters.on_read(key, seen, now);
        orphaned.find(store, key, seen);
    }
    Ok(changed)
}
