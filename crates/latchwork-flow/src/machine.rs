//! The machine: built once, stateless, shared by all.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::FutureExt;

use latchwork_lock::{Clock, LockConfig, Locks};

use crate::configuration::{Configuration, DynConfigurationProvider, Script, Step};
use crate::context::MachineLabel;
use crate::entity::{Entities, Entity};
use crate::error::{Chain, panic_text};
use crate::heartbeat::Heartbeats;
use crate::migrate::Migrate;
use crate::store::{RunClaim, StoredContext};
use crate::{
    AnyAction, AnyGate, BoxError, ContextStore, Contexts, Error, ErrorKind, LockKeyProvider,
    Observer, Reloaded, Result, State, StateMachineBuilder, StateWorker, TransitionContext,
    TransitionId,
};

/// Moves states of one type: gates decide whether, actions do it, under a lock if one is given.
///
/// It is built once and has no state of its own; cloning is cheap, and clones are the same machine.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> latchwork_flow::Result<()> {
/// use latchwork_flow::{ActionResult, EntityKey, GateResult, JsonState, Loaded, MergeDelta, StateMachine};
/// use latchwork_lock::Locks;
/// use serde_json::json;
///
/// let publish = StateMachine::<JsonState>::builder("publish")
///     .locks(Locks::connect("memory:").await?, EntityKey::new())
///     .load(|id| async move {
///         // SELECT state, version FROM orders WHERE id = $1
///         Ok(Some(Loaded::new(JsonState::new(json!({"id": id, "status": "draft"}))?).version(7)))
///     })
///     .gate_fn("is_draft", |order, _| {
///         GateResult::allow_if(order.get("status") == Some(&json!("draft")), "not a draft")
///     })
///     .action_fn("notify", |at| async move {
///         println!("tell the readers, once: {}", at.idempotency_key());
///         Ok(ActionResult::proceed())
///     })
///     .action(MergeDelta)
///     .build()?;
///
/// let delta = JsonState::delta(json!({"status": "published"}))?;
/// let done = publish.transition_of("ORD-1", delta).execute().await?;
/// assert!(done.is_completed());
/// assert_eq!(done.state().and_then(|order| order.get("status")), Some(&json!("published")));
/// # Ok(()) }
/// ```
pub struct StateMachine<S: State> {
    inner: Arc<Machine<S>>,
}

pub(crate) struct Machine<S: State> {
    pub(crate) name: Arc<str>,
    pub(crate) label: Arc<MachineLabel>,
    pub(crate) definition: u32,
    /// Brings contexts of older definitions up to this one.
    pub(crate) migrate: Option<Migrate>,
    pub(crate) gates: BTreeMap<Arc<str>, AnyGate<S>>,
    pub(crate) actions: BTreeMap<Arc<str>, AnyAction<S>>,
    /// All of them, in order: the configuration where there is no provider.
    pub(crate) all: Arc<Script<S>>,
    pub(crate) provider: Option<Box<dyn DynConfigurationProvider<S>>>,
    pub(crate) locking: Option<Locking<S>>,
    pub(crate) entities: Option<Entities<S>>,
    pub(crate) store: Option<Contexts>,
    pub(crate) run_ttl: Duration,
    /// Keeps the run-leases in the store alive.
    pub(crate) heartbeats: Option<Heartbeats>,
    /// How long an action may take that says nothing else.
    pub(crate) action_limit: Duration,
    pub(crate) observers: Vec<Box<dyn Observer<S>>>,
    pub(crate) clock: Arc<dyn Clock>,
}

pub(crate) struct Locking<S: State> {
    pub(crate) locks: Locks,
    pub(crate) keys: Box<dyn LockKeyProvider<S>>,
    pub(crate) config: LockConfig,
    pub(crate) renew: Option<Duration>,
}

impl<S: State> StateMachine<S> {
    /// A machine under construction. The name stands in stored contexts: only a machine of the same
    /// name goes on with them.
    pub fn builder(name: impl AsRef<str>) -> StateMachineBuilder<S> {
        StateMachineBuilder::new(name.as_ref().to_owned())
    }

    pub(crate) fn new(machine: Machine<S>) -> Self {
        StateMachine { inner: Arc::new(machine) }
    }

    pub(crate) fn inner(&self) -> &Arc<Machine<S>> {
        &self.inner
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The version of its definition.
    pub fn definition(&self) -> u32 {
        self.inner.definition
    }

    /// Its store, if it has one.
    pub fn contexts(&self) -> Option<&Contexts> {
        self.inner.store.as_ref()
    }

    /// Its locks, if it has some.
    pub fn locks(&self) -> Option<&Locks> {
        self.inner.locking.as_ref().map(|locking| &locking.locks)
    }

    /// How long a process may be silent before another takes over what it is at.
    pub fn run_lease(&self) -> Duration {
        self.inner.run_ttl
    }

    /// The clock by which it tells the time.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// A transition of an entity. Nothing happens until it is [executed](StateWorker::execute).
    ///
    /// Its state is [loaded](StateMachineBuilder::load) under the lock, before configuration and
    /// gates, so that they judge what is there and not what was read earlier: of two who want to
    /// publish a draft, the second finds it published. When all actions are through it is
    /// [saved](StateMachineBuilder::save) with the fence of the lock. Stopped, failed or called off, a
    /// transition saves nothing.
    pub fn transition_of(&self, entity: impl AsRef<str>, delta: S::Delta) -> StateWorker<S> {
        let entity = Some(Box::new(Entity::new(entity.as_ref())));
        self.worker(None, entity, delta)
    }

    /// A transition of a state that the caller has. Nothing happens until it is
    /// [executed](StateWorker::execute).
    ///
    /// What it cannot promise: that the state is still that of the entity. Whatever the caller read
    /// before the lock was taken may have changed since, so that two callers who have read the same
    /// draft both publish it, one after the other. It is neither loaded nor saved by the machine, and
    /// after a break of the lock it goes on only with a state that
    /// [`resume_or_reacquire`](Self::resume_or_reacquire) or
    /// [`FlowRunner::reload`](crate::FlowRunner::reload) has looked up. Use it for states that nobody
    /// else can change, or where the write that follows checks a version;
    /// [`transition_of`](Self::transition_of) has none of these gaps.
    pub fn transition(&self, state: S, delta: S::Delta) -> StateWorker<S> {
        self.worker(Some(state), None, delta)
    }

    fn worker(
        &self,
        state: Option<S>,
        entity: Option<Box<Entity>>,
        delta: S::Delta,
    ) -> StateWorker<S> {
        let (machine, now) = (&*self.inner, self.inner.now());
        let context = TransitionContext::new(machine, state, entity, delta, now);
        StateWorker::new(self.inner.clone(), context)
    }

    /// A transition of an entity, executed: [`transition_of`](Self::transition_of) and
    /// [`execute`](StateWorker::execute) in one, for those who need no worker.
    ///
    /// Cancel safety and errors: as for [`execute`](StateWorker::execute).
    pub fn run_of(
        &self,
        entity: impl AsRef<str>,
        delta: S::Delta,
    ) -> impl Future<Output = Result<Arc<TransitionContext<S>>>> + Send {
        self.transition_of(entity, delta).run()
    }

    /// A transition, executed: [`transition`](Self::transition) and
    /// [`execute`](StateWorker::execute) in one, for those who need no worker.
    ///
    /// Cancel safety and errors: as for [`execute`](StateWorker::execute).
    pub fn run(
        &self,
        state: S,
        delta: S::Delta,
    ) -> impl Future<Output = Result<Arc<TransitionContext<S>>>> + Send {
        // Not an async fn, which would move state and delta once more.
        self.transition(state, delta).run()
    }

    /// Stores a transition for a runner to begin, and gives its id.
    ///
    /// Cancel safe: it is stored or it is not.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without a store, or what the store reports.
    pub async fn submit(&self, state: S, delta: S::Delta) -> Result<TransitionId> {
        self.store_new(self.transition(state, delta)).await
    }

    /// Stores a transition of an entity for a runner to begin, and gives its id. The state is loaded
    /// when it begins.
    ///
    /// Cancel safe: it is stored or it is not.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without a store or a loader, or what the store
    /// reports.
    pub async fn submit_of(
        &self,
        entity: impl AsRef<str> + Send,
        delta: S::Delta,
    ) -> Result<TransitionId> {
        let worker = self.transition_of(entity, delta);
        worker.check_loader()?;
        self.store_new(worker).await
    }

    async fn store_new(&self, worker: StateWorker<S>) -> Result<TransitionId> {
        let store = self.need_store()?;
        let draft = worker.draft()?;
        store.create(&draft, None).await?;
        Ok(draft.id)
    }

    /// Reads a context that [`TransitionContext::to_json`] wrote, and checks that this machine can
    /// go on with it. Nothing is changed.
    ///
    /// # Errors
    /// [`CorruptContext`](ErrorKind::CorruptContext), [`ForeignContext`](ErrorKind::ForeignContext),
    /// [`NewerContext`](ErrorKind::NewerContext), [`InvalidState`](ErrorKind::InvalidState),
    /// [`InvalidDelta`](ErrorKind::InvalidDelta), [`UnknownStep`](ErrorKind::UnknownStep),
    /// [`MigrationFailed`](ErrorKind::MigrationFailed).
    pub fn read_context(&self, json: &str) -> Result<TransitionContext<S>> {
        let Machine { label, definition, migrate, .. } = &*self.inner;
        let context = TransitionContext::from_json(json, label, *definition, migrate.as_ref())?;
        if !context.status().is_over() {
            context.check_shape()?;
            self.inner.remaining(&context)?;
        }
        Ok(context)
    }

    /// Goes on with a context: one that was [read](Self::read_context), or what
    /// [`execute`](StateWorker::execute) gave. Nothing happens until it is [executed](StateWorker::execute): then
    /// the stored revision is claimed, if there is a store, then the lock's lease is resumed, then
    /// the next action runs.
    ///
    /// # Errors
    /// [`ForeignContext`](ErrorKind::ForeignContext), [`UnknownStep`](ErrorKind::UnknownStep),
    /// [`TransitionOver`](ErrorKind::TransitionOver).
    pub fn from_context(
        &self,
        context: impl Into<Arc<TransitionContext<S>>>,
    ) -> Result<StateWorker<S>> {
        let context = Arc::unwrap_or_clone(context.into());
        if context.machine() != self.name() {
            let (expected, found) = (self.name().to_owned(), context.machine().to_owned());
            return Err(ErrorKind::ForeignContext { expected, found }.into());
        }
        if context.status().is_over() {
            let (id, status) = (context.id(), context.status());
            return Err(ErrorKind::TransitionOver { id, status }.into());
        }
        let script = self.inner.remaining(&context)?;
        Ok(StateWorker::resumed(self.inner.clone(), context, script))
    }

    /// Goes on with a stored context. It is only read; nothing happens until it is
    /// [executed](StateWorker::execute).
    ///
    /// # Errors
    /// [`ContextNotFound`](ErrorKind::ContextNotFound), those of
    /// [`read_context`](Self::read_context) and [`from_context`](Self::from_context), or what the
    /// store reports.
    pub async fn resume(&self, id: TransitionId) -> Result<StateWorker<S>> {
        let stored = Contexts::load(self.need_store()?, id).await?;
        let status = stored.head.status;
        if status.is_over() {
            // Also where a cancelled pause has left a lock: giving that back is a runner's.
            return Err(ErrorKind::TransitionOver { id, status }.into());
        }
        self.worker_of(&stored)
    }

    /// Goes on with a context that was [claimed](ContextStore::claim_due): what a runner does. The
    /// worker knows why the context was due.
    ///
    /// # Errors
    /// Those of [`read_context`](Self::read_context). The claim is the caller's to give back then.
    pub fn take(&self, stored: StoredContext, claim: RunClaim) -> Result<StateWorker<S>> {
        let mut worker = self.worker_of(&stored)?;
        worker.claimed(&stored.head, claim);
        Ok(worker)
    }

    fn worker_of(&self, stored: &StoredContext) -> Result<StateWorker<S>> {
        let mut context = self.read_context(&stored.body)?;
        context.check_row(&stored.head)?;
        if context.retried(&stored.head) {
            context.check_shape()?;
        }
        context.revision = stored.head.revision;
        // A cancellation is written beside the body.
        if stored.head.status.is_over() && !stored.head.holds_lock {
            let (id, status) = (context.id, stored.head.status);
            return Err(ErrorKind::TransitionOver { id, status }.into());
        }
        self.from_context(context)
    }

    /// Goes on with a stored context, also when its lock was lost: the recovery of seed 000 as one
    /// call. See [`StateWorker::execute_or_reacquire`].
    ///
    /// # Errors
    /// Those of [`resume`](Self::resume) and of [`StateWorker::execute_or_reacquire`].
    pub async fn resume_or_reacquire<F, Fut>(
        &self,
        id: TransitionId,
        reload: F,
    ) -> Result<Arc<TransitionContext<S>>>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        self.resume(id).await?.execute_or_reacquire(reload).await
    }

    fn need_store(&self) -> Result<&Contexts> {
        self.inner.store.as_ref().ok_or_else(|| {
            Error::invalid_argument(
                "store",
                format!("the machine {:?} has none: give it one when it is built", self.name()),
            )
        })
    }
}

impl<S: State> Machine<S> {
    /// The time, as exactly as anybody will see it: where nobody listens and nothing is stored, the
    /// last tick of the clock is near enough, and much cheaper.
    #[inline]
    pub(crate) fn now(&self) -> DateTime<Utc> {
        if self.observers.is_empty() && self.store.is_none() {
            self.clock.recent_wall()
        } else {
            self.clock.wall()
        }
    }

    /// The actions that a context still has to run, found by name.
    pub(crate) fn remaining(&self, context: &TransitionContext<S>) -> Result<Script<S>> {
        let names = context.remaining_actions().iter();
        let actions = names.map(|name| self.action(name)).collect::<Result<Vec<_>>>()?;
        Ok(Script { gates: Vec::new(), actions })
    }

    /// A configuration with all its names found.
    pub(crate) fn script(&self, configuration: Configuration<S>) -> Result<Script<S>> {
        let gates = configuration.gates.into_iter().map(|step| match step {
            Step::Own(gate) => Ok(gate),
            Step::Named(name) => self.gate(&name),
        });
        let gates = gates.collect::<Result<Vec<_>>>()?;
        let actions = configuration.actions.into_iter().map(|step| match step {
            // A process that resumes it must find it by name.
            Step::Own(action) if self.store.is_some() => self.action(&action.name).map(|_| action),
            Step::Own(action) => Ok(action),
            Step::Named(name) => self.action(&name),
        });
        Ok(Script { gates, actions: actions.collect::<Result<Vec<_>>>()? })
    }

    /// The gates and actions of a transition.
    pub(crate) async fn configured_for(
        &self,
        state: &S,
        delta: &S::Delta,
    ) -> Result<Arc<Script<S>>> {
        let Some(provider) = &self.provider else { return Ok(self.all.clone()) };
        let provided = AssertUnwindSafe(async { provider.provide(state, delta).await });
        let (reason, panicked, source) = match provided.catch_unwind().await {
            Ok(Ok(configuration)) => return self.script(configuration).map(Arc::new),
            Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
            Err(panic) => (panic_text(&*panic), true, None),
        };
        let (machine, what) = (self.name.to_string(), "configuration");
        Err(ErrorKind::ProviderFailed { machine, what, reason, panicked, source }.into())
    }

    fn action(&self, name: &str) -> Result<AnyAction<S>> {
        let found = self.actions.get(name).cloned();
        found.ok_or_else(|| self.unknown("action", name, self.actions.keys()))
    }

    fn gate(&self, name: &str) -> Result<AnyGate<S>> {
        let found = self.gates.get(name).cloned();
        found.ok_or_else(|| self.unknown("gate", name, self.gates.keys()))
    }

    fn unknown<'a>(
        &self,
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a Arc<str>>,
    ) -> Error {
        let mut known: Vec<_> = known.map(ToString::to_string).collect();
        known.sort_unstable();
        let (machine, name) = (self.name.to_string(), name.to_owned());
        ErrorKind::UnknownStep { machine, what, name, known }.into()
    }
}

impl<S: State> Clone for StateMachine<S> {
    fn clone(&self) -> Self {
        StateMachine { inner: self.inner.clone() }
    }
}

impl<S: State> fmt::Debug for StateMachine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateMachine")
            .field("name", &self.inner.name)
            .field("definition", &self.inner.definition)
            .field("actions", &self.inner.label.actions)
            .finish_non_exhaustive()
    }
}
