//! Giving back, and the releases that drops have queued (L21).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::batch::Lanes;
use super::error;
use super::scripts::{self, Give};
use super::store::{BACKGROUND, Store, is_held_up};
use crate::coordination::deferred_release::{Backend, Lease};
use crate::rules::Id;
use crate::{Error, Key, Result};

const DURING: &str = "releasing";

/// How long a release lets the question before it go first. That may lie in a runtime which somebody
/// blocks; what it gets when it is late, it gives back itself.
const QUESTION: Duration = Duration::from_secs(1);

/// Queues a release: after the question that may still be under way, which was dropped. On
/// another connection it might come before that.
pub(super) fn later(lanes: &Lanes, key: Key, id: Id) {
    let store = &lanes.store;
    if !store.unanswered.is_open(id) {
        return lanes.releases.defer(key, id);
    }
    let store = store.clone();
    lanes.releases.defer_until(key, id, async move {
        let _ = timeout(QUESTION, store.unanswered.over(id)).await;
    });
}

impl Backend for Store {
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
        BACKGROUND.handle()?.spawn(job);
        Ok(())
    }

    async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
        match scripts::give_together(self, leases).await {
            Ok(left) => Ok(left),
            // Somebody is stopped in the middle of an edit of one of them.
            Err(error) if is_held_up(&error) => Ok(leases.to_vec()),
            Err(error) => Err(error::driver(DURING, error)),
        }
    }

    async fn release(&self, key: &Key, id: Id) -> Result<bool> {
        by_rules(self, key, id, None).await
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
    BACKGROUND.run(DURING, async move { by_rules(&store, &key, id, lost).await }).await
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
