//! A store that counts what it is asked, and can be away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_flow::store::{
    Beat, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest, DueClaim,
    GiveBack, Proof, RunClaim, Save, Saved, StoredContext,
};
use latchwork_flow::{ContextStore, Contexts, Error, Result, TransitionId};
use serde_json::Value;

#[derive(Clone)]
pub(crate) struct Flaky {
    pub(crate) contexts: Contexts,
    /// How often it was asked for what is due.
    pub(crate) looks: Arc<AtomicU32>,
    /// How often it was asked for anything by a runner while it was away.
    pub(crate) refusals: Arc<AtomicU32>,
    pub(crate) away: Arc<AtomicBool>,
}

impl Flaky {
    pub(crate) fn new(contexts: Contexts) -> Self {
        Flaky { contexts, looks: Arc::default(), refusals: Arc::default(), away: Arc::default() }
    }

    fn there(&self) -> Result<()> {
        if self.away.load(Ordering::SeqCst) {
            self.refusals.fetch_add(1, Ordering::SeqCst);
            return Err(Error::store_unavailable("flaky", "a test", "it is away", None));
        }
        Ok(())
    }
}

impl ContextStore for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    /// Its heartbeats come by the same faults.
    async fn separate(&self) -> Result<Option<Contexts>> {
        Ok(None)
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.there()?;
        self.contexts.now().await
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        self.there()?;
        self.contexts.create(draft, run).await
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        self.there()?;
        ContextStore::load(&self.contexts, id).await
    }

    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        self.there()?;
        self.contexts.claim(id, revision, claim).await
    }

    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.there()?;
        self.contexts.claim_due(due).await
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        self.there()?;
        self.contexts.next_due(machine).await
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.there()?;
        self.contexts.save(save).await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        self.there()?;
        self.contexts.heartbeat(proof, ttl).await
    }

    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        self.there()?;
        self.contexts.release(proof, how).await
    }

    async fn list(&self, filter: &ContextFilter, page: &ContextPageRequest) -> Result<ContextPage> {
        self.there()?;
        self.contexts.list(filter, page).await
    }

    async fn signal(&self, id: TransitionId, name: &str, payload: &Value) -> Result<()> {
        self.there()?;
        ContextStore::signal(&self.contexts, id, name, payload).await
    }

    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.there()?;
        self.contexts.cancel(id, reason).await
    }

    async fn wake(&self, id: TransitionId) -> Result<()> {
        self.there()?;
        self.contexts.wake(id).await
    }

    async fn retry(&self, id: TransitionId) -> Result<()> {
        self.there()?;
        ContextStore::retry(&self.contexts, id).await
    }

    async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        self.there()?;
        ContextStore::release_quarantined(&self.contexts, id).await
    }

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        self.there()?;
        self.contexts.delete(id).await
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        self.there()?;
        ContextStore::prune(&self.contexts, over_for, limit).await
    }
}
