//! The trait, and the words of its questions and answers.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use latchwork_lock::provider::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CancelRequest, ContextDraft, ContextHead, Contexts, RunClaim, StoredContext};
use crate::{ContextSummary, Result, Status, TransitionId};

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

/// A draft, and by what right it is written.
#[derive(Clone, Copy, Debug)]
pub struct Save<'a> {
    /// What to write.
    pub draft: &'a ContextDraft,
    /// The revision that the writer knows.
    pub revision: u64,
    /// The secret of the writer's run-lease.
    pub token: Token,
    /// How long the run-lease goes on; none gives it back with the save.
    pub keep: Option<Duration>,
    /// The signal that was used and can go.
    pub used_signal: Option<u64>,
    /// Whether an action has completed since the last save: then attempts are counted anew.
    pub progress: bool,
}

/// Which contexts a runner wants, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct DueClaim<'a> {
    /// Of this machine.
    pub machine: &'a str,
    /// So many at most.
    pub limit: usize,
    /// For this one.
    pub claim: &'a RunClaim,
    /// Whether the caller is at a [suspect](SUSPECT): then it gets only contexts that nobody has
    /// tried yet; else one suspect at most.
    pub beside_suspect: bool,
    /// What was claimed so often without getting on is quarantined.
    pub max_attempts: u32,
    /// How long a suspect is left alone beyond its run-lease after its process has died a second time;
    /// doubles with each attempt, up to a minute.
    pub back_off: Duration,
    /// Not these.
    pub exclude: &'a [TransitionId],
}

impl<'a> DueClaim<'a> {
    /// Up to so many of a machine, with the limits that a runner has unless told.
    pub fn new(machine: &'a str, limit: usize, claim: &'a RunClaim) -> Self {
        DueClaim {
            machine,
            limit,
            claim,
            beside_suspect: false,
            max_attempts: MAX_ATTEMPTS,
            back_off: Duration::ZERO,
            exclude: &[],
        }
    }
}

/// How often a context is claimed without getting on before it is quarantined, unless told.
pub const MAX_ATTEMPTS: u32 = 5;

/// A context that was claimed this often without getting on is a *suspect*: perhaps it kills its
/// process, and all that is run beside it.
///
/// A process is at one of them at a time, and takes nothing else meanwhile but what nobody has tried
/// yet. So what died along with a suspect gets on without it, and does not end in quarantine beside
/// it. One death is enough: in a second one, what only ran beside the cause would often die between
/// taking over its lock and storing that it did, and would have to count its state as stale (F14).
pub const SUSPECT: u32 = 1;

/// What came of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether the run-lease was renewed; else it is another's, or nobody's.
    pub held: bool,
    /// Set when somebody wants the context called off.
    pub cancel: Option<CancelRequest>,
}

/// How a run-lease is given back without a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GiveBack<'a> {
    /// Runners leave the context alone for so long; none: it may be claimed at once.
    pub postpone: Option<Duration>,
    /// Whether it was an attempt. A graceful stop is none, nor is a lock that somebody else has.
    pub counts: bool,
    /// Why it did not get on.
    pub reason: Option<&'a str>,
}

/// What came of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The revision that it has now.
    pub revision: u64,
    /// Set when somebody wants it called off: the run-lease is kept then, so that the writer can
    /// see to it.
    pub cancel: Option<CancelRequest>,
}

/// What came of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// It is cancelled, and no action of it will begin any more.
    Done,
    /// A process is at it, and will learn of it with its next heartbeat or save.
    Asked,
}

/// The right to a run-lease.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// The context.
    pub id: TransitionId,
    /// The secret.
    pub token: Token,
}

/// Which contexts are wanted; everything unless told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextFilter {
    /// Only of this machine.
    pub machine: Option<String>,
    /// Only of this entity.
    pub entity: Option<String>,
    /// Only those that stand here.
    pub status: Option<Status>,
    /// Only those that are seen so.
    pub view: View,
}

/// A way to look at contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// All of them.
    #[default]
    All,
    /// Those with which a runner has something to do now.
    Due,
    /// Those whose process has let its run-lease run out.
    Orphaned,
    /// Those that a process is at.
    Held,
}

impl ContextFilter {
    /// Whether a context is wanted at this time, for stores that look at each.
    pub fn lets_through(&self, head: &ContextHead, now: DateTime<Utc>) -> bool {
        let run_until = head.run.as_ref().map(|run| run.expires_at);
        self.machine.as_ref().is_none_or(|machine| *machine == head.machine)
            && self.entity.as_ref().is_none_or(|entity| Some(entity) == head.entity.as_ref())
            && self.status.is_none_or(|status| status == head.shown_status())
            && match self.view {
                View::All => true,
                View::Due => head.due_at.is_some_and(|at| at <= now),
                View::Orphaned => run_until.is_some_and(|until| until <= now),
                View::Held => run_until.is_some_and(|until| until > now),
            }
    }
}

/// Which part of a listing is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextPageRequest {
    /// How many at most, 1 to 1,000.
    pub limit: usize,
    /// Only those behind this one: the [`next`](ContextPage::next) of the page before.
    pub after: Option<TransitionId>,
}

impl Default for ContextPageRequest {
    fn default() -> Self {
        ContextPageRequest { limit: 100, after: None }
    }
}

/// One part of a listing, sorted by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContextPage {
    /// The contexts, without any secret.
    pub contexts: Vec<ContextSummary>,
    /// The rows among them that cannot be read, which must not hide the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Where the next page begins; none when this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<TransitionId>,
}

/// A row of a store that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// Its id, as far as it is one.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
}

impl ContextPage {
    /// The page of what a store found when it looked for one more than was wanted.
    pub fn cut(
        found: impl IntoIterator<Item = Result<ContextSummary, Unreadable>>,
        limit: usize,
    ) -> Self {
        let mut page = ContextPage::default();
        let mut last = None;
        for (index, row) in found.into_iter().enumerate() {
            if index >= limit {
                page.next = last;
                break;
            }
            match row {
                Ok(context) => {
                    last = Some(context.id);
                    page.contexts.push(context);
                }
                Err(row) => {
                    last = row.id.parse().ok().or(last);
                    page.unreadable.push(row);
                }
            }
        }
        page
    }
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
