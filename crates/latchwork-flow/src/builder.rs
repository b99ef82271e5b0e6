//! A machine under construction.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{Clock, Key, LockConfig, LockStrategy, Locks, SystemClock};

use crate::configuration::{DynConfigurationProvider, Script};
use crate::context::MachineLabel;
use crate::entity::{Entities, Load, Rebase, Save};
use crate::lock_key::EntityKeyFn;
use crate::machine::{Locking, Machine};
use crate::{
    Action, ActionContext, ActionResult, AnyAction, AnyGate, BoxError, ConfigurationProvider,
    ContextStore, Contexts, Error, Gate, GateResult, Loaded, LockKeyProvider, Observer, Result,
    SaveRequest, State, StateMachine,
};

/// A [`StateMachine`] under construction; made by [`StateMachine::builder`].
#[must_use = "a builder makes nothing until `build` is called"]
pub struct StateMachineBuilder<S: State> {
    name: String,
    definition: u32,
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
    run_ttl: Duration,
    observers: Vec<Box<dyn Observer<S>>>,
    clock: Option<Arc<dyn Clock>>,
}

/// How long a process may be silent before another takes its context over.
const RUN_TTL: Duration = Duration::from_secs(30);

impl<S: State> StateMachineBuilder<S> {
    pub(crate) fn new(name: String) -> Self {
        StateMachineBuilder {
            name,
            definition: 1,
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
            run_ttl: RUN_TTL,
            observers: Vec::new(),
            clock: None,
        }
    }

    /// The version of this machine's definition, 1 unless told. Raise it when older programs must not
    /// go on with what this one has begun.
    pub fn definition(mut self, version: u32) -> Self {
        self.definition = version;
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
        name: &str,
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
    pub fn action_fn<F, Fut>(mut self, name: &str, action: F) -> Self
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
    pub fn locks(mut self, locks: &Locks, keys: impl LockKeyProvider<S>) -> Self {
        self.locks = Some((locks.clone(), Box::new(keys)));
        self
    }

    /// Moves only under a lock, whose key a closure makes of state and delta.
    pub fn lock_key_fn(
        self,
        locks: &Locks,
        key: impl Fn(&S, &S::Delta) -> Result<Key> + Send + Sync + 'static,
    ) -> Self {
        self.locks(locks, key)
    }

    /// Moves only under a lock, whose key a closure makes of the entity's id and the delta: for
    /// [`transition_of`](StateMachine::transition_of), whose state is loaded under that lock.
    pub fn entity_key_fn(
        self,
        locks: &Locks,
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
    /// transition is tried again, and one without a store has failed.
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

    /// Renews the lock while actions run, until it was held for this long in all. Off by default: a
    /// lock that never ends hides an action that is stuck.
    pub fn renew_lock_up_to(mut self, max_hold: Duration) -> Self {
        self.renew = Some(max_hold);
        self
    }

    /// Saves each transition after every action, so that a crash loses none and pauses are kept.
    pub fn store(mut self, store: impl ContextStore) -> Self {
        self.store = Some(Contexts::new(store));
        self
    }

    /// How long a process may be silent before another takes over what it is at; 30 s unless told.
    /// Actions that wait are no silence: a heartbeat goes on beside them.
    pub fn run_lease(mut self, ttl: Duration) -> Self {
        self.run_ttl = ttl;
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
        if self.run_ttl < Duration::from_millis(10) {
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
            locks,
            keys,
            renew: self.renew,
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
        let clock = self.clock.unwrap_or_else(|| match &locking {
            Some(locking) => locking.locks.clock().clone(),
            None => SystemClock::shared(),
        });
        let name: Arc<str> = self.name.into();
        let all = Script { gates: self.gates, actions: self.actions };
        let machine = Machine {
            label: Arc::new(MachineLabel { name: name.clone(), actions: all.names() }),
            name,
            definition: self.definition,
            gates,
            actions,
            all: Arc::new(all),
            provider: self.provider,
            locking,
            entities,
            store: self.store,
            run_ttl: self.run_ttl,
            observers: self.observers,
            clock,
        };
        Ok(StateMachine::new(machine))
    }
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
