//! Keeps the waiters of this process alive, and lets those go that sleep for too long.

use std::time::Duration;

use tokio::time::sleep;

use crate::providers::etcd::record::Requester;
use crate::providers::etcd::session::RENEW_INTERVAL;
use crate::providers::etcd::store::Store;

/// How often waiters that sleep for too long are looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

const DURING: &str = "waiting";

/// Renews the session that the waiters' entries are attached to.
pub(super) async fn keep_session_alive(store: &Store) {
    loop {
        store.waiters.until_busy().await;
        if let Err(error) = store.session.keep_alive().await {
            tracing::debug!(error = %error.into_error(DURING), "the session was not renewed");
        }
        sleep(RENEW_INTERVAL).await;
    }
}

/// Takes waiters out of the queue that have missed their turn, and returns grants that were not
/// taken.
pub(super) async fn expire_overdue(store: &Store) {
    loop {
        store.waiters.until_busy().await;
        sleep(CHECK_INTERVAL).await;
        let overdue = store.waiters.collect_overdue(store.clock.now());
        for requester in overdue.turns {
            let Requester { key, id, .. } = &*requester;
            if let Err(error) = store.dequeue(DURING, key, *id).await {
                tracing::debug!(%key, %error, "a waiter that missed its turn was not removed");
            }
        }
        for unclaimed in overdue.grants {
            let Requester { key, id, .. } = unclaimed.requester();
            match store.return_grant(DURING, key, *id, unclaimed.fence).await {
                Ok(()) => unclaimed.returned(),
                Err(error) => tracing::debug!(%key, %error, "an unclaimed grant was not returned"),
            }
        }
    }
}
