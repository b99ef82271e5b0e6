//! W10: the trail is sealed without gaps, in a chain per order, and outlives what it tells of.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_lock::{InMemoryLockProvider, Locks};
use latchwork_work::{
    Checkout, EventId, EventNote, EventType, ItemState, Maintenance, MaintenanceSettings,
    OrderState, WorkManager,
};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, events, lease, nothing, order_state, plain, propose, quick, submit, user,
};

cases![
    w10_readers_see_sealed_events_only,
    w10_positions_have_no_gaps_and_the_chain_verifies,
    w10_two_sealers_at_once_seal_each_event_once,
    w10_pruned_events_leave_a_checkpoint,
    w10_bug_the_trail_outlives_its_order,
    w10_bug_heartbeats_do_not_flood_the_trail,
    w10_the_sealer_moves_an_order_that_lags_behind,
    w10_the_sealer_fails_an_order_that_lags_behind,
    w10_a_timeline_comes_in_pages,
];

/// Seals everything, and expects that the trail verifies.
async fn verified(work: &WorkManager) -> u64 {
    work.seal().await.expect("sealed");
    let verified = work.verify().await.expect("verified");
    assert_eq!(verified.findings, []);
    assert_eq!((verified.unsealed, verified.unsealed_since), (0, None));
    assert!(verified.is_intact());
    verified.position
}

/// Maintenance that gives everything up and removes it as soon as it may.
pub(super) fn hurried() -> MaintenanceSettings {
    let mut settings = MaintenanceSettings::default();
    settings.dead_letter_after = Some(Duration::ZERO);
    settings.prune_orders_after = Some(Duration::ZERO);
    settings.prune_events_after = Some(Duration::ZERO);
    settings.stale_after = None;
    settings.batch = 2;
    settings.prune_batches = 1;
    settings
}

pub(super) fn maintenance(work: &WorkManager, settings: MaintenanceSettings) -> Maintenance {
    Maintenance::new(work.clone(), Locks::new(InMemoryLockProvider::new()), settings)
}

async fn some_work(work: &WorkManager, orders: usize) {
    let client = agent(work, "agent-1");
    for _ in 0..orders {
        propose(work, PLAIN, 2).await;
        let held = lease(&client).await;
        submit(&client, &held).await;
        let held = lease(&client).await;
        client.heartbeat(held.id).await.expect("held");
        submit(&client, &held).await;
    }
}

async fn w10_readers_see_sealed_events_only(f: Fixture) {
    let work = f.manager().await;
    some_work(&work, 1).await;
    assert_eq!(work.events(0, 100).await.expect("events"), []);
    let tail = work.verify().await.expect("verified");
    assert!(tail.unsealed > 5 && tail.unsealed_since.is_some(), "{tail:?}");
    assert!(tail.is_intact(), "a tail that is not sealed yet is no fault");
    let sealed = work.seal().await.expect("sealed");
    assert_eq!((sealed.events, sealed.position), (tail.unsealed, tail.unsealed));
    let seen = work.events(0, 1_000).await.expect("events");
    assert_eq!(seen.len() as u64, sealed.events);
    // Page by page they are the same.
    let mut paged = Vec::new();
    loop {
        let page = work.events(paged.len() as u64, 3).await.expect("events");
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, seen);
}

async fn w10_positions_have_no_gaps_and_the_chain_verifies(f: Fixture) {
    let work = f.manager().await;
    for _ in 0..3 {
        some_work(&work, 2).await;
        verified(&work).await;
    }
    let seen = work.events(0, 1_000).await.expect("events");
    let seals: Vec<_> = seen.iter().map(|event| event.seal.expect("sealed")).collect();
    let positions: Vec<_> = seals.iter().map(|seal| seal.position).collect();
    assert_eq!(positions, (1..=seen.len() as u64).collect::<Vec<_>>());
    let hashes: BTreeSet<_> = seals.iter().map(|seal| seal.hash.to_string()).collect();
    assert_eq!(hashes.len(), seen.len());
    // Each order's events come in the order in which they happened.
    let orders: BTreeSet<_> = seen.iter().map(|event| event.order_id).collect();
    for order in orders {
        let own = seen.iter().filter(|event| event.order_id == order);
        let own: Vec<EventId> = own.map(|event| event.id).collect();
        let told: Vec<EventId> = events(&work, order).await.iter().map(|e| e.id).collect();
        assert_eq!(own, told);
    }
    assert_eq!(work.seal().await.expect("sealed").events, 0, "nothing twice");
}

async fn w10_two_sealers_at_once_seal_each_event_once(f: Fixture) {
    let (one, two) = (f.manager().await, f.manager().await);
    let working = {
        let one = one.clone();
        tokio::spawn(async move { some_work(&one, 8).await })
    };
    let sealer = |work: WorkManager| {
        tokio::spawn(async move {
            let mut sealed = 0;
            for _ in 0..30 {
                sealed += work.seal().await.expect("sealed").events;
            }
            sealed
        })
    };
    let (a, b) = (sealer(one.clone()), sealer(two));
    working.await.expect("no panic");
    let sealed = a.await.expect("no panic") + b.await.expect("no panic");
    let rest = one.seal().await.expect("sealed");
    assert_eq!(verified(&one).await, sealed + rest.events, "each event once");
}

async fn w10_pruned_events_leave_a_checkpoint(f: Fixture) {
    let work = f.manager().await;
    some_work(&work, 3).await;
    let all = verified(&work).await;
    let mut round = maintenance(&work, hurried());
    let pruned = round.round().await.expect("a round").events_pruned;
    assert_eq!(pruned, 2, "in batches");
    let half = work.verify().await.expect("verified");
    assert_eq!(half.findings, []);
    assert_eq!((half.events, half.position), (all - 2, all));
    assert_eq!(work.checkpoints().await.expect("checkpoints").len(), 1);
    some_work(&work, 1).await;
    let all = verified(&work).await;
    let mut settings = hurried();
    settings.batch = 1_000;
    let pruned = maintenance(&work, settings).round().await.expect("a round").events_pruned;
    assert!(pruned > 10);
    assert_eq!(work.verify().await.expect("verified").position, all, "the position goes on");
    some_work(&work, 1).await;
    assert!(verified(&work).await > all);
    let first = work.events(0, 1).await.expect("events").remove(0);
    assert_eq!(first.seal.expect("sealed").position, all + 1);
}

async fn w10_bug_the_trail_outlives_its_order(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 2).await.id;
    user(&work, "ada").cancel(order, "x").await.expect("cancelled");
    verified(&work).await;
    let told = events(&work, order).await;
    let mut settings = hurried();
    settings.prune_events_after = None;
    let report = maintenance(&work, settings).round().await.expect("a round");
    assert_eq!(report.orders_pruned, 1);
    assert_eq!(work.order(order).await.expect_err("gone").code(), "order_not_found");
    assert_eq!(events(&work, order).await, told, "its events stay");
    assert_eq!(work.item_states().await.expect("counts"), []);
    verified(&work).await;
}

async fn w10_bug_heartbeats_do_not_flood_the_trail(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let client = agent(&work, "agent-1");
    let held = lease(&client).await;
    let mut last = held.expires_at;
    for _ in 0..50 {
        let beat = client.heartbeat(held.id).await.expect("held");
        assert!(beat.expires_at >= last);
        last = beat.expires_at;
    }
    let told = events(&work, order).await;
    let beats = told.iter().filter(|event| event.event == EventType::Heartbeat).count();
    assert!(beats <= 1, "{beats} heartbeats in the trail");
    let info = work.item(held.item_id).await.expect("an item").lease.expect("a lease");
    assert_eq!(info.lease_expires_at, last);
}

/// A move of an item by name does not move its order: as if the process had died in between.
async fn w10_the_sealer_moves_an_order_that_lags_behind(f: Fixture) {
    let work = f.manager().await;
    let order = propose(&work, PLAIN, 1).await.id;
    let item = work.items(order, None, 1).await.expect("items")[0].item.id;
    let client = agent(&work, "agent-1");
    for step in [ItemState::Leased, ItemState::InProgress, ItemState::Submitted] {
        client.transition_item(item, step, EventNote::new()).await.expect("moved");
    }
    assert_eq!(order_state(&work, order).await, OrderState::Queued, "it lags behind");
    verified(&work).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
}

async fn w10_the_sealer_fails_an_order_that_lags_behind(f: Fixture) {
    let work = f.with_types([plain(PLAIN).settings(quick())]).await;
    let order = propose(&work, PLAIN, 3).await.id;
    let client = agent(&work, "agent-1");
    let held = client.checkout(Checkout::any().limit(2)).await.expect("checked out").leases;
    client.heartbeat(held[0].id).await.expect("held");
    assert_eq!(order_state(&work, order).await, OrderState::InProgress);
    let failed = held[1].item_id;
    client.transition_item(failed, ItemState::Failed, EventNote::new()).await.expect("moved");
    verified(&work).await;
    assert_eq!(order_state(&work, order).await, OrderState::Failed, "one failed item fails it");
    nothing(&client).await;
    // And back to where nobody works on it.
    user(&work, "ada").retry(order).await.expect("retried");
    let note = EventNote::new();
    client.transition_item(held[0].item_id, ItemState::Queued, note).await.expect("moved");
    verified(&work).await;
    assert_eq!(order_state(&work, order).await, OrderState::Queued);
}

async fn w10_a_timeline_comes_in_pages(f: Fixture) {
    let work = f.manager().await;
    some_work(&work, 1).await;
    work.seal().await.expect("sealed");
    let order = work.events(0, 1).await.expect("events")[0].order_id;
    let whole = events(&work, order).await;
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = work.timeline(order, after, 3).await.expect("a page");
        paged.extend(page.events);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(paged, whole);
    for limit in [0, 1_001] {
        let error = work.timeline(order, None, limit).await.expect_err("illegal");
        assert_eq!(error.code(), "invalid_argument");
    }
}
