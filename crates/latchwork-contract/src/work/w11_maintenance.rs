//! W11: what must be done again and again, in bounded batches, right also with two leaders.

use std::time::Duration;

use latchwork_lock::{InMemoryLockProvider, Locks};
use latchwork_work::{
    Checkout, EventNote, EventType, ItemState, Maintenance, MaintenanceSettings, OrderState,
    Proposal, WorkManager,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, Timer, agent, events, item_state, lease, order_state, propose, quick_lease_is_over,
    submit, user,
};
use super::w10_audit::{hurried, maintenance};

cases![
    w11_expired_leases_are_reclaimed_by_two_leaders_once,
    w11_bug_a_failed_order_is_dead_lettered_with_events,
    w11_a_failed_order_is_not_given_up_before_its_time,
    w11_a_stale_order_is_reported_once,
    w11_a_batch_of_rows_that_cannot_move_hides_none,
    w11_idempotency_keys_are_not_pruned_early,
    w11_maintenance_runs_by_itself_and_a_second_takes_over,
];

async fn w11_expired_leases_are_reclaimed_by_two_leaders_once(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let order = propose(&one, "quick", 250).await.id;
    let client = agent(&one, "agent-1");
    let held = client.checkout(Checkout::any().limit(250)).await.expect("checked out").leases;
    assert_eq!(held.len(), 250);
    quick_lease_is_over().await;
    let (a, b) = tokio::join!(one.reclaim_expired(), two.reclaim_expired());
    let rest = one.reclaim_expired().await.expect("reclaimed");
    assert_eq!(a.expect("reclaimed") + b.expect("reclaimed") + rest, 250, "each once");
    let counts = one.order(order).await.expect("an order").item_counts;
    assert_eq!(counts.get(ItemState::Queued), 250);
    assert_eq!(order_state(&one, order).await, OrderState::Queued);
    let again = client.checkout(Checkout::any().limit(250)).await.expect("checked out").leases;
    assert!(again.len() == 250 && again.iter().all(|lease| lease.attempt == 2));
}

async fn failed(work: &WorkManager, items: u64) -> latchwork_work::OrderId {
    let order = propose(work, PLAIN, items).await.id;
    let ada = user(work, "ada");
    ada.transition_order(order, OrderState::Failed, EventNote::new()).await.expect("failed");
    order
}

async fn w11_bug_a_failed_order_is_dead_lettered_with_events(f: Fixture) {
    let work = f.manager().await;
    let mut orders = Vec::new();
    for _ in 0..5 {
        orders.push(failed(&work, 2).await);
    }
    let mut settings = hurried();
    settings.prune_orders_after = None;
    let (mut one, mut two) =
        (maintenance(&work, settings.clone()), maintenance(&f.manager().await, settings));
    let (a, b) = tokio::join!(one.round(), two.round());
    let total = a.expect("a round").dead_lettered + b.expect("a round").dead_lettered;
    assert_eq!(total, 5, "each once, by two leaders");
    for order in orders {
        assert_eq!(order_state(&work, order).await, OrderState::DeadLettered);
        let told = events(&work, order).await;
        let dead = told.iter().filter(|event| event.event == EventType::DeadLettered).count();
        assert_eq!(dead, 3, "the order and its two items");
    }
}

async fn w11_a_failed_order_is_not_given_up_before_its_time(f: Fixture) {
    let work = f.manager().await;
    let order = failed(&work, 1).await;
    let report = maintenance(&work, MaintenanceSettings::default()).round().await;
    assert_eq!(report.expect("a round").dead_lettered, 0);
    let mut never = MaintenanceSettings::default();
    never.dead_letter_after = None;
    assert_eq!(maintenance(&work, never).round().await.expect("a round").dead_lettered, 0);
    assert_eq!(order_state(&work, order).await, OrderState::Failed);
}

async fn w11_a_stale_order_is_reported_once(f: Fixture) {
    let work = f.manager().await;
    for _ in 0..3 {
        propose(&work, PLAIN, 1).await;
    }
    let over = propose(&work, PLAIN, 1).await.id;
    user(&work, "ada").cancel(over, "x").await.expect("cancelled");
    let mut settings = MaintenanceSettings::default();
    settings.stale_after = Some(Duration::ZERO);
    let mut round = maintenance(&work, settings);
    assert_eq!(round.round().await.expect("a round").stale, 3);
    assert_eq!(round.round().await.expect("a round").stale, 0, "each once");
    let fresh = maintenance(&work, MaintenanceSettings::default()).round().await;
    assert_eq!(fresh.expect("a round").stale, 0);
}

async fn w11_a_batch_of_rows_that_cannot_move_hides_none(f: Fixture) {
    // Without the move from rejected to failed, an order with a rejected item cannot be given up.
    let work = f.manager().await;
    let client = agent(&work, "agent-1");
    for _ in 0..6 {
        let order = propose(&work, PLAIN, 1).await.id;
        let item = work.items(order, None, 1).await.expect("items")[0].item.id;
        use ItemState::*;
        for step in [Leased, InProgress, Submitted, Rejected] {
            client.transition_item(item, step, EventNote::new()).await.expect("moved");
        }
        let ada = user(&work, "ada");
        ada.transition_order(order, OrderState::Failed, EventNote::new()).await.expect("failed");
    }
    let last = failed(&work, 1).await;
    let tables = super::fixture::without_rejected_to_failed();
    let strict = f.open(WorkManager::builder(super::fixture::types()).tables(tables)).await;
    let mut settings = hurried();
    settings.prune_orders_after = None;
    let report = maintenance(&strict, settings).round().await.expect("a round");
    assert_eq!(report.dead_lettered, 1, "the batch is two, and six cannot move");
    assert_eq!(order_state(&work, last).await, OrderState::DeadLettered);
}

async fn w11_idempotency_keys_are_not_pruned_early(f: Fixture) {
    let work = f.manager().await;
    let ada = user(&work, "ada").idempotent("k");
    let proposal = || Proposal::new(PLAIN, json!({"items": 1}));
    ada.propose(proposal()).await.expect("proposed");
    assert_eq!(maintenance(&work, hurried()).round().await.expect("a round").keys, 0);
    assert!(ada.propose_once(proposal()).await.expect("proposed").replayed);
}

async fn w11_maintenance_runs_by_itself_and_a_second_takes_over(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let locks = Locks::new(InMemoryLockProvider::new());
    let mut settings = MaintenanceSettings::default();
    settings.every = Duration::from_millis(50);
    settings.seal_every = Duration::from_millis(20);
    let start = |work: &WorkManager| {
        tokio::spawn(Maintenance::new(work.clone(), locks.clone(), settings.clone()).run())
    };
    let (first, second) = (start(&one), start(&two));
    for ended in 0..2 {
        let order = propose(&one, "quick", 1).await.id;
        let held = lease(&agent(&one, "dead")).await;
        let timer = Timer::start();
        while item_state(&one, held.item_id).await != ItemState::Queued {
            assert!(timer.elapsed() < Duration::from_secs(30), "nobody reclaims it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = agent(&one, "alive");
        let held = lease(&client).await;
        submit(&client, &held).await;
        while one.verify().await.expect("verified").unsealed > 0 {
            assert!(timer.elapsed() < Duration::from_secs(30), "nobody seals");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(order_state(&one, order).await, OrderState::Submitted);
        if ended == 0 {
            first.abort(); // it dies with the lock; the second follows
        }
    }
    second.abort();
    assert!(one.verify().await.expect("verified").is_intact());
}
