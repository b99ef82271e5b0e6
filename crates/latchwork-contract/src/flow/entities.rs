//! A table of orders as a user would have it: with versions, the last transition and a fence gate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use latchwork_flow::store::{ContextStore, DueClaim, RunClaim};
use latchwork_flow::{
    BoxError, EntityChanged, Loaded, MergeDelta, SaveRequest, StateMachine, StateMachineBuilder,
    StateWorker, TransitionId,
};
use latchwork_lock::FenceGate;

use super::machine_fixture::{KEY, MachineFixture, Order};

/// The orders, and how often they were loaded and saved.
#[derive(Clone, Default)]
pub(super) struct Orders {
    rows: Arc<Mutex<HashMap<String, Row>>>,
    gate: Arc<FenceGate>,
    loads: Arc<Mutex<u32>>,
    saves: Arc<Mutex<u32>>,
    /// Whether the loader tells neither versions nor the last transition.
    plain: bool,
}

#[derive(Clone)]
struct Row {
    order: Order,
    version: u64,
    last: Option<TransitionId>,
}

impl Orders {
    pub(super) fn with(order: Order) -> Self {
        let orders = Orders::default();
        orders.write(order);
        orders
    }

    /// Orders whose loader tells neither versions nor the last transition.
    pub(super) fn without_versions(order: Order) -> Self {
        Orders { plain: true, ..Orders::with(order) }
    }

    /// Somebody writes an order, under no lock.
    pub(super) fn write(&self, order: Order) {
        let mut rows = self.rows.lock().unwrap();
        let version = rows.get(&order.id).map_or(1, |row| row.version + 1);
        rows.insert(order.id.clone(), Row { order, version, last: None });
    }

    pub(super) fn read(&self, id: &str) -> Order {
        self.rows.lock().unwrap()[id].order.clone()
    }

    pub(super) fn remove(&self, id: &str) {
        self.rows.lock().unwrap().remove(id);
    }

    pub(super) fn loads(&self) -> u32 {
        *self.loads.lock().unwrap()
    }

    pub(super) fn saves(&self) -> u32 {
        *self.saves.lock().unwrap()
    }

    pub(super) fn load(&self, id: &str) -> Option<Loaded<Order>> {
        *self.loads.lock().unwrap() += 1;
        let row = self.rows.lock().unwrap().get(id).cloned()?;
        let loaded = Loaded::new(row.order);
        if self.plain {
            return Some(loaded);
        }
        Some(loaded.version(row.version).last_transition(row.last))
    }

    /// One transaction: the fence, then the version, then the row.
    pub(super) fn save(&self, request: SaveRequest<Order>) -> Result<(), BoxError> {
        let mut rows = self.rows.lock().unwrap();
        self.gate.check(KEY, request.fence)?;
        let row = rows.get_mut(&request.entity).ok_or("the order is gone")?;
        if let Some(expected) = request.expected_version
            && expected != row.version.to_string()
        {
            return Err(EntityChanged.into());
        }
        *self.saves.lock().unwrap() += 1;
        let (version, last) = (row.version + 1, Some(request.transition));
        *row = Row { order: request.state, version, last };
        Ok(())
    }

    /// A machine that loads and saves these orders, and merges the delta at the end.
    pub(super) fn machine(
        &self,
        builder: StateMachineBuilder<Order>,
    ) -> StateMachineBuilder<Order> {
        let (load, save) = (self.clone(), self.clone());
        builder
            .load(move |id| {
                let loaded = load.load(&id);
                async move { Ok(loaded) }
            })
            .save(move |request| {
                let saved = save.save(request);
                async move { saved }
            })
            .action(MergeDelta)
    }
}

/// What a runner does: claims the one context that is due.
pub(super) async fn take(
    fixture: &MachineFixture,
    machine: &StateMachine<Order>,
) -> StateWorker<Order> {
    let claim = RunClaim::new(fixture.f.unit() * 10);
    let due = DueClaim::new(fixture.f.machine(), 1, &claim);
    let rows = fixture.store.claim_due(&due).await.expect("it answers");
    machine.take(rows.into_iter().next().expect("one is due"), claim).expect("its own")
}

impl MachineFixture {
    /// A gate that lets only drafts through.
    pub(super) fn only_drafts(builder: StateMachineBuilder<Order>) -> StateMachineBuilder<Order> {
        builder.gate_fn("is_draft", |order, _| {
            latchwork_flow::GateResult::allow_if(order.status == "draft", "not a draft")
        })
    }
}
