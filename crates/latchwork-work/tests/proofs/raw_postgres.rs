//! Transactions that meet: another connection holds what ours wants, and lets go when we say so.

use latchwork_work::{Checkout, EventNote, Failure, ItemState, OrderState, Proposal, WorkManager};
use serde_json::json;
use sqlx::{Connection, PgConnection, Row};

use crate::test_database::{TestDatabase, ada, agent, propose, verified};
use crate::{millis, proofs};

proofs![
    w09_a_twin_under_way_is_waited_for_and_then_in_flight,
    w20_a_retry_meets_a_proposal_that_commits_meanwhile,
    w04_a_reclaim_does_not_end_a_lease_that_a_heartbeat_extends,
    w10_events_committed_after_the_look_are_not_sealed_without_one,
    w03_a_submission_and_a_claim_of_one_key_and_type_do_not_wait_in_a_circle,
    w03_a_claim_that_nobody_waits_for_is_not_sent,
    w03_plans_are_not_compiled,
    w03_stale_statistics_make_no_lane_slow,
];

/// Waits until somebody waits for a lock of this connection.
async fn until_somebody_waits(database: &TestDatabase, holder: i32) {
    until_so_many_wait(database, holder, 1).await;
}

async fn until_so_many_wait(database: &TestDatabase, holder: i32, count: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))";
    let mut watch = database.pg().await;
    for _ in 0..600 {
        let row = sqlx::query(sql).bind(holder).fetch_one(&mut watch).await.expect("a row");
        if row.get::<i64, _>(0) >= count {
            return;
        }
        tokio::time::sleep(millis(20)).await;
    }
    panic!("nobody waits");
}

async fn pid(connection: &mut PgConnection) -> i32 {
    let row = sqlx::query("SELECT pg_backend_pid()").fetch_one(connection).await.expect("a row");
    row.get(0)
}

async fn w09_a_twin_under_way_is_waited_for_and_then_in_flight(database: TestDatabase) {
    let work = database.manager().await;
    let client = ada(&work).idempotent("k");
    let proposal = || Proposal::new("job", json!({"items": 1}));
    let mut twin = database.pg().await;
    let holder = pid(&mut twin).await;
    let mut tx = twin.begin().await.expect("begun");
    sqlx::query(
        "INSERT INTO latchwork_work_idempotency VALUES ('user ada', 'propose', 'k', 'x', '[]', 0, 9e18)",
    )
    .execute(&mut *tx)
    .await
    .expect("the twin's row");
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.propose_once(proposal()).await })
    };
    until_somebody_waits(&database, holder).await;
    let error = waiting.await.expect("no panic").expect_err("it waits a bounded time");
    assert_eq!(error.code(), "idempotency_in_flight");
    assert!(error.is_temporary());
    tx.rollback().await.expect("the twin gave up");
    assert!(!client.propose_once(proposal()).await.expect("proposed").replayed);
}

async fn w20_a_retry_meets_a_proposal_that_commits_meanwhile(database: TestDatabase) {
    let work = database.manager().await;
    let client = agent(&work, "agent-1");
    let proposal = || vec![Proposal::new("job", json!({"items": 1})).unique_key("k")];
    let first = ada(&work).propose_many(proposal()).await.expect("proposed").remove(0).order.id;
    let lease = client.checkout(Checkout::any()).await.expect("checked out").leases.remove(0);
    client.fail(lease.id, Failure::new("x", "y").permanent()).await.expect("failed");
    let mut other = database.pg().await;
    let holder = pid(&mut other).await;
    let mut tx = other.begin().await.expect("begun");
    let (made, notice) = ada(&work).propose_in_postgres(&mut tx, proposal()).await.expect("in");
    let retry = {
        let ada = ada(&work);
        tokio::spawn(async move { ada.retry(first).await })
    };
    until_somebody_waits(&database, holder).await;
    tx.commit().await.expect("committed");
    notice.send();
    let error = retry.await.expect("no panic").expect_err("the key is taken");
    assert_eq!(error.code(), "unique_conflict", "{error}");
    assert!(error.to_string().contains(&made[0].order.id.to_string()), "{error}");
}

async fn w04_a_reclaim_does_not_end_a_lease_that_a_heartbeat_extends(database: TestDatabase) {
    let work = database.manager().await;
    propose(&work, "quick", json!({"items": 1})).await;
    let client = agent(&work, "agent-1");
    let lease = client.checkout(Checkout::any()).await.expect("checked out").leases.remove(0);
    // A heartbeat that came in time and is not committed yet.
    let mut beat = database.pg().await;
    let holder = pid(&mut beat).await;
    let mut tx = beat.begin().await.expect("begun");
    sqlx::query("UPDATE latchwork_work_lease SET expires_at = expires_at + 60000000")
        .execute(&mut *tx)
        .await
        .expect("extended");
    tokio::time::sleep(millis(1_100)).await;
    let reclaim = {
        let work = work.clone();
        tokio::spawn(async move { work.reclaim_expired().await })
    };
    until_somebody_waits(&database, holder).await;
    tx.commit().await.expect("committed");
    assert_eq!(reclaim.await.expect("no panic").expect("looked"), 0, "it was extended");
    client.heartbeat(lease.id).await.expect("held");
}

async fn w10_events_committed_after_the_look_are_not_sealed_without_one(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "job", json!({"items": 2})).await.id;
    let client = agent(&work, "agent-1");
    let leases = client.checkout(Checkout::any().limit(2)).await.expect("checked out").leases;
    client.heartbeat(leases[0].id).await.expect("held");
    let mut sealer = database.pg().await;
    let holder = pid(&mut sealer).await;
    let mut tx = sealer.begin().await.expect("begun");
    sqlx::query("SELECT position FROM latchwork_work_sealer FOR UPDATE")
        .fetch_one(&mut *tx)
        .await
        .expect("another sealer");
    let sealing = {
        let work = work.clone();
        tokio::spawn(async move { work.seal().await })
    };
    until_somebody_waits(&database, holder).await;
    // The sealer has looked. An item fails, and the process dies before the order follows.
    let failed = ItemState::Failed;
    client.transition_item(leases[1].item_id, failed, EventNote::new()).await.expect("moved");
    tx.rollback().await.expect("free");
    sealing.await.expect("no panic").expect("sealed");
    verified(&work).await;
    assert_eq!(work.order(order).await.expect("an order").order.state, OrderState::Failed);
    // The order failed after its item, and listeners hear it so.
    let told = work.timeline(order, None, 100).await.expect("a timeline").events;
    let positions: Vec<_> = told.iter().map(|event| event.seal.expect("sealed").position).collect();
    assert!(positions.is_sorted(), "{positions:?}");
}

/// With a type's limit and a key's limit at once: claims and submissions must lock them in one order,
/// or the server ends one of two that wait for each other, after a second.
async fn w03_a_submission_and_a_claim_of_one_key_and_type_do_not_wait_in_a_circle(
    database: TestDatabase,
) {
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let before = database.number(deadlocks).await;
    let types = || {
        let split = |_: &serde_json::Value| {
            let item = |n: i32| {
                latchwork_work::PlannedItem::new(json!(n)).concurrency(format!("a{}", n % 3), 2)
            };
            Ok((0..400).map(item).collect())
        };
        // A busy machine may need longer than a second between claim and submission.
        let settings = latchwork_work::TypeSettings {
            max_leases: Some(5),
            lease_ttl: crate::secs(600),
            ..crate::test_database::quick()
        };
        let mut types = latchwork_work::OrderTypes::new();
        let one = latchwork_work::DynamicOrderType::new("one").plan(split).settings(settings);
        types.add_dynamic(one).expect("legal");
        types
    };
    let work = WorkManager::builder(types()).connect(&database.url).await.expect("it opens");
    propose(&work, "one", json!({})).await;
    let agents = (0..12).map(|n| {
        let client = agent(&work, &format!("agent-{n}"));
        tokio::spawn(async move {
            let mut empty = 0;
            while empty < 5 {
                let wish = Checkout::any().wait(millis(200));
                let got = client.checkout(wish).await.expect("checked out").leases;
                empty = if got.is_empty() { empty + 1 } else { 0 };
                for lease in got {
                    let result = latchwork_work::Submission::new(&lease, json!(1));
                    client.submit(result).await.expect("submitted");
                }
            }
        })
    });
    for one in agents.collect::<Vec<_>>() {
        one.await.expect("no panic");
    }
    // The server counts with a delay of up to a second.
    tokio::time::sleep(millis(1_500)).await;
    let met = database.number(deadlocks).await - before;
    // Other tests use the same database; a circle here would be met dozens of times.
    assert!(met <= 3, "{met} times two waited for each other");
}

/// While all messages of a process are under way, claims stand in line; those whose agents go meanwhile
/// lease nothing. Those that were sent are done, whether anybody waits or not.
async fn w03_a_claim_that_nobody_waits_for_is_not_sent(database: TestDatabase) {
    let work = database.manager().await;
    propose(&work, "job", json!({"items": 20})).await;
    let claim = |name: String| {
        let client = agent(&work, &name);
        async move { client.checkout(Checkout::of_type("job")).await }
    };
    let mut other = database.pg().await;
    let holder = pid(&mut other).await;
    let mut tx = other.begin().await.expect("begun");
    let lock = "LOCK TABLE latchwork_work_lease IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *tx).await.expect("locked");
    let mut sent = Vec::new();
    for n in 1..=3 {
        sent.push(tokio::spawn(claim(format!("sent-{n}"))));
        until_so_many_wait(&database, holder, n).await;
    }
    for n in 0..5 {
        let waiting = claim(format!("waiting-{n}"));
        tokio::time::timeout(millis(300), waiting).await.expect_err("it cannot be done");
    }
    sent.into_iter().for_each(|claim| claim.abort());
    tx.rollback().await.expect("free");
    let sent = "SELECT count(*) FROM latchwork_work_lease WHERE agent LIKE 'sent-%'";
    for _ in 0..600 {
        if database.number(sent).await == 3 {
            break;
        }
        tokio::time::sleep(millis(20)).await;
    }
    let rest = agent(&work, "rest").checkout(Checkout::of_type("job").limit(20)).await;
    assert_eq!(rest.expect("checked out").leases.len(), 17, "all that were not sent for anybody");
}

/// A claim of a thousand of thirty thousand items is estimated so high that a server compiles its plan, which takes
/// longer than an answer may.
async fn w03_plans_are_not_compiled(database: TestDatabase) {
    use latchwork_sql::postgres::{Settings, open, options};
    let settings = Settings::default();
    let options = options(&database.url, &settings).expect("an address");
    let (pool, _) = open(options, &settings).await.expect("it opens");
    let row = sqlx::query("SHOW jit").fetch_one(&pool).await.expect("a setting");
    assert_eq!(row.get::<String, _>(0), "off");
}

/// The statistics say that nothing is held back, and then each of thousands is, with a key of its own.
async fn w03_stale_statistics_make_no_lane_slow(database: TestDatabase) {
    let work = database.manager().await;
    let keys: Vec<_> = (0..5_000).map(|n| format!("row-{n}")).collect();
    let order = propose(&work, "keyed", json!({ "keys": keys })).await.id;
    database.vacuum().await;
    let failed = OrderState::Failed;
    ada(&work).transition_order(order, failed, EventNote::new()).await.expect("moved");
    ada(&work).retry(order).await.expect("retried, within the time of an answer");
    let open = "SELECT count(*) FROM latchwork_work_ready WHERE hold = 0";
    assert_eq!(database.number(open).await, 5_000);
}
