//! A machine under construction.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{Clock, LockConfig, Locks, SystemClock};

use crate::configuration::{DynConfigurationProvider, Script};
use crate::context::MachineLabel;
use crate::machine::{Locking, Machine};
use crate::{
    Action, ActionContext, ActionResult, AnyAction, AnyGate, BoxError, ConfigurationProvider,
    ContextStore, Contexts, Error, Gate, GateResult, LockKeyProvider, Observer, Result, State,
    StateMachine,
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
    lock_config: LockConfig,
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
            lock_config: LockConfig::default(),
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

    /// How the lock is asked for: strategy, ttl, how long to wait.
    pub fn lock_config(mut self, config: LockConfig) -> Self {
        self.lock_config = config;
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
    /// actions of one name, version zero, or a run-lease of less than ten milliseconds.
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
        let lock_config = self.lock_config;
        let locking = self.locks.map(|(locks, keys)| Locking {
            locks,
            keys,
            config: lock_config,
            renew: self.renew,
        });
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
            store: self.store,
            run_ttl: self.run_ttl,
            observers: self.observers,
            clock,
        };
        Ok(StateMachine::new(machine))
    }
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
