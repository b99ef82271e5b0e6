//! A machine with locks, a store and a witness, for the cases that move something.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_flow::{
    Action, ActionContext, ActionResult, BoxError, Contexts, EntityKey, Event, EventRecord, State,
    StateMachine, StateMachineBuilder,
};
use latchwork_lock::{InMemoryLockProvider, LockConfig, Locks};
use serde::{Deserialize, Serialize};

use super::Fixture;

/// What the cases move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) note: String,
}

/// How they want it moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) status: Option<String>,
}

impl State for Order {
    type Delta = Change;

    fn with(&self, change: &Change) -> Self {
        let status = change.status.clone().unwrap_or_else(|| self.status.clone());
        Order { status, ..self.clone() }
    }

    fn id(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&*self.id)).filter(|id| !id.is_empty())
    }

    fn status(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&*self.status))
    }

    fn target(change: &Change) -> Option<Cow<'_, str>> {
        change.status.as_deref().map(Cow::Borrowed)
    }
}

/// A draft.
pub(super) fn draft() -> Order {
    Order { id: "ORD-123".into(), status: "draft".into(), note: String::new() }
}

/// To publish it.
pub(super) fn publish() -> Change {
    Change { status: Some("published".into()) }
}

/// The key that the machine of a fixture locks for the draft.
pub(super) const KEY: &str = "flow:entity:ORD-123";

/// Everything that a machine needs, and what it did.
#[derive(Clone)]
pub(super) struct MachineFixture {
    pub(super) f: Fixture,
    pub(super) locks: Locks,
    pub(super) store: Contexts,
    events: Arc<Mutex<Vec<EventRecord>>>,
    ran: Arc<Mutex<Vec<String>>>,
}

impl MachineFixture {
    pub(super) async fn new(f: &Fixture) -> Self {
        MachineFixture {
            f: f.clone(),
            locks: Locks::new(InMemoryLockProvider::with_clock(f.clock())),
            store: f.open().await,
            events: Arc::default(),
            ran: Arc::default(),
        }
    }

    /// The same place as another process sees it: a connection of its own.
    pub(super) async fn elsewhere(&self) -> Self {
        MachineFixture { store: self.f.open().await, ..self.clone() }
    }

    /// The same with other locks.
    pub(super) fn with_locks(&self, locks: Locks) -> Self {
        MachineFixture { locks, ..self.clone() }
    }

    /// A machine with locks, store and witness.
    pub(super) fn stored(&self) -> StateMachineBuilder<Order> {
        self.plain().store(self.store.clone()).run_lease(self.f.unit() * 10)
    }

    /// A machine with locks and witness, and without a store.
    pub(super) fn plain(&self) -> StateMachineBuilder<Order> {
        let events = self.events.clone();
        StateMachine::builder(self.f.machine())
            .locks(&self.locks, EntityKey::new())
            .lock_config(self.lock_config())
            .renew_lock_up_to(Duration::ZERO)
            .observe(move |event: &Event<'_, Order>| {
                events.lock().unwrap().push(event.to_record());
            })
    }

    /// Locks that last until a case lets time pass.
    pub(super) fn lock_config(&self) -> LockConfig {
        LockConfig { ttl: self.f.unit() * 10, ..LockConfig::default() }
    }

    /// An action that notes that it ran.
    pub(super) fn noting(&self, name: &'static str) -> Noting {
        Noting { name, ran: self.ran.clone() }
    }

    /// Notes something among the actions that ran.
    pub(super) fn note(&self, what: impl Into<String>) {
        self.ran.lock().unwrap().push(what.into());
    }

    /// What was noted.
    pub(super) fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }

    /// What the witness saw.
    pub(super) fn events(&self) -> Vec<EventRecord> {
        self.events.lock().unwrap().clone()
    }

    /// The names of what it saw.
    pub(super) fn event_names(&self) -> Vec<&'static str> {
        self.events().iter().map(|event| event.name).collect()
    }

    /// Whether somebody holds the draft's lock.
    pub(super) async fn is_locked(&self) -> bool {
        self.locks.exists(KEY).await.expect("it answers")
    }

    /// More time than a lock or a run-lease of this fixture lasts.
    pub(super) fn too_long(&self) -> Duration {
        self.f.unit() * 11
    }
}

/// An action that notes that it ran.
pub(super) struct Noting {
    name: &'static str,
    ran: Arc<Mutex<Vec<String>>>,
}

impl Action<Order> for Noting {
    fn name(&self) -> &str {
        self.name
    }

    async fn execute(&self, _: ActionContext<Order>) -> Result<ActionResult<Order>, BoxError> {
        self.ran.lock().unwrap().push(self.name.to_owned());
        Ok(ActionResult::proceed())
    }
}
