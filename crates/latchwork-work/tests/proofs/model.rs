//! Random operations by random actors beside a small model: after each the database agrees with itself
//! and with the model.

use std::collections::BTreeMap;

use latchwork_work::{
    Checkout, Failure, ItemId, ItemState, Lease, OrderId, OrderState, Submission, WorkManager,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::json;

use crate::test_database::{TestDatabase, ada, agent, propose, verified};
use crate::{millis, proofs};

proofs![w01_random_operations_keep_everything_in_agreement];

#[derive(Clone, Debug)]
enum Step {
    Propose { items: u8, keyed: bool },
    Checkout { agent: u8, limit: u8 },
    Heartbeat(u8),
    Release(u8),
    Snooze(u8),
    Submit(u8),
    Fail { which: u8, permanent: bool },
    Requeue(u8),
    Retry(u8),
    Cancel(u8),
    DeadLetter(u8),
    Seal,
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        2 => (1..4_u8, any::<bool>()).prop_map(|(items, keyed)| Step::Propose { items, keyed }),
        6 => (0..3_u8, 1..4_u8).prop_map(|(agent, limit)| Step::Checkout { agent, limit }),
        2 => n().prop_map(Step::Heartbeat),
        2 => n().prop_map(Step::Release),
        1 => n().prop_map(Step::Snooze),
        4 => n().prop_map(Step::Submit),
        2 => (n(), any::<bool>()).prop_map(|(which, permanent)| Step::Fail { which, permanent }),
        1 => n().prop_map(Step::Requeue),
        1 => n().prop_map(Step::Retry),
        1 => n().prop_map(Step::Cancel),
        1 => n().prop_map(Step::DeadLetter),
        1 => Just(Step::Seal),
    ]
}

/// What the model knows: the leases that must be in force, and the orders.
#[derive(Default)]
struct Model {
    leases: Vec<Lease>,
    orders: Vec<OrderId>,
    /// Items that were submitted once stay so until their order is cancelled.
    submitted: BTreeMap<ItemId, OrderId>,
}

impl Model {
    fn lease(&self, which: u8) -> Option<Lease> {
        let at = usize::from(which).checked_rem(self.leases.len())?;
        self.leases.get(at).cloned()
    }

    fn order(&self, which: u8) -> Option<OrderId> {
        let at = usize::from(which).checked_rem(self.orders.len())?;
        self.orders.get(at).copied()
    }

    fn ended(&mut self, lease: &Lease) {
        self.leases.retain(|one| one.id != lease.id);
    }
}

async fn w01_random_operations_keep_everything_in_agreement(database: TestDatabase) {
    let (runs, steps) = if database.is_sqlite() { (6, 60) } else { (3, 60) };
    let seed = rand::random();
    println!("seed {seed}");
    let config = Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let mut runner = TestRunner::new(config);
    let managers = [database.manager().await, database.manager().await];
    for _ in 0..runs {
        let all = prop::collection::vec(step(), steps).new_tree(&mut runner).expect("steps");
        let mut model = Model::default();
        let mut said = Vec::new();
        for (n, step) in all.current().into_iter().enumerate() {
            said.push(format!("{step:?}"));
            take(&managers[n % 2], &mut model, step).await;
            agree(&database, &managers[0], &model, &said).await;
        }
        for order in model.orders {
            let _ = ada(&managers[0]).cancel(order, "the run is over").await;
        }
    }
    verified(&managers[0]).await;
    let left = "SELECT (SELECT count(*) FROM latchwork_work_lease) \
        + (SELECT count(*) FROM latchwork_work_ready)";
    assert_eq!(database.number(left).await, 0);
}

async fn take(work: &WorkManager, model: &mut Model, step: Step) {
    let by = |lease: &Lease| agent(work, &lease.agent);
    match step {
        Step::Propose { items, keyed } => {
            let order = match keyed {
                true => {
                    let keys = vec!["k"; items.into()];
                    propose(work, "keyed", json!({"keys": keys, "limit": 2})).await
                }
                false => propose(work, "job", json!({ "items": items })).await,
            };
            model.orders.push(order.id);
        }
        Step::Checkout { agent: n, limit } => {
            let client = agent(work, &format!("agent-{n}"));
            let wish = Checkout::any().limit(limit.into());
            model.leases.extend(client.checkout(wish).await.expect("asked").leases);
        }
        Step::Heartbeat(n) => {
            let Some(lease) = model.lease(n) else { return };
            by(&lease).heartbeat(lease.id).await.expect("held");
        }
        Step::Release(n) => {
            let Some(lease) = model.lease(n) else { return };
            by(&lease).release(lease.id, None).await.expect("released");
            model.ended(&lease);
        }
        Step::Snooze(n) => {
            let Some(lease) = model.lease(n) else { return };
            by(&lease).snooze(lease.id, millis(1)).await.expect("snoozed");
            model.ended(&lease);
        }
        Step::Submit(n) => {
            let Some(lease) = model.lease(n) else { return };
            by(&lease).submit(Submission::new(&lease, json!(1))).await.expect("submitted");
            model.submitted.insert(lease.item_id, lease.order_id);
            model.ended(&lease);
            let again = by(&lease).submit(Submission::new(&lease, json!(1))).await;
            assert_eq!(again.expect_err("over").code(), "lease_expired");
        }
        Step::Fail { which, permanent } => {
            let Some(lease) = model.lease(which) else { return };
            let failure = Failure::new("x", "y");
            let failure = if permanent { failure.permanent() } else { failure };
            by(&lease).fail(lease.id, failure).await.expect("failed");
            model.ended(&lease);
        }
        Step::Requeue(n) => {
            let Some(order) = model.order(n) else { return };
            if ada(work).requeue(order, "again").await.is_ok() {
                model.leases.retain(|lease| lease.order_id != order);
            }
        }
        Step::Retry(n) => {
            let Some(order) = model.order(n) else { return };
            let _ = ada(work).retry(order).await;
        }
        Step::Cancel(n) => {
            let Some(order) = model.order(n) else { return };
            if ada(work).cancel(order, "x").await.is_ok() {
                model.leases.retain(|lease| lease.order_id != order);
                model.submitted.retain(|_, of| *of != order);
            }
        }
        Step::DeadLetter(n) => {
            let Some(order) = model.order(n) else { return };
            if ada(work).dead_letter(order, "x").await.is_ok() {
                model.leases.retain(|lease| lease.order_id != order);
                model.submitted.retain(|_, of| *of != order);
            }
        }
        Step::Seal => drop(work.seal().await.expect("sealed")),
    }
}

/// State ↔ events ↔ leases ↔ counts ↔ limits ↔ what can be leased.
async fn agree(database: &TestDatabase, work: &WorkManager, model: &Model, said: &[String]) {
    let tables = [
        // A lease for each leased item, and for no other.
        (
            "lease",
            "SELECT count(*) FROM latchwork_work_item i WHERE (i.state IN ('leased', \
          'in_progress')) <> EXISTS (SELECT 1 FROM latchwork_work_lease l WHERE l.item_id = i.id \
          AND l.fence = i.fence)",
        ),
        // Queued items of live orders can be leased, and nothing else can.
        (
            "ready",
            "SELECT count(*) FROM latchwork_work_item i JOIN latchwork_work_order o \
          ON o.id = i.order_id WHERE (i.state = 'queued' AND o.state IN ('queued', 'checked_out', \
          'in_progress')) <> EXISTS (SELECT 1 FROM latchwork_work_ready r WHERE r.item_id = i.id)",
        ),
        // Limits count the leases that count for them, and are not exceeded.
        (
            "limit",
            "SELECT count(*) FROM latchwork_work_limit m WHERE m.held <> (SELECT count(*) \
          FROM latchwork_work_lease l WHERE l.lane = m.key AND l.counted & 4 <> 0) OR m.held > m.max",
        ),
        // What is open of a key is what its limit leaves.
        (
            "open",
            "SELECT count(*) FROM latchwork_work_limit m WHERE m.held < m.max AND EXISTS \
          (SELECT 1 FROM latchwork_work_ready r WHERE r.lane = m.key AND r.hold = 1) AND NOT EXISTS \
          (SELECT 1 FROM latchwork_work_ready r WHERE r.lane = m.key AND r.hold <> 1)",
        ),
        // As many results as an item says, and as many events of its submission.
        (
            "results",
            "SELECT count(*) FROM latchwork_work_item i WHERE i.results <> (SELECT count(*) \
          FROM latchwork_work_result r WHERE r.item_id = i.id) OR i.results <> (SELECT count(*) \
          FROM latchwork_work_event e WHERE e.item_id = i.id AND e.event = 'submitted')",
        ),
        // A fence for each lease there was.
        (
            "fence",
            "SELECT count(*) FROM latchwork_work_item i WHERE i.fence <> (SELECT count(*) \
          FROM latchwork_work_event e WHERE e.item_id = i.id AND e.event = 'leased')",
        ),
    ];
    for (what, sql) in tables {
        assert_eq!(database.number(sql).await, 0, "{what} after {said:#?}");
    }
    let leases = database.number("SELECT count(*) FROM latchwork_work_lease").await;
    assert_eq!(leases, i64::try_from(model.leases.len()).expect("few"), "after {said:#?}");
    for order in &model.orders {
        let found = work.order(*order).await.expect("an order");
        let (state, counts) = (found.order.state, found.item_counts);
        let held = counts.get(ItemState::Leased) + counts.get(ItemState::InProgress);
        let of_model = model.leases.iter().filter(|lease| lease.order_id == *order).count();
        assert_eq!(held as usize, of_model, "after {said:#?}");
        let submitted = model.submitted.values().filter(|of| *of == order).count();
        assert_eq!(counts.get(ItemState::Submitted) as usize, submitted, "after {said:#?}");
        let policy = found.order.settings.failure;
        let next = latchwork_work::next_order_state(state, &counts, policy);
        assert_eq!(next, None, "the order has followed its items, after {said:#?}");
        if state == OrderState::DeadLettered {
            assert_eq!(counts.get(ItemState::DeadLettered), counts.total(), "after {said:#?}");
        }
    }
}
