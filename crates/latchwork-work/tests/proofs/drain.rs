//! Many agents at once, and what a limit costs those that it does not concern.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_work::{Checkout, ItemState, OrderState, Submission, WorkManager};
use parking_lot::Mutex;
use serde_json::json;

use crate::proofs;
use crate::test_database::{TestDatabase, agent, propose, verified};

proofs![
    w03_thirty_two_agents_drain_ten_thousand_items,
    w03_a_hundred_thousand_behind_a_limit_cost_nothing
];

/// 10,000 items, a tenth of them behind keys with a limit of two. Agents take ten at a time, so that
/// the proof takes seconds and the claims still meet.
async fn w03_thirty_two_agents_drain_ten_thousand_items(database: TestDatabase) {
    let managers = [database.manager().await, database.manager().await];
    let work = &managers[0];
    let mut orders = Vec::new();
    for _ in 0..9 {
        orders.push(propose(work, "job", json!({"items": 1_000})).await.id);
    }
    let keys: Vec<_> = (0..1_000).map(|n| format!("key-{}", n % 20)).collect();
    orders.push(propose(work, "keyed", json!({"keys": keys, "limit": 2})).await.id);
    let inside = Arc::new(Mutex::new(BTreeMap::<String, (i32, i32)>::new()));
    let agents = (0..32).map(|n| {
        let (work, inside) = (managers[n % 2].clone(), inside.clone());
        tokio::spawn(async move {
            let client = agent(&work, &format!("agent-{n}"));
            let (mut done, mut empty) = (Vec::new(), 0);
            while empty < 3 {
                let wish = Checkout::any().limit(10).wait(crate::millis(300));
                let leases = client.checkout(wish).await.expect("checked out").leases;
                empty = if leases.is_empty() { empty + 1 } else { 0 };
                let keys = || leases.iter().filter_map(|lease| lease.input["key"].as_str());
                for key in keys() {
                    let mut inside = inside.lock();
                    let (now, most) = inside.entry(key.to_owned()).or_default();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                for key in keys() {
                    inside.lock().get_mut(key).expect("entered").0 -= 1;
                }
                let results = leases.iter().map(|lease| Submission::new(lease, json!({"ok": 1})));
                let results: Vec<_> = results.collect();
                match results.len() {
                    0 => {}
                    1 => drop(
                        client.submit(results.into_iter().next().expect("one")).await.expect("in"),
                    ),
                    _ => drop(client.submit_many(results).await.expect("in")),
                }
                done.extend(leases.into_iter().map(|lease| lease.item_id));
            }
            done
        })
    });
    let mut all = Vec::new();
    for one in agents.collect::<Vec<_>>() {
        all.extend(one.await.expect("no panic"));
    }
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (10_000, 10_000), "each submitted exactly once");
    for (key, (_, most)) in inside.lock().iter() {
        assert!(*most <= 2, "{key}: {most} at once");
    }
    for order in orders {
        let found = work.order(order).await.expect("an order");
        assert_eq!(found.order.state, OrderState::Submitted);
        assert_eq!(found.item_counts.get(ItemState::Submitted), 1_000);
    }
    verified(work).await;
    // Leased, in_progress and submitted of each item, and nothing else of an item.
    for (event, count) in [("leased", 10_000), ("in_progress", 10_000), ("submitted", 10_000)] {
        let sql = format!(
            "SELECT count(*) FROM latchwork_work_event WHERE item_id IS NOT NULL AND event = '{event}'"
        );
        assert_eq!(database.number(&sql).await, count, "{event}");
    }
    for table in ["lease", "ready"] {
        assert_eq!(
            database.number(&format!("SELECT count(*) FROM latchwork_work_{table}")).await,
            0
        );
    }
    assert_eq!(
        database.number("SELECT CAST(sum(held) AS bigint) FROM latchwork_work_limit").await,
        0
    );
}

/// Beside a database without them, turn by turn, so that a busy machine is busy for both.
async fn w03_a_hundred_thousand_behind_a_limit_cost_nothing(database: TestDatabase) {
    let other =
        if database.is_sqlite() { TestDatabase::sqlite() } else { TestDatabase::postgres().await };
    let (full, empty) = (database.manager().await, other.manager().await);
    let claim = async |work: &WorkManager| {
        propose(work, "keyed", json!({"keys": [null]})).await;
        let begun = Instant::now();
        let got = agent(work, "agent-1").checkout(Checkout::of_type("keyed")).await;
        let took = begun.elapsed();
        (took, got.expect("checked out").leases.remove(0))
    };
    propose(&full, "keyed", json!({"many": 100_000})).await;
    if !database.is_sqlite() {
        database.run("VACUUM ANALYZE latchwork_work_ready").await;
    }
    let (_, held) = claim(&full).await;
    assert_eq!(held.input["key"], "lane", "the key is at its limit from now on");
    claim(&full).await;
    // The quickest of each: what a claim costs by itself. The others also waited for other tests, and
    // on a busy machine even the quickest of a few did.
    let (mut usual, mut behind) = (Duration::MAX, Duration::MAX);
    for round in 1..=300 {
        usual = usual.min(claim(&empty).await.0);
        let (took, lease) = claim(&full).await;
        assert!(lease.input["key"].is_null());
        behind = behind.min(took);
        if round >= 25 && behind <= usual * 3 {
            return;
        }
    }
    panic!("{behind:?} behind 100,000 items, {usual:?} without");
}
