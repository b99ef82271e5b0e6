//! Apply workers that are killed at random points, and reviewers who decide at once.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use latchwork_work::{
    Actor, ApplySettings, Approval, Checkout, Diff, DynamicOrderType, OrderId, OrderState,
    OrderTypes, ReviewSettings, Submission, TypeError, TypeSettings, WorkManager,
};
use rustix::process::Signal;
use serde_json::json;

use crate::child::Child;
use crate::test_database::{TestDatabase, agent, maintenance, propose, verified};
use crate::{millis, proofs, secs};

proofs![
    w07_killed_apply_workers_record_once,
    w07_a_failed_apply_in_the_stores_transaction_leaves_nothing,
    w07_a_transaction_that_cannot_be_committed_fails_the_order,
    w17_two_reviewers_at_once_a_hundred_rounds,
    w18_a_full_life_with_agents_reviewers_and_workers_killed
];

/// Writes a row: `inside` in the store's own transaction, `outside` on a connection of its own.
fn types(url: &str) -> OrderTypes {
    let settings = |in_transaction| {
        let apply = ApplySettings {
            in_transaction,
            lease_ttl: millis(500),
            time_limit: secs(2),
            max_attempts: 1_000,
            ..ApplySettings::default()
        };
        TypeSettings { apply, ..TypeSettings::default() }
    };
    let failed = |error: sqlx::Error| TypeError::Failed(error.into());
    let inside =
        DynamicOrderType::new("inside").settings(settings(true)).apply(move |order, step| {
            let (key, fail) = (step.idempotency_key(), order.payload["fail"] == true);
            Box::pin(async move {
                let sql = "INSERT INTO inside (id) VALUES ($1)";
                if let Some(connection) = step.sqlite() {
                    sqlx::query(sql).bind(&key).execute(connection).await.map_err(failed)?;
                } else if let Some(connection) = step.postgres() {
                    sqlx::query(sql).bind(&key).execute(connection).await.map_err(failed)?;
                }
                tokio::time::sleep(millis(10)).await;
                match fail {
                    true => Err(TypeError::Failed("after the write".into())),
                    false => Ok(Diff::empty()),
                }
            })
        });
    let url = url.to_owned();
    let outside =
        DynamicOrderType::new("outside").settings(settings(false)).apply(move |_, step| {
            let (key, fence, url) = (step.idempotency_key(), step.fence(), url.clone());
            Box::pin(async move {
                let database = TestDatabase::at(url);
                database
                    .run(&format!("INSERT INTO outside (id, fence) VALUES ('{key}', {fence})"))
                    .await;
                tokio::time::sleep(millis(10)).await;
                Ok(Diff::between(json!(null), json!(key)))
            })
        });
    let mut types = crate::test_database::types();
    types.add_dynamic(inside).expect("legal");
    types.add_dynamic(outside).expect("legal");
    types
}

async fn open(url: &str) -> WorkManager {
    WorkManager::builder(types(url)).connect(url).await.expect("it opens")
}

async fn approved(work: &WorkManager, name: &str, payload: serde_json::Value) {
    let order = propose(work, name, payload).await.id;
    let client = agent(work, "agent-1");
    for lease in client.checkout(Checkout::of_order(order)).await.expect("asked").leases {
        client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    }
    let preview = work.preview(order).await.expect("a preview");
    let bob = work.client(Actor::user("bob").expect("legal"));
    bob.approve(Approval::of(&preview)).await.expect("approved");
}

/// A worker in a process of its own.
pub(crate) async fn play(name: &str) {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
    let url = std::env::var("LATCHWORK_WORK_URL").expect("an address");
    let work = loop {
        // Others may have the file for as long as an opening waits.
        match WorkManager::builder(types(&url)).connect(&url).await {
            Ok(work) => break work,
            Err(error) => assert!(error.is_temporary(), "{error}"),
        }
        tokio::time::sleep(millis(100)).await;
    };
    work.apply_worker(name).expect("legal").run().await;
}

struct Worker(std::process::Child);

impl Worker {
    fn start(name: &str, url: &str) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .env("LATCHWORK_APPLY_CHILD", name)
            .env("LATCHWORK_WORK_URL", url)
            .stdin(Stdio::null())
            .spawn();
        Worker(child.expect("started"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The size by `LATCHWORK_APPLY_ORDERS`, for a long run by hand.
async fn w07_killed_apply_workers_record_once(database: TestDatabase) {
    let size = std::env::var("LATCHWORK_APPLY_ORDERS").ok().and_then(|text| text.parse().ok());
    let size: i64 = size.unwrap_or(60);
    let work = open(&database.url).await;
    database.run("CREATE TABLE inside (id text)").await;
    database.run("CREATE TABLE outside (id text, fence bigint)").await;
    let (begun, limit) = (Instant::now(), secs(120 + 3 * size.unsigned_abs()));
    let mut workers: Vec<_> =
        (0..3).map(|n| Worker::start(&format!("w-{n}"), &database.url)).collect();
    let open_orders = "SELECT count(*) FROM latchwork_work_order WHERE state <> 'completed'";
    // Somebody else has found the lease of a worker that died in the middle.
    let interrupted = "SELECT count(*) FROM latchwork_work_event WHERE event = 'lease_expired'";
    let (mut orders, mut kills) = (0, 0);
    while orders < size || database.number(interrupted).await < 5 {
        for name in ["inside", "outside"].repeat(10) {
            approved(&work, name, json!({})).await;
            orders += 1;
        }
        while database.number(open_orders).await > 0 {
            assert!(begun.elapsed() < limit, "{} left", database.number(open_orders).await);
            tokio::time::sleep(millis(rand::random_range(5..250))).await;
            let n = rand::random_range(0..workers.len());
            workers[n] = Worker::start(&format!("w-{n}"), &database.url);
            kills += 1;
        }
    }
    drop(workers);
    let hit = database.number(interrupted).await;
    println!("{orders} orders, {kills} kills, {hit} of them in the middle of an order");
    let half = orders / 2;
    assert_eq!(database.number("SELECT count(*) FROM inside").await, half, "exactly once");
    assert_eq!(database.number("SELECT count(DISTINCT id) FROM inside").await, half);
    assert_eq!(database.number("SELECT count(DISTINCT id) FROM outside").await, orders - half);
    let keys = "SELECT count(*) FROM outside WHERE id NOT IN (SELECT CAST(id AS text) \
        FROM latchwork_work_order)";
    assert_eq!(database.number(keys).await, 0, "always with the order's key");
    let twice = "SELECT count(*) FROM (SELECT id, fence FROM outside GROUP BY id, fence \
        HAVING count(*) > 1) t";
    assert_eq!(database.number(twice).await, 0, "each run with a fence of its own");
    for event in ["applied", "completed"] {
        let sql = format!(
            "SELECT count(*) FROM latchwork_work_event WHERE event = '{event}' AND item_id IS NULL"
        );
        assert_eq!(database.number(&sql).await, orders, "{event} is recorded once");
    }
    verified(&work).await;
}

async fn w07_a_failed_apply_in_the_stores_transaction_leaves_nothing(database: TestDatabase) {
    let work = open(&database.url).await;
    database.run("CREATE TABLE inside (id text)").await;
    approved(&work, "inside", json!({"fail": true})).await;
    let worker = work.apply_worker("w").expect("legal");
    let failed = worker.apply_next().await.expect("asked").expect("an order");
    assert_eq!(failed.state, OrderState::Failed);
    assert_eq!(database.number("SELECT count(*) FROM inside").await, 0);
    approved(&work, "inside", json!({})).await;
    let done = worker.apply_next().await.expect("asked").expect("an order");
    assert_eq!(done.state, OrderState::Completed);
    assert_eq!(database.number("SELECT count(*) FROM inside").await, 1);
}

async fn w17_two_reviewers_at_once_a_hundred_rounds(database: TestDatabase) {
    let mut types = OrderTypes::new();
    for needed in [1, 2] {
        let review = ReviewSettings { approvals: needed, ..ReviewSettings::default() };
        let settings = TypeSettings { review, ..TypeSettings::default() };
        let name = format!("needs-{needed}");
        types.add_dynamic(DynamicOrderType::new(name).settings(settings)).expect("legal");
    }
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    // A hundred with each number.
    for round in 0..200 {
        let needed: u32 = 1 + round % 2;
        let order = propose(&work, &format!("needs-{needed}"), json!({})).await.id;
        let client = agent(&work, "agent-1");
        let lease = client.checkout(Checkout::any()).await.expect("asked").leases.remove(0);
        client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
        let preview = work.preview(order).await.expect("a preview");
        let one = |name: &str| {
            let reviewer = work.client(Actor::user(name).expect("legal"));
            let approval = Approval::of(&preview);
            tokio::spawn(async move { reviewer.approve(approval).await.expect("heard").counted })
        };
        let (a, b) = (one("bob"), one("cleo"));
        let counted = u32::from(a.await.expect("no panic")) + u32::from(b.await.expect("no panic"));
        assert_eq!(counted, needed);
    }
    let (one, two) =
        (work.apply_worker("a").expect("legal"), work.apply_worker("b").expect("legal"));
    let run = |worker: latchwork_work::ApplyWorker| {
        tokio::spawn(async move { while worker.apply_next().await.expect("asked").is_some() {} })
    };
    let (one, two) = (run(one), run(two));
    one.await.expect("no panic");
    two.await.expect("no panic");
    let applied = "SELECT count(*) FROM latchwork_work_event WHERE event = 'applied'";
    assert_eq!(database.number(applied).await, 200, "apply is recorded once");
    let done = "SELECT count(*) FROM latchwork_work_order WHERE state = 'completed'";
    assert_eq!(database.number(done).await, 200);
    verified(&work).await;
}

/// Approves whatever waits for it, until it is aborted.
async fn reviewer(work: WorkManager, name: &'static str) {
    let client = work.client(Actor::user(name).expect("legal"));
    let query = latchwork_work::query::OrderQuery::parse([("filter[state]", "submitted")]);
    let query = query.expect("a query");
    loop {
        for listed in work.orders(&query).await.expect("listed").orders {
            // The other reviewer may have been faster.
            if let Ok(preview) = work.preview(listed.order.id).await {
                let _ = client.approve(Approval::of(&preview)).await;
            }
        }
        tokio::time::sleep(millis(10)).await;
    }
}

/// The size by `LATCHWORK_LIFE_ORDERS`, each of ten items, for a long run by hand.
async fn w18_a_full_life_with_agents_reviewers_and_workers_killed(database: TestDatabase) {
    let size = std::env::var("LATCHWORK_LIFE_ORDERS").ok().and_then(|text| text.parse().ok());
    let (orders, items): (i64, i64) = (size.unwrap_or(20), 10);
    let work = open(&database.url).await;
    let kept = tokio::spawn(maintenance(&work).run());
    let mut ids = Vec::new();
    for _ in 0..orders {
        ids.push(propose(&work, "quick", json!({ "items": items })).await.id);
    }
    let mut agents: Vec<_> =
        (0..8).map(|n| Child::start(&format!("agent-{n}"), &database.url)).collect();
    let mut workers: Vec<_> =
        (0..2).map(|n| Worker::start(&format!("w-{n}"), &database.url)).collect();
    let reviewers = ["bob", "cleo"].map(|name| tokio::spawn(reviewer(work.clone(), name)));
    let open_orders = "SELECT count(*) FROM latchwork_work_order WHERE state <> 'completed'";
    let (begun, limit) = (Instant::now(), secs(140 + 3 * orders.unsigned_abs()));
    let mut kills = 0;
    while database.number(open_orders).await > 0 {
        assert!(begun.elapsed() < limit, "{} left", database.number(open_orders).await);
        tokio::time::sleep(millis(rand::random_range(100..600))).await;
        let n = rand::random_range(0..10);
        match n {
            0..8 => agents[n] = Child::start(&format!("agent-{n}"), &database.url),
            _ => workers[n - 8] = Worker::start(&format!("w-{n}"), &database.url),
        }
        kills += 1;
    }
    reviewers.iter().for_each(tokio::task::JoinHandle::abort);
    drop((agents, workers));
    kept.abort();
    verified(&work).await;
    let done = "SELECT count(*) FROM latchwork_work_item WHERE state = 'completed'";
    assert_eq!(database.number(done).await, orders * items);
    let results = database.number("SELECT count(*) FROM latchwork_work_result").await;
    assert_eq!(results, orders * items, "one result each");
    let applied = "SELECT count(*) FROM latchwork_work_event WHERE event = 'applied'";
    assert_eq!(database.number(applied).await, orders, "once");
    println!("{orders} orders of {items} items, {kills} kills, in {:?}", begun.elapsed());
    receipts(&work, &ids).await;
}

/// Every receipt says what the exported trail says; some of them also by the page of Python.
async fn receipts(work: &WorkManager, orders: &[OrderId]) {
    let mut trail = BTreeMap::new();
    loop {
        let after = trail.last_key_value().map_or(0, |(position, _)| *position);
        let page = work.export(after, 10_000).await.expect("exported");
        if page.is_empty() {
            break;
        }
        trail.extend(page.into_iter().map(|event| (event.seal.position, event)));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (export, file) = (directory.path().join("export"), directory.path().join("receipt"));
    let lines: Vec<_> = trail.values().map(|event| json!(event).to_string()).collect();
    std::fs::write(&export, lines.join("\n")).expect("written");
    for (n, id) in orders.iter().enumerate() {
        let receipt = work.receipt(*id).await.expect("a receipt");
        assert_eq!((receipt.order_id, receipt.events.len()), (*id, 2));
        let named = receipt.events.iter().filter_map(|event| trail.get(&event.seal.position));
        assert_eq!(receipt.findings(named), [""; 0], "{id}");
        if n < 3 {
            std::fs::write(&file, json!(receipt).to_string()).expect("written");
            let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verify.py");
            let mut python = Command::new("python3");
            let said = python.arg(page).arg(&export).arg("--receipt").arg(&file).output();
            let said = said.expect("python3 runs");
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        }
    }
}

/// A constraint that is checked at the end refuses what apply wrote, and apply says that all is well: the
/// order fails at once, with the reason, instead of being applied until its attempts are used up.
async fn w07_a_transaction_that_cannot_be_committed_fails_the_order(database: TestDatabase) {
    let apply = ApplySettings { in_transaction: true, ..ApplySettings::default() };
    let settings = TypeSettings { apply, ..TypeSettings::default() };
    let refused = DynamicOrderType::new("refused").settings(settings).apply(|_, step| {
        Box::pin(async move {
            let sql = "INSERT INTO orphan (parent) VALUES (7)";
            let failed = |error: sqlx::Error| TypeError::Failed(error.into());
            if let Some(connection) = step.sqlite() {
                sqlx::query(sql).execute(connection).await.map_err(failed)?;
            } else if let Some(connection) = step.postgres() {
                sqlx::query(sql).execute(connection).await.map_err(failed)?;
            }
            Ok(Diff::empty())
        })
    });
    let mut types = crate::test_database::types();
    types.add_dynamic(refused).expect("legal");
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    database.run("CREATE TABLE parent (id integer PRIMARY KEY)").await;
    database
        .run("CREATE TABLE orphan (parent integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        .await;
    approved(&work, "refused", json!({})).await;
    let worker = work.apply_worker("worker").expect("legal");
    let failed = worker.apply_next().await.expect("it is told").expect("an order");
    assert_eq!(failed.state, OrderState::Failed);
    let error = failed.error.expect("why");
    assert_eq!((&error["stage"], &error["code"]), (&json!("apply"), &json!("not_committed")));
    let message = error["message"].as_str().expect("a text").to_lowercase();
    assert!(message.contains("foreign key"), "{message}");
    assert_eq!(database.number("SELECT count(*) FROM orphan").await, 0);
    assert!(work.apply_lease(failed.id).await.expect("asked").is_none(), "nobody has it");
}
