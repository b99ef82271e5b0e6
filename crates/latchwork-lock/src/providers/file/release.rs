//! Releases: those that a caller waits for, and those that drops have queued (L21).

use std::sync::Arc;

use futures::future::BoxFuture;

use super::blocking;
use super::error::NAME;
use super::store::Store;
use crate::coordination::background::Background;
use crate::coordination::deferred_release::{Lease, ReleaseBackend};
use crate::rules::Id;
use crate::{Key, Result};

const DURING: &str = "releasing";

/// Runs queued releases: a drop may happen in any runtime or in none.
static BACKGROUND: Background = Background::new(NAME);

/// Ends the leases of dropped guards.
pub(super) struct Releaser(pub(super) Arc<Store>);

impl ReleaseBackend for Releaser {
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
        BACKGROUND.handle()?.spawn(job);
        Ok(())
    }

    async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
        let (store, leases) = (self.0.clone(), leases.to_vec());
        let failed = move |(key, id): &Lease| release(&store, key, *id).is_err();
        blocking::run(DURING, move || Ok(leases.into_iter().filter(failed).collect())).await
    }

    async fn release(&self, key: &Key, id: Id) -> Result<bool> {
        let (store, key) = (self.0.clone(), key.clone());
        blocking::run(DURING, move || release(&store, &key, id)).await
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not expired.
pub(super) fn release(store: &Store, key: &Key, id: Id) -> Result<bool> {
    let (held, _) = store.edit(key, |rules, _| {
        let held = rules.release(id).is_some();
        if !held {
            rules.leave(id);
        }
        held
    })?;
    Ok(held)
}
