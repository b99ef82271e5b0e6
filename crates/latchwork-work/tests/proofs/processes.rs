//! Real processes: killed, stopped past their leases, their server restarted, their clocks wrong.

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use latchwork_contract::own_server::OwnServer;
use latchwork_contract::process::Signal;
use latchwork_lock::provider::{Moment, Sleep};
use latchwork_lock::{Clock, SystemClock};
use latchwork_work::{Checkout, ItemState, OrderId, OrderState, Submission, WorkManager};
use serde_json::json;

use crate::child::{Child, crash_before_follow};
use crate::test_database::{TestDatabase, agent, maintenance, propose, types, verified};
use crate::{millis, proofs, secs};

proofs![w04_agents_are_killed_and_stopped_with_leases, w01_a_crash_before_an_order_follows];

pub(crate) const SQLITE: &[crate::Proof] =
    &[("w15_wall_clocks_that_are_an_hour_off_move_no_lease", |database| {
        Box::pin(w15_wall_clocks_that_are_an_hour_off_move_no_lease(database))
    })];

/// Waits until an order is submitted, all by itself.
async fn submitted(work: &WorkManager, order: OrderId, items: u32) {
    let begun = Instant::now();
    loop {
        match work.order(order).await {
            Ok(found) if found.order.state == OrderState::Submitted => break,
            Ok(found) => assert!(begun.elapsed() < secs(90), "{:?}", found.item_counts),
            Err(error) => assert!(error.is_temporary(), "{error}"),
        }
        tokio::time::sleep(millis(100)).await;
    }
    let found = work.order(order).await.expect("an order");
    assert_eq!(found.item_counts.get(ItemState::Submitted), items, "nothing lost");
}

/// Every item has one result and one event of it, whatever happened on the way.
async fn once_each(database: &TestDatabase, work: &WorkManager, items: i64) {
    verified(work).await;
    let results = database.number("SELECT count(*) FROM latchwork_work_result").await;
    assert_eq!(results, items, "nothing twice");
    let events = "SELECT count(*) FROM latchwork_work_event WHERE event = 'submitted' \
        AND item_id IS NOT NULL";
    assert_eq!(database.number(events).await, items);
    assert_eq!(database.number("SELECT count(*) FROM latchwork_work_lease").await, 0);
}

async fn w04_agents_are_killed_and_stopped_with_leases(database: TestDatabase) {
    const ITEMS: u32 = 300;
    let work = database.manager().await;
    let kept = tokio::spawn(maintenance(&work).run());
    let order = propose(&work, "quick", json!({ "items": ITEMS })).await.id;
    let mut agents: Vec<_> =
        (0..6).map(|n| Child::start(&format!("agent-{n}"), &database.url)).collect();
    for n in 0..3 {
        agents[n].leased();
        drop(std::mem::replace(&mut agents[n], Child::start(&format!("next-{n}"), &database.url)));
        agents[n + 3].leased();
        agents[n + 3].signal(Signal::STOP);
    }
    // Longer than their leases; then they go on as if nothing had happened.
    tokio::time::sleep(millis(1_500)).await;
    for stopped in &agents[3..] {
        stopped.signal(Signal::CONT);
    }
    submitted(&work, order, ITEMS).await;
    drop(agents);
    kept.abort();
    once_each(&database, &work, ITEMS.into()).await;
    let expired = "SELECT count(*) FROM latchwork_work_event WHERE event = 'lease_expired'";
    assert!(database.number(expired).await > 0, "somebody died with a lease");
}

/// An agent dies between the commit of its item and the move of the order, each time that an order would
/// follow; the sealer moves the order.
async fn w01_a_crash_before_an_order_follows(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "job", json!({"items": 2})).await.id;
    let state = async || work.order(order).await.expect("an order");
    for (name, item, was, then) in [
        ("leases", ItemState::Leased, OrderState::Queued, OrderState::CheckedOut),
        ("submits", ItemState::Submitted, OrderState::CheckedOut, OrderState::InProgress),
    ] {
        crash_before_follow(name, &database.url);
        let lagging = state().await;
        assert_eq!(lagging.item_counts.get(item), 1, "{name}: the item's change is committed");
        assert_eq!(lagging.order.state, was, "{name}: the order's is not");
        work.seal().await.expect("sealed");
        assert_eq!(state().await.order.state, then, "{name}: the sealer has moved it");
    }
    verified(&work).await;
}

/// A server of its own, ended at once in the middle, twice.
pub(crate) async fn w15_a_server_restarts_in_the_middle() {
    const ITEMS: u32 = 300;
    let mut own = OwnServer::start("postgres");
    let database = TestDatabase::at(own.address.clone());
    let work = database.manager().await;
    let kept = tokio::spawn(maintenance(&work).run());
    let order = propose(&work, "quick", json!({ "items": ITEMS })).await.id;
    let agents: Vec<_> =
        (0..4).map(|n| Child::start(&format!("agent-{n}"), &database.url)).collect();
    for _ in 0..2 {
        for agent in &agents {
            agent.leased();
        }
        own.end(Signal::QUIT);
        own.up();
    }
    submitted(&work, order, ITEMS).await;
    drop(agents);
    kept.abort();
    once_each(&database, &work, ITEMS.into()).await;
}

/// A clock whose wall is off.
struct Off(TimeDelta);

impl Clock for Off {
    fn now(&self) -> Moment {
        SystemClock.now()
    }
    fn wall(&self) -> DateTime<Utc> {
        SystemClock.wall() + self.0
    }
    fn sleep_until(&self, until: Moment) -> Sleep {
        SystemClock.sleep_until(until)
    }
}

async fn w15_wall_clocks_that_are_an_hour_off_move_no_lease(database: TestDatabase) {
    let open = async |hours| {
        let clock = Arc::new(Off(TimeDelta::hours(hours)));
        let builder = WorkManager::builder(types());
        builder.connect_with_clock(&database.url, clock).await.expect("it opens")
    };
    let (usual, ahead, behind) = (open(0).await, open(1).await, open(-1).await);
    let order = propose(&behind, "quick", json!({"items": 3})).await.id;
    let clients = [agent(&usual, "usual"), agent(&ahead, "ahead"), agent(&behind, "behind")];
    let mut held = Vec::new();
    for client in &clients {
        held.extend(client.checkout(Checkout::any()).await.expect("checked out").leases);
    }
    assert_eq!(held.len(), 3);
    for manager in [&ahead, &behind, &usual] {
        assert_eq!(manager.reclaim_expired().await.expect("looked"), 0, "no lease is over");
    }
    for (client, lease) in clients.iter().zip(&held).skip(1) {
        client.heartbeat(lease.id).await.expect("held");
        client.submit(Submission::new(lease, json!(1))).await.expect("submitted");
    }
    tokio::time::sleep(millis(1_100)).await;
    assert_eq!(behind.reclaim_expired().await.expect("looked"), 1, "and this one is");
    let lease = clients[1].checkout(Checkout::any()).await.expect("checked out").leases.remove(0);
    clients[1].submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    submitted(&usual, order, 3).await;
    once_each(&database, &usual, 3).await;
}
