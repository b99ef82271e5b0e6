//! The trait that a store implements.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde_json::Value;

use super::{
    Beat, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest, Contexts,
    DueClaim, GiveBack, Proof, RunClaim, Save, Saved, StoredContext,
};
use crate::{Result, TransitionId};

/// A store of contexts. See [the module](crate::store) for the rules that it must keep.
pub trait ContextStore: Send + Sync + 'static {
    /// What messages call it.
    fn name(&self) -> &'static str;

    /// The same store over connections of its own, which belong to the runtime that polls this; none
    /// for a store that any thread can use at any time, whatever the others do.
    ///
    /// Heartbeats use it: they must not wait for a connection whose task is stuck on a thread that
    /// somebody blocks.
    ///
    /// Cancel safe: nothing but the connections is lost.
    fn separate(&self) -> impl Future<Output = Result<Option<Contexts>>> + Send;

    /// The time by the store's clock.
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>>> + Send;

    /// Stores a new context ([`StoredContext::create`]), with a run-lease if one is asked for, and
    /// gives its revision, 1.
    ///
    /// Cancel safe: it is stored or it is not, and may be asked for again: a row that
    /// [is a repetition](StoredContext::is_repetition) is no error.
    ///
    /// # Errors
    /// [`ContextExists`](crate::ErrorKind::ContextExists).
    fn create(
        &self,
        draft: &ContextDraft,
        run: Option<&RunClaim>,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// The context as it stands; none when there is no such one.
    fn load(&self, id: TransitionId) -> impl Future<Output = Result<Option<StoredContext>>> + Send;

    /// Takes the run-lease ([`StoredContext::claim`]) and gives the context as it then stands. Of
    /// two who know the same revision one wins.
    ///
    /// Cancel safe: it is claimed or it is not, and may be asked for again with the same token.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), and those of the rule.
    fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> impl Future<Output = Result<StoredContext>> + Send;

    /// Takes the run-leases of contexts of a machine that are due ([`StoredContext::claim_due`]),
    /// those first that have been due longest, and gives them as they then stand. Callers at the
    /// same time get different ones, and nobody waits for anybody. Those that were tried too often
    /// are quarantined on the way, and not given.
    ///
    /// A row that cannot be read is passed over, however many there are.
    ///
    /// Cancel safety: dropped midway, some may be claimed that nobody goes on with; their run-leases
    /// end by themselves.
    fn claim_due(
        &self,
        due: &DueClaim<'_>,
    ) -> impl Future<Output = Result<Vec<StoredContext>>> + Send;

    /// How long until the next context of a machine is due, by the store's clock: nothing when one
    /// is due now, none when none will be by itself.
    fn next_due(&self, machine: &str) -> impl Future<Output = Result<Option<Duration>>> + Send;

    /// Writes a draft over a context ([`StoredContext::save`]).
    ///
    /// Cancel safe: it is saved or it is not, and may be asked for again with the same draft.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound),
    /// [`ContextConflict`](crate::ErrorKind::ContextConflict).
    fn save(&self, save: &Save<'_>) -> impl Future<Output = Result<Saved>> + Send;

    /// Renews a run-lease ([`StoredContext::heartbeat`]), unless it is another's by now or the
    /// context is gone, and tells whether the context is to be called off.
    ///
    /// Cancel safe: asking again is harmless.
    fn heartbeat(&self, proof: Proof, ttl: Duration) -> impl Future<Output = Result<Beat>> + Send;

    /// Gives a run-lease back without a save ([`StoredContext::release`]); false when it was
    /// another's, or the context is gone.
    ///
    /// Cancel safe: asking again is harmless.
    fn release(
        &self,
        proof: Proof,
        how: &GiveBack<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// What a filter lets through, sorted by id and so by age, a page at a time.
    fn list(
        &self,
        filter: &ContextFilter,
        page: &ContextPageRequest,
    ) -> impl Future<Output = Result<ContextPage>> + Send;

    /// Keeps a signal for a context ([`StoredContext::signal`]).
    ///
    /// Cancel safety: dropped midway, it may have come or not; asked again, it may come twice.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), and those of the rule.
    fn signal(
        &self,
        id: TransitionId,
        name: &str,
        payload: &Value,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Calls a context off ([`StoredContext::cancel`]).
    ///
    /// Cancel safe: it is called off or it is not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), and those of the rule.
    fn cancel(
        &self,
        id: TransitionId,
        reason: &str,
    ) -> impl Future<Output = Result<Cancelled>> + Send;

    /// Makes a paused context due now ([`StoredContext::wake`]).
    ///
    /// Cancel safe: it is due or it is not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), and those of the rule.
    fn wake(&self, id: TransitionId) -> impl Future<Output = Result<()>> + Send;

    /// Lets a failed context go on from the action that failed ([`StoredContext::retry`]).
    ///
    /// Cancel safe: it goes on or it does not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound), and those of the rule.
    fn retry(&self, id: TransitionId) -> impl Future<Output = Result<()>> + Send;

    /// Ends a quarantine ([`StoredContext::release_quarantined`]); false when there was none.
    ///
    /// Cancel safe: it has ended or it has not.
    ///
    /// # Errors
    /// [`ContextNotFound`](crate::ErrorKind::ContextNotFound).
    fn release_quarantined(&self, id: TransitionId) -> impl Future<Output = Result<bool>> + Send;

    /// Removes a context that is over and has no lock to give back; false when there is none such.
    ///
    /// Cancel safe: it is removed or it is not.
    fn delete(&self, id: TransitionId) -> impl Future<Output = Result<bool>> + Send;

    /// Removes up to `limit` contexts that have been over for this long and have no lock to give
    /// back; gives how many.
    ///
    /// Cancel safe: each is removed or it is not.
    fn prune(&self, over_for: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// [`ContextStore`] in the form that can stand behind a pointer; made by the blanket impl below.
pub(crate) trait DynContextStore: Send + Sync {
    fn name(&self) -> &'static str;
    fn separate(&self) -> BoxFuture<'_, Result<Option<Contexts>>>;
    fn now(&self) -> BoxFuture<'_, Result<DateTime<Utc>>>;
    fn create<'a>(
        &'a self,
        draft: &'a ContextDraft,
        run: Option<&'a RunClaim>,
    ) -> BoxFuture<'a, Result<u64>>;
    fn load(&self, id: TransitionId) -> BoxFuture<'_, Result<Option<StoredContext>>>;
    fn claim<'a>(
        &'a self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &'a RunClaim,
    ) -> BoxFuture<'a, Result<StoredContext>>;
    fn claim_due<'a>(&'a self, due: &'a DueClaim<'a>) -> BoxFuture<'a, Result<Vec<StoredContext>>>;
    fn next_due<'a>(&'a self, machine: &'a str) -> BoxFuture<'a, Result<Option<Duration>>>;
    fn save<'a>(&'a self, save: &'a Save<'a>) -> BoxFuture<'a, Result<Saved>>;
    fn heartbeat(&self, proof: Proof, ttl: Duration) -> BoxFuture<'_, Result<Beat>>;
    fn release<'a>(&'a self, proof: Proof, how: &'a GiveBack<'a>) -> BoxFuture<'a, Result<bool>>;
    fn list<'a>(
        &'a self,
        filter: &'a ContextFilter,
        page: &'a ContextPageRequest,
    ) -> BoxFuture<'a, Result<ContextPage>>;
    fn signal<'a>(
        &'a self,
        id: TransitionId,
        name: &'a str,
        payload: &'a Value,
    ) -> BoxFuture<'a, Result<()>>;
    fn cancel<'a>(&'a self, id: TransitionId, reason: &'a str) -> BoxFuture<'a, Result<Cancelled>>;
    fn wake(&self, id: TransitionId) -> BoxFuture<'_, Result<()>>;
    fn retry(&self, id: TransitionId) -> BoxFuture<'_, Result<()>>;
    fn release_quarantined(&self, id: TransitionId) -> BoxFuture<'_, Result<bool>>;
    fn delete(&self, id: TransitionId) -> BoxFuture<'_, Result<bool>>;
    fn prune(&self, over_for: Duration, limit: usize) -> BoxFuture<'_, Result<u64>>;
}

impl<T: ContextStore> DynContextStore for T {
    fn name(&self) -> &'static str {
        ContextStore::name(self)
    }
    fn separate(&self) -> BoxFuture<'_, Result<Option<Contexts>>> {
        Box::pin(ContextStore::separate(self))
    }
    fn now(&self) -> BoxFuture<'_, Result<DateTime<Utc>>> {
        Box::pin(ContextStore::now(self))
    }
    fn create<'a>(
        &'a self,
        draft: &'a ContextDraft,
        run: Option<&'a RunClaim>,
    ) -> BoxFuture<'a, Result<u64>> {
        Box::pin(ContextStore::create(self, draft, run))
    }
    fn load(&self, id: TransitionId) -> BoxFuture<'_, Result<Option<StoredContext>>> {
        Box::pin(ContextStore::load(self, id))
    }
    fn claim<'a>(
        &'a self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &'a RunClaim,
    ) -> BoxFuture<'a, Result<StoredContext>> {
        Box::pin(ContextStore::claim(self, id, revision, claim))
    }
    fn claim_due<'a>(&'a self, due: &'a DueClaim<'a>) -> BoxFuture<'a, Result<Vec<StoredContext>>> {
        Box::pin(ContextStore::claim_due(self, due))
    }
    fn next_due<'a>(&'a self, machine: &'a str) -> BoxFuture<'a, Result<Option<Duration>>> {
        Box::pin(ContextStore::next_due(self, machine))
    }
    fn save<'a>(&'a self, save: &'a Save<'a>) -> BoxFuture<'a, Result<Saved>> {
        Box::pin(ContextStore::save(self, save))
    }
    fn heartbeat(&self, proof: Proof, ttl: Duration) -> BoxFuture<'_, Result<Beat>> {
        Box::pin(ContextStore::heartbeat(self, proof, ttl))
    }
    fn release<'a>(&'a self, proof: Proof, how: &'a GiveBack<'a>) -> BoxFuture<'a, Result<bool>> {
        Box::pin(ContextStore::release(self, proof, how))
    }
    fn list<'a>(
        &'a self,
        filter: &'a ContextFilter,
        page: &'a ContextPageRequest,
    ) -> BoxFuture<'a, Result<ContextPage>> {
        Box::pin(ContextStore::list(self, filter, page))
    }
    fn signal<'a>(
        &'a self,
        id: TransitionId,
        name: &'a str,
        payload: &'a Value,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(ContextStore::signal(self, id, name, payload))
    }
    fn cancel<'a>(&'a self, id: TransitionId, reason: &'a str) -> BoxFuture<'a, Result<Cancelled>> {
        Box::pin(ContextStore::cancel(self, id, reason))
    }
    fn wake(&self, id: TransitionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(ContextStore::wake(self, id))
    }
    fn retry(&self, id: TransitionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(ContextStore::retry(self, id))
    }
    fn release_quarantined(&self, id: TransitionId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(ContextStore::release_quarantined(self, id))
    }
    fn delete(&self, id: TransitionId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(ContextStore::delete(self, id))
    }
    fn prune(&self, over_for: Duration, limit: usize) -> BoxFuture<'_, Result<u64>> {
        Box::pin(ContextStore::prune(self, over_for, limit))
    }
}
