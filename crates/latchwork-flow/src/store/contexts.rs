//! The front door to a store, for those who look after contexts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{
    Beat, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest, ContextStore,
    DueClaim, DynContextStore, GiveBack, Proof, RunClaim, Save, Saved, StoredContext,
};
use crate::{ContextSummary, Error, InMemoryContextStore, Result, TransitionId};

/// The contexts of one store: to list, signal, cancel and prune them. Cloning is cheap, and clones
/// are the same store.
///
/// It needs no machine, and so none of the code of gates and actions: an operator's tool has this.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> latchwork_flow::Result<()> {
/// use latchwork_flow::Contexts;
/// use latchwork_flow::store::{ContextFilter, ContextPageRequest};
///
/// let contexts = Contexts::connect("memory:").await?;
/// let page = contexts.list(&ContextFilter::default(), &ContextPageRequest::default()).await?;
/// assert!(page.contexts.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Contexts {
    store: Arc<dyn DynContextStore>,
}

impl Contexts {
    /// The contexts of a store of your own making or configuration.
    pub fn new(store: impl ContextStore) -> Self {
        Contexts { store: Arc::new(store) }
    }

    /// The contexts at an address: `memory:`, `sqlite:///file.db`, `postgres://host/database`, as
    /// far as this build has them.
    ///
    /// Every `memory:` is a new, separate store; clone the `Contexts` to share it.
    ///
    /// Cancel safe: nothing but the connection is lost.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`NotBuilt`](crate::ErrorKind::NotBuilt) for one whose store was left out of this build, and
    /// what the store itself reports.
    pub async fn connect(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        match scheme {
            "memory" if rest.is_empty() => Ok(Contexts::new(InMemoryContextStore::new())),
            #[cfg(feature = "sqlite")]
            "sqlite" => crate::SqliteContextStore::open(url).await.map(Contexts::new),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                crate::PostgresContextStore::connect(url).await.map(Contexts::new)
            }
            #[cfg(not(feature = "sqlite"))]
            "sqlite" => Err(not_built(scheme, "sqlite")),
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => Err(not_built(scheme, "postgres")),
            // The address may have a password, so no message repeats it.
            _ => Err(Error::invalid_argument(
                "url",
                "contexts are kept at memory:, sqlite:///file.db or postgres://host/database",
            )),
        }
    }

    /// What messages call the store.
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }

    /// What a filter lets through, oldest first, a page at a time.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a limit outside of 1 to 1,000, or
    /// what the store reports.
    pub async fn list(
        &self,
        filter: &ContextFilter,
        page: &ContextPageRequest,
    ) -> Result<ContextPage> {
        if !(1..=1_000).contains(&page.limit) {
            return Err(Error::invalid_argument(
                "limit",
                format!("{} is not between 1 and 1,000", page.limit),
            ));
        }
        self.store.list(filter, page).await
    }

    /// What can be shown of one context.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), or what the store reports.
    pub async fn show(&self, id: TransitionId) -> Result<ContextSummary> {
        Ok(self.load(id).await?.head.summary())
    }

    /// One context with its body, which is a secret.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), or what the store reports.
    pub async fn load(&self, id: TransitionId) -> Result<StoredContext> {
        self.store.load(id).await?.ok_or_else(|| Error::context_not_found(id))
    }

    /// Sends a signal. A context that waits for one of this name becomes due; one that does not
    /// (yet) keeps it.
    ///
    /// Cancel safety: dropped midway, it may have come or not; sent again, it may come twice.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound),
    /// [`TransitionOver`](crate::ErrorKind::TransitionOver),
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an empty name, or what the store
    /// reports.
    pub async fn signal(&self, id: TransitionId, name: &str, payload: Value) -> Result<()> {
        if name.is_empty() {
            return Err(Error::invalid_argument("signal", "its name is empty"));
        }
        self.store.signal(id, name, &payload).await
    }

    /// Calls a transition off: at once if no process is at it; else that process learns of it after
    /// its present action. A lock that a cancelled pause has kept is given back by the next runner,
    /// or ends with its ttl.
    ///
    /// Cancel safe: it is called off or it is not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound),
    /// [`TransitionOver`](crate::ErrorKind::TransitionOver), or what the store reports.
    pub async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.store.cancel(id, reason).await
    }

    /// Makes a paused context due now, whatever it waits for: the next runner resumes it, and its
    /// next action is told [`Woken::Hand`](crate::Woken::Hand).
    ///
    /// Cancel safe: it is due or it is not.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn wake(&self, id: TransitionId) -> Result<()> {
        self.store.wake(id).await
    }

    /// Lets a failed transition go on from the action that failed, with the same idempotency key; one
    /// that failed before its first action begins anew. The next runner does it, or
    /// [`StateMachine::resume`](crate::StateMachine::resume).
    ///
    /// Its lock was released when it failed, so the entity may have changed since: see
    /// [`StateMachineBuilder::load`](crate::StateMachineBuilder::load) and
    /// [`rebase`](crate::StateMachineBuilder::rebase).
    ///
    /// Cancel safe: it goes on or it does not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound),
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for one that has not failed, or what the
    /// store reports.
    pub async fn retry(&self, id: TransitionId) -> Result<()> {
        self.store.retry(id).await
    }

    /// Lets a [quarantined](crate::Status::Quarantined) context be claimed again, and counts its
    /// attempts anew; false when it was not quarantined.
    ///
    /// Cancel safe: it is released or it is not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), or what the store reports.
    pub async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        self.store.release_quarantined(id).await
    }

    /// Removes a context that is over; false when there is none such.
    ///
    /// Cancel safe: it is removed or it is not.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn delete(&self, id: TransitionId) -> Result<bool> {
        self.store.delete(id).await
    }

    /// Removes the contexts that have been over for this long, and gives how many.
    ///
    /// Cancel safe: each is removed or it is not.
    ///
    /// # Errors
    /// What the store reports.
    pub async fn prune(&self, over_for: Duration) -> Result<u64> {
        const STEP: usize = 1_000;
        let mut removed = 0;
        loop {
            let some = self.store.prune(over_for, STEP).await?;
            removed += some;
            if some < STEP as u64 {
                return Ok(removed);
            }
        }
    }
}

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn not_built(scheme: &str, feature: &'static str) -> Error {
    crate::ErrorKind::NotBuilt { scheme: scheme.to_owned(), feature }.into()
}

/// The port itself, for machines, runners and those who test stores.
impl ContextStore for Contexts {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn separate(&self) -> Result<Option<Contexts>> {
        self.store.separate().await
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.store.now().await
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        self.store.create(draft, run).await
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        self.store.load(id).await
    }

    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        self.store.claim(id, revision, claim).await
    }

    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        self.store.claim_due(due).await
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        self.store.next_due(machine).await
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.store.save(save).await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        self.store.heartbeat(proof, ttl).await
    }

    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        self.store.release(proof, how).await
    }

    async fn list(&self, filter: &ContextFilter, page: &ContextPageRequest) -> Result<ContextPage> {
        self.store.list(filter, page).await
    }

    async fn signal(&self, id: TransitionId, name: &str, payload: &Value) -> Result<()> {
        self.store.signal(id, name, payload).await
    }

    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.store.cancel(id, reason).await
    }

    async fn wake(&self, id: TransitionId) -> Result<()> {
        self.store.wake(id).await
    }

    async fn retry(&self, id: TransitionId) -> Result<()> {
        self.store.retry(id).await
    }

    async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        self.store.release_quarantined(id).await
    }

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        self.store.delete(id).await
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        self.store.prune(over_for, limit).await
    }
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").field("store", &self.store_name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_none_is_refused_without_being_repeated() {
        for url in ["", "secret", "memory:secret", "http://user:secret@host", "sqlite-secret:x"] {
            let error = Contexts::connect(url).await.expect_err(url);
            assert_eq!(error.code(), "invalid_argument", "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        Contexts::connect("memory:").await.expect("a store");
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn an_address_leads_to_its_store() {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("a.db").display());
        let contexts = Contexts::connect(&url).await.expect("a store");
        assert_eq!(contexts.store_name(), "sqlite");
    }
}
