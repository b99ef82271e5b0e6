//! Releases: those that a caller waits for, and those that drops have queued (L21).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::batches::Batches;
use super::error;
use super::message::BatchOutcome;
use super::scripts::{self, ReleaseCall};
use super::store::{BACKGROUND, Store, is_held_up};
use crate::coordination::deferred_release::{Lease, ReleaseBackend};
use crate::rules::Id;
use crate::{Key, Result};

const DURING: &str = "releasing";

/// How long a release lets the request before it go first. That may be in a runtime whose threads are
/// blocked; a grant that it gets late, it releases itself.
const REQUEST: Duration = Duration::from_secs(1);

/// Queues a release, after the request that was dropped and may still be in flight: on another
/// connection the release might overtake it.
pub(super) fn later(batches: &Batches, key: Key, id: Id) {
    let store = &batches.store;
    if !store.open_requests.is_open(id) {
        return batches.releases.defer(key, id);
    }
    let store = store.clone();
    batches.releases.defer_until(key, id, async move {
        let _ = timeout(REQUEST, store.open_requests.closed(id)).await;
    });
}

impl ReleaseBackend for Store {
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
        BACKGROUND.handle()?.spawn(job);
        Ok(())
    }

    async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
        match scripts::release_together(self, leases).await {
            Ok(left) => Ok(left),
            // A process is stopped in the middle of an edit of one of them.
            Err(error) if is_held_up(&error) => Ok(leases.to_vec()),
            Err(error) => Err(error::driver(DURING, error)),
        }
    }

    async fn release(&self, key: &Key, id: Id) -> Result<bool> {
        self.release_by_rules(key, id, None).await
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) async fn release(batches: &Batches, key: &Key, id: Id) -> Result<bool> {
    let lost = match batches.release(ReleaseCall::new(key, id)).await? {
        BatchOutcome::Done(held) => return Ok(held),
        BatchOutcome::UseRules => None,
        BatchOutcome::AnswerLost(error) => Some(error),
    };
    let (store, key) = (batches.store.clone(), key.clone());
    BACKGROUND.run(DURING, async move { store.release_by_rules(&key, id, lost).await }).await
}
