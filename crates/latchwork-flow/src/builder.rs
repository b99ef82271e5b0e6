//! A machine under construction.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{Capability, Clock, Key, LockConfig, LockStrategy, Locks, SystemClock};

use crate::configuration::{DynConfigurationProvider, Script};
use crate::context::MachineLabel;
use crate::entity::{Entities, Load, Rebase, Save};
use crate::heartbeat::Heartbeats;
use crate::lock_key::EntityKeyFn;
use crate::machine::{Locking, Machine};
use crate::migrate::Migrate;
use crate::{
    Action, ActionContext, ActionResult, AnyAction, AnyGate, BoxError, ConfigurationProvider,
    ContextStore, Contexts, Error, Gate, GateResult, Loaded, LockKeyProvider, Observer,
    OlderContext, Result, SaveRequest, State, StateMachine,
};

/// A [`StateMachine`] under construction; made by [`StateMachine::builder`].
///
/// Its methods take what they are given by value; [`Locks`] by reference, too, since they are one
/// handle for many machines. A name is anything that is text.
#[must_use = "a builder makes nothing until `build` is called"]
pub struct StateMachineBuilder<S: State> {
    name: String,
    definition: u32,
    migrate: Option<Migrate>,
    gates: Vec<AnyGate<S>>,
    actions: Vec<AnyAction<S>>,
    provider: Option<Box<dyn DynConfigurationProvider<S>>>,
    locks: Option<(Locks, Box<dyn LockKeyProvider<S>>)>,
    lock_config: Option<LockConfig>,
    load: Option<Load<S>>,
    save: Option<Save<S>>,
    rebase: Option<Rebase<S>>,
    renew: Option<Duration>,
    store: Option<Contexts>,
    run_ttl: Option<Duration>,
    action_limit: Duration,
    observers: Vec<Box<dyn Observer<S>>>,
    clock: Option<Arc<dyn Clock>>,
}

/// How long a process may be silent before another takes its context over, where the lock's ttl does
/// not ask for less.
const RUN_TTL: Duration = Duration::from_secs(10);

/// How long the lock of a stored transition is renewed unless told.
const RENEW_UP_TO: Duration = Duration::from_secs(3_600);

/// How long an action may take that says nothing else.
const ACTION_LIMIT: Duration = Duration::from_secs(600);

impl<S: State> StateMachineBuilder<S> {
    pub(crate) fn new(name: String) -> Self {
        StateMachineBuilder {
            name,
            definition: 1,
            migrate: None,
            gates: Vec::new(),
            actions: Vec::new(),
            provider: None,
            locks: None,
            lock_config: None,
            load: None,
            save: None,
            rebase: None,
            renew: None,
            store: None,
            run_ttl: None,
            action_limit: ACTION_LIMIT,
            observers: Vec::new(),
            clock: None,
        }
    }

    /// The version of this machine's definition, 1 unless told. Raise it when older programs must not
    /// go on with what this one has begun. What they have begun is read as it is, or
    /// [migrated](Self::migrate).
    pub fn definition(mut self, version: u32) -> Self {
        self.definition = version;
        self
    }

    /// Brings what older [definitions](Self::definition) have stored up to this one, before it is
    /// read: the state, the delta, and the names of the actions that are left. It is asked for every
    /// context of an older definition that is not over, whenever it is read, and stored with the next
    /// save: from then on older programs refuse the context. It may be asked for the same context more
    /// than once, and must give the same answer.
    ///
    /// ```
    /// use latchwork_flow::prelude::*;
    ///
    /// let machine = StateMachine::<JsonState>::builder("publish")
    ///     .definition(2)
    ///     .migrate(|older| {
    ///         // Definition 1 had one name, and an action that is named otherwise now.
    ///         if let Some(state) = &mut older.state {
    ///             state["names"] = serde_json::json!([state["name"].take()]);
    ///         }
    ///         for action in older.remaining.iter_mut().flatten() {
    ///             if action == "mail" {
    ///                 *action = "notify".to_owned();
    ///             }
    ///         }
    ///         Ok(())
    ///     })
    ///     .action_fn("notify", |_| async { Ok(ActionResult::proceed()) })
    ///     .build()?;
    /// # Ok::<(), latchwork_flow::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of the closure: anything; the context is not changed, counts an attempt, and is quarantined
    /// with [`MigrationFailed`](crate::ErrorKind::MigrationFailed) after some.
    pub fn migrate(
        mut self,
        migrate: impl Fn(&mut OlderContext) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.migrate = Some(Migrate::new(migrate));
        self
    }

    /// Adds a gate. Without a [configuration provider](Self::configure) every transition asks all
    /// gates in this order.
    pub fn gate(mut self, gate: impl Gate<S>) -> Self {
        self.gates.push(AnyGate::new(gate));
        self
    }

    /// Adds a closure as a gate.
    pub fn gate_fn(
        mut self,
        name: impl AsRef<str>,
        gate: impl Fn(&S, &S::Delta) -> GateResult + Send + Sync + 'static,
    ) -> Self {
        self.gates.push(AnyGate::from_fn(name, gate));
        self
    }

    /// Adds an action. Without a [configuration provider](Self::configure) every transition runs all
    /// actions in this order; with one, this is where it and paused transitions find them by name.
    pub fn action(mut self, action: impl Action<S>) -> Self {
        self.actions.push(AnyAction::new(action));
        self
    }

    /// Adds a closure as an action.
    pub fn action_fn<F, Fut>(mut self, name: impl AsRef<str>, action: F) -> Self
    where
        F: Fn(ActionContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ActionResult<S>, BoxError>> + Send + 'static,
    {
        self.actions.push(AnyAction::from_fn(name, action));
        self
    }

    /// Chooses gates and actions for each transition, once its lock is held.
    pub fn configure(mut self, provider: impl ConfigurationProvider<S>) -> Self {
        self.provider = Some(Box::new(provider));
        self
    }

    /// Moves only under a lock, whose key these keys give.
    pub fn locks(mut self, locks: impl Borrow<Locks>, keys: impl LockKeyProvider<S>) -> Self {
        self.locks = Some((locks.borrow().clone(), Box::new(keys)));
        self
    }

    /// Moves only under a lock, whose key a closure makes of state and delta.
    pub fn lock_key_fn(
        self,
        locks: impl Borrow<Locks>,
        key: impl Fn(&S, &S::Delta) -> Result<Key> + Send + Sync + 'static,
    ) -> Self {
        self.locks(locks, key)
    }

    /// Moves only under a lock, whose key a closure makes of the entity's id and the delta: for
    /// [`transition_of`](StateMachine::transition_of), whose state is loaded under that lock.
    pub fn entity_key_fn(
        self,
        locks: impl Borrow<Locks>,
        key: impl Fn(&str, &S::Delta) -> Result<Key> + Send + Sync + 'static,
    ) -> Self {
        self.locks(locks, EntityKeyFn(key))
    }

    /// Loads an entity, for [`transition_of`](StateMachine::transition_of): under its lock, before
    /// configuration and gates, and again whenever the lock was not held without a break. None: there
    /// is no such entity.
    ///
    /// It needs [locks](Self::locks) whose keys are made of id and delta alone:
    /// [`EntityKey`](crate::EntityKey), or an [`entity_key_fn`](Self::entity_key_fn).
    pub fn load<F, Fut>(mut self, load: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<Loaded<S>>, BoxError>> + Send + 'static,
    {
        self.load = Some(Box::new(move |entity| Box::pin(load(entity))));
        self
    }

    /// Saves an entity when all actions of its transition are through, before the transition counts
    /// as completed.
    ///
    /// The [request](SaveRequest) has the fence of the lock and the version that was loaded: check
    /// both in the transaction that writes. It may be asked to save the same transition again when the
    /// process ended right after it; the loader can tell by
    /// [`last_transition`](Loaded::last_transition). A [`StaleFence`](latchwork_lock::StaleFence) and
    /// an [`EntityChanged`](crate::EntityChanged) are understood; after any other error a stored
    /// transition is tried again, for as long as it takes, and one without a store has failed. A panic
    /// counts as an attempt, so that such a transition is quarantined after some.
    pub fn save<F, Fut>(mut self, save: F) -> Self
    where
        F: Fn(SaveRequest<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.save = Some(Box::new(move |request| Box::pin(save(request))));
        self
    }

    /// Makes a state to go on with of ours, on which the transition has worked already, and of the
    /// one that was loaded after a break of the lock and that others have changed. The gates have
    /// allowed the loaded one by then. Without it such a transition does not go on.
    ///
    /// # Errors
    /// Of the closure: anything; the transition fails then.
    pub fn rebase(
        mut self,
        rebase: impl Fn(&S, &S) -> Result<S, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.rebase = Some(Box::new(rebase));
        self
    }

    /// How the lock is asked for: strategy, ttl, how long to wait. Without it, as the
    /// [defaults of the locks](Locks::with_defaults) say.
    pub fn lock_config(mut self, config: LockConfig) -> Self {
        self.lock_config = Some(config);
        self
    }

    /// Renews the lock while actions run, until it was held for this long in all; zero: never.
    ///
    /// With a [store](Self::store) an hour unless told, so that the lock lasts as long as the run-lease
    /// that is kept alive beside it, and outlives the process until another takes over. Without a store
    /// never unless told. It always has a bound: a lock that never ends hides an action that is stuck.
    pub fn renew_lock_up_to(mut self, max_hold: Duration) -> Self {
        self.renew = Some(max_hold);
        self
    }

    /// Saves each transition after every action, so that a crash loses none and pauses are kept.
    pub fn store(mut self, store: impl ContextStore) -> Self {
        self.store = Some(Contexts::new(store));
        self
    }

    /// How long a process may be silent before another takes over what it is at; a third of the lock's
    /// ttl unless told, and 10 s at most. Actions that wait or block are no silence: a heartbeat goes on
    /// beside them.
    ///
    /// The lock must outlive the take-over, or others may move the entity in between and the
    /// transition has to look at it again (F14). A renewed lock lasts at least two thirds of its ttl
    /// after its process has died; choose less than that.
    pub fn run_lease(mut self, ttl: Duration) -> Self {
        self.run_ttl = Some(ttl);
        self
    }

    /// How long an action or a gate may take; ten minutes unless told. An action can say otherwise
    /// ([`ActionPolicy::time_limit`](crate::ActionPolicy::time_limit)), and a machine without limits
    /// says `Duration::MAX`.
    ///
    /// What has to wait longer than that should not wait but
    /// [pause](crate::ActionResult::pause), or be [repeated](crate::ActionResult::retry_after).
    pub fn action_limit(mut self, limit: Duration) -> Self {
        self.action_limit = limit;
        self
    }

    /// Tells this one of everything that happens.
    pub fn observe(mut self, observer: impl Observer<S>) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Where the time comes from: the locks' clock unless told.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The machine.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an empty name, two gates or two
    /// actions of one name, version zero, a run-lease of less than ten milliseconds, an illegal ttl,
    /// settings of a lock without locks, and a loader whose entities could not be locked.
    pub fn build(self) -> Result<StateMachine<S>> {
        if self.name.is_empty() || self.name.chars().any(char::is_control) {
            return Err(Error::invalid_argument(
                "machine name",
                "it is empty or has control characters",
            ));
        }
        if self.definition == 0 {
            return Err(Error::invalid_argument("definition", "versions begin with 1"));
        }
        if self.action_limit.is_zero() {
            return Err(Error::invalid_argument("action limit", "no time at all is none"));
        }
        if self.run_ttl.is_some_and(|ttl| ttl < SHORTEST_RUN) {
            return Err(Error::invalid_argument("run lease", "it is shorter than 10 ms"));
        }
        let mut gates = BTreeMap::new();
        for gate in &self.gates {
            check_name("gate", &gate.name)?;
            if gates.insert(gate.name.clone(), gate.clone()).is_some() {
                return Err(twice("gate", &gate.name));
            }
        }
        let mut actions = BTreeMap::new();
        for action in &self.actions {
            check_name("action", &action.name)?;
            if actions.insert(action.name.clone(), action.clone()).is_some() {
                return Err(twice("action", &action.name));
            }
        }
        if self.locks.is_none() && (self.lock_config.is_some() || self.renew.is_some()) {
            return Err(Error::invalid_argument(
                "locks",
                "there are settings of a lock and no locks: call `locks`",
            ));
        }
        let locking = self.locks.map(|(locks, keys)| Locking {
            config: self.lock_config.unwrap_or_else(|| locks.defaults().clone()),
            keys,
            renew: match (self.renew, &self.store) {
                (Some(bound), _) => Some(bound).filter(|bound| !bound.is_zero()),
                (None, Some(_)) if locks.capabilities().has(Capability::Renew) => Some(RENEW_UP_TO),
                (None, _) => None,
            },
            locks,
        });
        if let Some(locking) = &locking {
            locking.config.check()?;
        }
        let entities = match self.load {
            Some(load) => Some(Entities { load, save: self.save, rebase: self.rebase }),
            None if self.save.is_some() || self.rebase.is_some() => {
                return Err(Error::invalid_argument(
                    "loader",
                    "there is a `save` or a `rebase`, and no `load`",
                ));
            }
            None => None,
        };
        if entities.is_some() {
            check_entity_locks(locking.as_ref())?;
        }
        let run_ttl = run_lease(self.run_ttl, locking.as_ref(), &self.name);
        let clock = self.clock.unwrap_or_else(|| match &locking {
            Some(locking) => locking.locks.clock().clone(),
            None => SystemClock::shared(),
        });
        let name: Arc<str> = self.name.into();
        let all = Script { gates: self.gates, actions: self.actions };
        let machine = Machine {
            label: Arc::new(MachineLabel {
                name: name.clone(),
                actions: all.names(),
                clock: clock.clone(),
            }),
            name,
            definition: self.definition,
            migrate: self.migrate,
            gates,
            actions,
            all: Arc::new(all),
            provider: self.provider,
            locking,
            entities,
            heartbeats: self.store.clone().map(|store| Heartbeats::new(store, clock.clone())),
            store: self.store,
            run_ttl,
            action_limit: self.action_limit,
            observers: self.observers,
            clock,
        };
        Ok(StateMachine::new(machine))
    }
}

/// The shortest run-lease.
const SHORTEST_RUN: Duration = Duration::from_millis(10);

/// The run-lease of a machine, which its lock should outlive.
fn run_lease<S: State>(
    told: Option<Duration>,
    locking: Option<&Locking<S>>,
    machine: &str,
) -> Duration {
    let Some(locking) = locking else { return told.unwrap_or(RUN_TTL) };
    let ttl = locking.config.ttl;
    let Some(run_ttl) = told else { return RUN_TTL.min(ttl / 3).max(SHORTEST_RUN) };
    if run_ttl >= ttl {
        tracing::warn!(
            machine, run_lease = ?run_ttl, lock_ttl = ?ttl,
            "the lock ends before another process takes over what a dead one was at; \
             choose a run-lease of half the lock's ttl at most"
        );
    }
    run_ttl
}

/// Refuses locks under which an entity cannot be loaded.
fn check_entity_locks<S: State>(locking: Option<&Locking<S>>) -> Result<()> {
    let wrong = match locking {
        None => "an entity is loaded under its lock, and there are no locks: call `locks`",
        Some(locking) if locking.config.strategy == LockStrategy::None => {
            "an entity is loaded under its lock, and the strategy is to take none"
        }
        Some(locking) if !locking.keys.has_entity_keys() => {
            "the keys of the locks need a state, which is loaded under the lock: \
             use EntityKey, or `entity_key_fn`"
        }
        Some(_) => return Ok(()),
    };
    Err(Error::invalid_argument("loader", wrong))
}

fn check_name(what: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid_argument(what, "its name is empty"));
    }
    Ok(())
}

fn twice(what: &'static str, name: &str) -> Error {
    Error::invalid_argument(what, format!("two are named {name:?}: each needs a name of its own"))
}
