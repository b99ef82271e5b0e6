//! Maintenance beside rows that are damaged, locked, or very many.

use latchwork_work::{
    Actor, ApplySettings, Approval, AutoApprove, Checkout, Diff, DynamicOrderType, EventNote,
    ItemState, Maintenance, MaintenanceSettings, OrderState, OrderTypes, PlannedItem, Rejection,
    ReviewDeadline, ReviewError, ReviewSettings, Submission, TypeSettings, WorkManager,
};
use serde_json::json;

use crate::test_database::{TestDatabase, ada, agent, propose, verified};
use crate::{millis, proofs};

proofs![
    w10_an_order_that_cannot_be_read_holds_up_no_seal,
    w11_an_item_that_cannot_be_read_holds_up_no_reclaim,
    w11_a_step_that_fails_keeps_no_other_from_its_turn,
    w11_an_order_with_many_items_is_removed_some_at_a_time,
    w11_pruning_keeps_up,
    w11_only_reviews_that_are_late_are_dealt_with,
    w02_an_order_with_very_many_items_goes_all_ways,
];

/// What needs two transactions at once.
pub(crate) const POSTGRES: &[crate::Proof] =
    &[("w10_a_long_apply_in_the_stores_transaction_holds_up_no_seal", |database| {
        Box::pin(a_long_apply_holds_up_no_seal(database))
    })];

fn sweeps(work: &WorkManager, settings: MaintenanceSettings) -> Maintenance {
    let locks = latchwork_lock::Locks::new(latchwork_lock::InMemoryLockProvider::new());
    Maintenance::new(work.clone(), locks, settings)
}

/// Everything that is over is removed at once.
fn pruning() -> MaintenanceSettings {
    let mut settings = MaintenanceSettings::default();
    settings.prune_orders_after = Some(millis(0));
    settings.prune_events_after = Some(millis(0));
    settings
}

async fn w10_an_order_that_cannot_be_read_holds_up_no_seal(database: TestDatabase) {
    let work = database.manager().await;
    let bad = propose(&work, "job", json!({"items": 2})).await.id;
    let client = agent(&work, "agent-1");
    let leases = client.checkout(Checkout::of_order(bad).limit(2)).await.expect("asked").leases;
    let damage = format!("UPDATE latchwork_work_order SET settings = '{{' WHERE id = '{bad}'");
    database.run(&damage).await;
    drop(client.submit(Submission::new(&leases[0], json!(1))).await);
    let good = propose(&work, "quick", json!({"items": 1})).await.id;
    let lease = client.checkout(Checkout::of_order(good)).await.expect("asked").leases.remove(0);
    client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    // The trail goes on, that of the damaged order too.
    verified(&work).await;
}

async fn w11_an_item_that_cannot_be_read_holds_up_no_reclaim(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "quick", json!({"items": 3})).await.id;
    let client = agent(&work, "dead");
    let leases = client.checkout(Checkout::of_order(order).limit(3)).await.expect("asked").leases;
    database
        .run(&format!(
            "UPDATE latchwork_work_item SET concurrency = '{{' WHERE id = '{}'",
            leases[0].item_id
        ))
        .await;
    database.run("UPDATE latchwork_work_lease SET expires_at = 0").await;
    assert_eq!(work.reclaim_expired().await.expect("the others"), 2);
    for lease in &leases[1..] {
        let item = work.item(lease.item_id).await.expect("an item").item;
        assert_eq!(item.state, ItemState::Queued);
    }
}

async fn w11_a_step_that_fails_keeps_no_other_from_its_turn(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "job", json!({"items": 1})).await.id;
    ada(&work).cancel(order, "x").await.expect("cancelled");
    verified(&work).await;
    // Orders cannot be removed any more.
    database.run("ALTER TABLE latchwork_work_approval RENAME TO elsewhere").await;
    let mut round = sweeps(&work, pruning());
    round.round().await.expect_err("it says so");
    let left = database.number("SELECT count(*) FROM latchwork_work_event").await;
    assert_eq!(left, 0, "events are removed all the same");
}

/// The items in transactions of their own, the order last.
async fn w11_an_order_with_many_items_is_removed_some_at_a_time(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "job", json!({"items": 2_500})).await.id;
    propose(&work, "job", json!({"items": 1})).await;
    ada(&work).cancel(order, "x").await.expect("cancelled");
    match database.is_sqlite() {
        true => {
            let sql = "CREATE TRIGGER kept BEFORE DELETE ON latchwork_work_order \
                BEGIN SELECT RAISE(ABORT, 'kept'); END";
            database.run(sql).await;
        }
        false => {
            database.run("CREATE TABLE kept AS SELECT id FROM latchwork_work_order").await;
            let key = "ALTER TABLE kept ADD FOREIGN KEY (id) REFERENCES latchwork_work_order (id)";
            database.run(key).await;
        }
    }
    sweeps(&work, pruning()).round().await.expect_err("the order cannot be removed");
    assert_eq!(work.order(order).await.expect("it is there").order.state, OrderState::DeadLettered);
    for table in ["item", "input"] {
        let sql = format!("SELECT count(*) FROM latchwork_work_{table}");
        assert_eq!(database.number(&sql).await, 1, "{table}: that of the other order");
    }
    let kept = if database.is_sqlite() { "DROP TRIGGER kept" } else { "DROP TABLE kept" };
    database.run(kept).await;
    assert_eq!(sweeps(&work, pruning()).round().await.expect("a round").orders_pruned, 1);
    assert_eq!(work.order(order).await.expect_err("it is gone").code(), "order_not_found");
    assert_eq!(database.number("SELECT count(*) FROM latchwork_work_payload").await, 1);
}

/// More than one batch in a round: what is pruned once a second in batches falls behind what comes in.
async fn w11_pruning_keeps_up(database: TestDatabase) {
    let work = database.manager().await;
    for n in 0..7 {
        let client = ada(&work).idempotent(format!("k{n}"));
        let proposal = latchwork_work::Proposal::new("job", json!({"items": 1}));
        let order = client.propose(proposal).await.expect("proposed").order.id;
        ada(&work).cancel(order, "x").await.expect("cancelled");
    }
    let events = verified(&work).await;
    database.run("UPDATE latchwork_work_idempotency SET expires_at = created_at").await;
    let mut settings = pruning();
    settings.batch = 2;
    let report = sweeps(&work, settings).round().await.expect("a round");
    assert_eq!((report.orders_pruned, report.keys, report.events_pruned), (7, 7, events));
    assert!(work.verify().await.expect("verified").is_intact());
}

/// Orders whose rule has no deadline, or a later one, wait on.
async fn w11_only_reviews_that_are_late_are_dealt_with(database: TestDatabase) {
    let with = |name: &str, after: Option<u64>| {
        let deadline = after.map(|after| ReviewDeadline {
            after: millis(after),
            then: latchwork_work::DeadlinePolicy::Reject,
        });
        let review = ReviewSettings { deadline, ..ReviewSettings::default() };
        let settings = TypeSettings { review, ..TypeSettings::default() };
        DynamicOrderType::new(name).settings(settings)
    };
    let mut types = OrderTypes::new();
    for one in [with("soon", Some(1)), with("later", Some(3_600_000)), with("never", None)] {
        types.add_dynamic(one).expect("legal");
    }
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    let client = agent(&work, "agent-1");
    let mut orders = Vec::new();
    for name in ["never", "soon", "later"] {
        orders.push(propose(&work, name, json!({})).await.id);
        let lease = client.checkout(Checkout::of_type(name)).await.expect("asked").leases.remove(0);
        client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    }
    tokio::time::sleep(millis(10)).await;
    let report = sweeps(&work, MaintenanceSettings::default()).round().await.expect("a round");
    assert_eq!(report.late, 1);
    let late = work.order(orders[1]).await.expect("an order").order;
    assert_eq!(late.state, OrderState::Rejected);
    let dealt = "SELECT count(*) FROM latchwork_work_order WHERE overdue_at IS NOT NULL";
    assert_eq!(database.number(dealt).await, 1);
}

/// An order is approved by its type's rule and applied in the store's transaction, which has its row: its
/// events are sealed all the same, and those of others.
async fn a_long_apply_holds_up_no_seal(database: TestDatabase) {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, may_go_on) = tokio::sync::watch::channel(false);
    let review = ReviewSettings {
        auto_approve: Some(AutoApprove { version: "1".to_owned(), schema: Some(json!(true)) }),
        ..ReviewSettings::default()
    };
    let apply = ApplySettings { in_transaction: true, ..ApplySettings::default() };
    let long = DynamicOrderType::new("long")
        .settings(TypeSettings { review, apply, ..TypeSettings::default() })
        .apply(move |_, _| {
            let (begun, mut may_go_on) = (begun.clone(), may_go_on.clone());
            Box::pin(async move {
                begun.send(()).expect("the test listens");
                may_go_on.wait_for(|go| *go).await.expect("the test is there");
                Ok(Diff::empty())
            })
        });
    let mut types = OrderTypes::new();
    types.add_dynamic(long).expect("legal");
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    let order = propose(&work, "long", json!({})).await.id;
    let client = agent(&work, "agent-1");
    let lease = client.checkout(Checkout::any()).await.expect("asked").leases.remove(0);
    client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    assert_eq!(work.order(order).await.expect("an order").order.state, OrderState::Approved);
    let worker = work.apply_worker("w").expect("legal");
    let applying = tokio::spawn(async move { worker.apply_next().await });
    has_begun.recv().await.expect("it applies");
    let other = propose(&work, "long", json!({})).await.id;
    client
        .transition_item(
            work.items(other, None, 1).await.expect("items")[0].item.id,
            ItemState::Failed,
            EventNote::new(),
        )
        .await
        .expect("moved");
    work.seal().await.expect("sealed");
    assert_eq!(work.verify().await.expect("verified").unsealed, 0, "nothing waits for the apply");
    go_on.send(true).expect("it waits");
    let done = applying.await.expect("no panic").expect("applied").expect("an order");
    assert_eq!(done.state, OrderState::Completed);
    verified(&work).await;
}

/// Each way of an order in turn; the size by `LATCHWORK_MANY_ITEMS`, up to the 100,000 that a plan may have.
async fn w02_an_order_with_very_many_items_goes_all_ways(database: TestDatabase) {
    let size = std::env::var("LATCHWORK_MANY_ITEMS").ok().and_then(|text| text.parse().ok());
    let size: u32 = size.unwrap_or(1_100);
    let mut types = OrderTypes::new();
    let split = |payload: &serde_json::Value| {
        let count = payload["items"].as_u64().unwrap_or(1);
        // A key of its own for each, as of the row that it changes.
        let item = |n| PlannedItem::new(json!({ "n": n })).concurrency(format!("row-{n}"), 1);
        Ok((0..count).map(item).collect())
    };
    types.add_dynamic(DynamicOrderType::new("job").plan(split)).expect("legal");
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    let begun = std::cell::Cell::new(std::time::Instant::now());
    let took = |what: &str| {
        println!("{what} of {size} items: {:?}", begun.get().elapsed());
        begun.set(std::time::Instant::now());
    };
    let (client, bob) = (agent(&work, "agent-1"), work.client(Actor::user("bob").expect("legal")));
    let hand_in = async || loop {
        let got = client.checkout(Checkout::any().limit(1_000)).await.expect("checked out");
        let one = |lease| Submission::new(lease, json!({"ok": true}));
        let results: Vec<_> = got.leases.iter().map(one).collect();
        if results.is_empty() {
            break;
        }
        client.submit_many(results).await.expect("submitted");
    };
    let order = propose(&work, "job", json!({ "items": size })).await.id;
    took("propose");
    if !database.is_sqlite() {
        database.vacuum().await;
    }
    begun.set(std::time::Instant::now());
    hand_in().await;
    took("checkout and submit");
    let wrong = || [ReviewError::new("thin", "say more")];
    bob.reject(Rejection::new(order, wrong()).rework()).await.expect("reworked");
    took("reject with rework");
    hand_in().await;
    took("checkout and submit");
    let preview = work.preview(order).await.expect("a preview");
    took("preview");
    bob.approve(Approval::of(&preview)).await.expect("approved");
    took("approve");
    let worker = work.apply_worker("w").expect("legal");
    let done = worker.apply_next().await.expect("applied").expect("an order");
    assert_eq!(done.state, OrderState::Completed);
    took("apply and complete");
    let again = bob.clone_order(order, None).await.expect("cloned").order.id;
    took("clone");
    bob.requeue(again, "x").await.expect("requeued");
    bob.transition_order(again, OrderState::Failed, EventNote::new()).await.expect("failed");
    took("fail");
    bob.retry(again).await.expect("retried");
    took("retry");
    bob.cancel(again, "x").await.expect("cancelled");
    took("cancel");
    let mut settings = pruning();
    settings.prune_events_after = None;
    let report = sweeps(&work, settings).round().await.expect("a round");
    assert_eq!(report.orders_pruned, 2);
    took("remove");
    assert_eq!(database.number("SELECT count(*) FROM latchwork_work_item").await, 0);
}
