//! Rows that somebody else has changed, keys that have expired, and the caller's own transaction.

use latchwork_work::audit::Finding;
use latchwork_work::{
    Actor, Approval, Checkout, Diff, DynamicOrderType, EventType, OrderId, OrderState, OrderTypes,
    Proposal, Submission, WorkManager,
};
use serde_json::json;
use sqlx::Connection;

use crate::proofs;
use crate::test_database::{TestDatabase, ada, agent, maintenance, propose, verified};

proofs![
    w10_verify_finds_what_was_changed,
    w10_verify_finds_what_was_removed,
    w10_verify_finds_what_was_reordered,
    w10_a_stranger_verifies_a_real_export,
    w09_an_expired_key_is_a_fresh_one,
    w02_the_order_exists_if_and_only_if_the_callers_row_does,
    w11_a_count_that_is_wrong_is_counted_anew,
    w15_damaged_rows_are_told_and_hide_no_others,
    w15_an_event_of_a_newer_program_is_read,
    w03_one_that_the_database_refuses_spoils_no_other,
    w07_damaged_orders_hold_up_no_other_apply,
    w07_damaged_content_fails_the_apply,
    w17_a_damaged_preview_is_made_anew,
];

/// A sealed trail of three orders.
async fn trail(database: &TestDatabase) -> latchwork_work::WorkManager {
    let work = database.manager().await;
    let client = agent(&work, "agent-1");
    for _ in 0..3 {
        propose(&work, "job", json!({"items": 1})).await;
        let lease = client.checkout(Checkout::any()).await.expect("checked out").leases.remove(0);
        client.submit(Submission::new(&lease, json!({"é": "\u{1f600}"}))).await.expect("in");
    }
    assert!(verified(&work).await > 15);
    work
}

async fn w10_verify_finds_what_was_changed(database: TestDatabase) {
    let work = trail(&database).await;
    for (column, value) in [("payload", "'{}'"), ("actor_id", "'eve'"), ("message", "'x'")] {
        let set = |value: &str| {
            format!("UPDATE latchwork_work_event SET {column} = {value} WHERE position = 3")
        };
        database.run("DROP TABLE IF EXISTS kept").await;
        database.run("CREATE TABLE kept AS SELECT * FROM latchwork_work_event").await;
        assert_eq!(database.run(&set(value)).await, 1);
        let found = work.verify().await.expect("verified").findings;
        assert!(
            matches!(found[..], [Finding::WrongHash { position: 3, .. }]),
            "{column}: {found:?}"
        );
        database.run(&set(&format!("(SELECT k.{column} FROM kept k WHERE k.position = 3)"))).await;
        assert!(work.verify().await.expect("verified").is_intact());
    }
}

async fn w10_verify_finds_what_was_removed(database: TestDatabase) {
    let work = trail(&database).await;
    let last = work.verify().await.expect("verified").position;
    let remove =
        |position: u64| format!("DELETE FROM latchwork_work_event WHERE position = {position}");
    assert_eq!(database.run(&remove(last)).await, 1);
    let found = work.verify().await.expect("verified").findings;
    assert_eq!(found, [Finding::Gap { from: last, to: last }], "also the last one");
    database.run(&remove(2)).await;
    let found = work.verify().await.expect("verified").findings;
    assert!(found.contains(&Finding::Gap { from: 2, to: 2 }), "{found:?}");
    assert!(found.iter().any(|f| matches!(f, Finding::WrongHash { .. })), "{found:?}");
}

async fn w10_verify_finds_what_was_reordered(database: TestDatabase) {
    let work = trail(&database).await;
    for (from, to) in [(1, 9_999), (2, 1), (9_999, 2)] {
        let sql =
            format!("UPDATE latchwork_work_event SET position = {to} WHERE position = {from}");
        assert_eq!(database.run(&sql).await, 1);
    }
    let found = work.verify().await.expect("verified").findings;
    assert!(found.len() >= 2, "both have a wrong hash: {found:?}");
}

async fn w10_a_stranger_verifies_a_real_export(database: TestDatabase) {
    let work = trail(&database).await;
    let directory = tempfile::tempdir().expect("a directory");
    let python = async || {
        let line = |event| serde_json::to_string(&event).expect("JSON");
        let lines: Vec<_> =
            work.export(0, 1_000).await.expect("exported").into_iter().map(line).collect();
        let path = directory.path().join("export");
        std::fs::write(&path, lines.join("\n")).expect("written");
        let output = std::process::Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verify.py"))
            .arg(path)
            .output()
            .expect("python3 runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = python().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(" 0 findings"), "{said}");
    database.run("UPDATE latchwork_work_event SET event = 'failed' WHERE position = 4").await;
    let (code, said) = python().await;
    assert!(code == Some(1) && said.contains("position 4"), "{said}");
}

async fn w09_an_expired_key_is_a_fresh_one(database: TestDatabase) {
    let work = database.manager().await;
    let client = ada(&work).idempotent("k");
    let proposal = |items: u32| Proposal::new("job", json!({ "items": items }));
    let first = client.propose_once(proposal(1)).await.expect("proposed").value.order.id;
    assert!(client.propose_once(proposal(1)).await.expect("proposed").replayed);
    database.run("UPDATE latchwork_work_idempotency SET expires_at = created_at").await;
    let again = client.propose_once(proposal(1)).await.expect("proposed");
    assert!(!again.replayed && again.value.order.id != first, "its time is over");
    database.run("UPDATE latchwork_work_idempotency SET expires_at = created_at").await;
    let other = client.propose_once(proposal(2)).await.expect("no conflict with an expired one");
    assert!(!other.replayed);
    database.run("UPDATE latchwork_work_idempotency SET expires_at = created_at").await;
    assert_eq!(maintenance(&work).round().await.expect("a round").keys, 1);
    let left = database.number("SELECT count(*) FROM latchwork_work_idempotency").await;
    assert_eq!(left, 0);
}

async fn w02_the_order_exists_if_and_only_if_the_callers_row_does(database: TestDatabase) {
    let work = database.manager().await;
    database.run("CREATE TABLE mine (id bigint)").await;
    let client = ada(&work);
    let proposals = || vec![Proposal::new("job", json!({"items": 2})); 2];
    for commits in [false, true] {
        let notice = if database.is_sqlite() {
            let mut connection = database.sqlite_connection().await;
            let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.expect("begun");
            sqlx::query("INSERT INTO mine VALUES (1)").execute(&mut *tx).await.expect("a row");
            let (made, notice) = client.propose_in_sqlite(&mut tx, proposals()).await.expect("in");
            assert_eq!(made.len(), 2);
            match commits {
                true => tx.commit().await.expect("committed"),
                false => tx.rollback().await.expect("rolled back"),
            }
            let error = client.propose_in_postgres(&mut fake().await, proposals()).await;
            assert_eq!(error.map(drop).expect_err("another database").code(), "invalid_argument");
            notice
        } else {
            let mut connection = database.pg().await;
            let mut tx = connection.begin().await.expect("begun");
            sqlx::query("INSERT INTO mine VALUES (1)").execute(&mut *tx).await.expect("a row");
            let (made, notice) =
                client.propose_in_postgres(&mut tx, proposals()).await.expect("in");
            assert_eq!(made.len(), 2);
            match commits {
                true => tx.commit().await.expect("committed"),
                false => tx.rollback().await.expect("rolled back"),
            }
            notice
        };
        notice.send();
        let rows = database.number("SELECT count(*) FROM mine").await;
        let states = work.order_states().await.expect("counts");
        let orders: u64 = states.iter().map(|one| one.count).sum();
        assert_eq!((rows, orders), if commits { (1, 2) } else { (0, 0) });
        let got = agent(&work, "agent-1").checkout(Checkout::any().limit(9)).await.expect("asked");
        assert_eq!(got.leases.len(), if commits { 4 } else { 0 });
    }
    verified(&work).await;
}

/// A connection of the other kind, to show that it is refused.
async fn fake() -> sqlx::PgConnection {
    let server = std::env::var("LATCHWORK_TEST_POSTGRES").expect("a server");
    sqlx::PgConnection::connect(&server).await.expect("connected")
}

async fn w11_a_count_that_is_wrong_is_counted_anew(database: TestDatabase) {
    let work = database.manager().await;
    propose(&work, "keyed", json!({"keys": ["k", "k"], "limit": 1})).await;
    database.run("UPDATE latchwork_work_limit SET held = 1").await;
    database.run("UPDATE latchwork_work_ready SET hold = 1").await;
    let client = agent(&work, "agent-1");
    let none = client.checkout(Checkout::any()).await.expect("asked");
    assert_eq!(none.leases, []);
    maintenance(&work).round().await.expect("a round");
    let got = client.checkout(Checkout::any().limit(9)).await.expect("asked").leases;
    assert_eq!(got.len(), 1);
}

async fn w15_damaged_rows_are_told_and_hide_no_others(database: TestDatabase) {
    let work = database.manager().await;
    let bad = propose(&work, "job", json!({"items": 1})).await;
    let good = propose(&work, "quick", json!({"items": 1})).await;
    database
        .run(&format!("UPDATE latchwork_work_order SET settings = '{{' WHERE id = '{}'", bad.id))
        .await;
    let error = work.order(bad.id).await.expect_err("it cannot be read");
    assert_eq!(error.code(), "work_store_backend", "{error}");
    let client = agent(&work, "agent-1");
    let lease = client.checkout(Checkout::of_type("quick")).await.expect("asked").leases.remove(0);
    client.submit(Submission::new(&lease, json!(1))).await.expect("submitted");
    assert_eq!(work.order(good.id).await.expect("an order").order.state, OrderState::Submitted);
    verified(&work).await;
}

async fn w15_an_event_of_a_newer_program_is_read(database: TestDatabase) {
    let work = database.manager().await;
    let order = propose(&work, "job", json!({"items": 1})).await.id;
    let told = r#"{"agent_name": "a", "agent_planet": "mars"}"#;
    let sql = format!("UPDATE latchwork_work_event SET provenance = '{told}'");
    assert_eq!(database.run(&sql).await, 2);
    let events = work.timeline(order, None, 10).await.expect("a timeline").events;
    assert!(events.iter().all(|event| event.provenance.agent_name.as_deref() == Some("a")));
    verified(&work).await;
}

/// Requests of one process share statements or transactions; those of some cannot be stored.
async fn w03_one_that_the_database_refuses_spoils_no_other(database: TestDatabase) {
    let work = database.manager().await;
    for (table, column, bad) in [("lease", "agent", "bad"), ("result", "result", "\"bad\"")] {
        let sql = match database.is_sqlite() {
            true => format!(
                "CREATE TRIGGER no_bad_{table} BEFORE INSERT ON latchwork_work_{table} \
                 WHEN NEW.{column} = '{bad}' BEGIN SELECT RAISE(ABORT, 'no'); END"
            ),
            false => format!(
                "ALTER TABLE latchwork_work_{table} ADD CONSTRAINT no_bad CHECK ({column} <> '{bad}')"
            ),
        };
        database.run(&sql).await;
    }
    let order = propose(&work, "job", json!({"items": 20})).await.id;
    let is_bad = |n: usize| n % 4 == 2;
    let claim = |n: usize| {
        let client = agent(&work, &if is_bad(n) { "bad".to_owned() } else { format!("agent-{n}") });
        async move {
            let got = client.checkout(Checkout::of_type("job")).await;
            (client, got.map(|got| got.leases))
        }
    };
    let mut held = Vec::new();
    for (n, (client, got)) in
        futures::future::join_all((0..16).map(claim)).await.into_iter().enumerate()
    {
        match got {
            Ok(leases) => {
                assert!(!is_bad(n) && leases.len() == 1, "{n}: {leases:?}");
                held.extend(leases.into_iter().map(|lease| (client.clone(), lease)));
            }
            Err(error) => {
                assert!(is_bad(n) && error.code() == "work_store_backend", "{n}: {error}")
            }
        }
    }
    let leases = database.number("SELECT count(*) FROM latchwork_work_lease").await;
    assert_eq!((held.len(), leases), (12, 12), "and nothing of those that were refused");
    let submit =
        |(n, (client, lease)): (usize, &(latchwork_work::WorkClient, latchwork_work::Lease))| {
            let result = if is_bad(n) { json!("bad") } else { json!(n) };
            let (client, submission) = (client.clone(), Submission::new(lease, result));
            async move { client.submit(submission).await }
        };
    let told = futures::future::join_all(held.iter().enumerate().map(submit)).await;
    for (n, told) in told.iter().enumerate() {
        let details = work.item(held[n].1.item_id).await.expect("an item");
        match told {
            Ok(_) => assert_eq!(details.result.expect("it is stored").result, json!(n)),
            Err(error) => {
                assert!(is_bad(n) && error.code() == "work_store_backend", "{n}: {error}");
                assert!(details.result.is_none() && details.lease.is_some(), "the lease goes on");
            }
        }
    }
    assert_eq!(told.iter().filter(|told| told.is_ok()).count(), 9);
    assert_eq!(work.order(order).await.expect("an order").order.state, OrderState::InProgress);
    verified(&work).await;
}
/// An order whose only item is in.
async fn submitted(work: &WorkManager, proposal: Proposal) -> OrderId {
    let order = ada(work).propose(proposal).await.expect("proposed").order.id;
    let client = agent(work, "agent-1");
    let lease = client.checkout(Checkout::of_order(order)).await.expect("asked").leases.remove(0);
    client.submit(Submission::new(&lease, json!({"n": 1}))).await.expect("submitted");
    order
}

async fn approve(work: &WorkManager, order: OrderId) {
    let preview = work.preview(order).await.expect("a preview");
    let bob = work.client(Actor::user("bob").expect("legal"));
    bob.approve(Approval::of(&preview)).await.expect("approved");
}

async fn approved(work: &WorkManager, priority: i32) -> OrderId {
    let proposal = Proposal::new("job", json!({"items": 1})).priority(priority);
    let order = submitted(work, proposal).await;
    approve(work, order).await;
    order
}

/// The most urgent ones cannot even be read.
async fn w07_damaged_orders_hold_up_no_other_apply(database: TestDatabase) {
    let work = database.manager().await;
    let (one, two) = (approved(&work, 9).await, approved(&work, 8).await);
    let good = approved(&work, 0).await;
    database
        .run(&format!("UPDATE latchwork_work_order SET settings = '{{' WHERE id = '{one}'"))
        .await;
    database.run(&format!("UPDATE latchwork_work_order SET error = 'x' WHERE id = '{two}'")).await;
    let worker = work.apply_worker("w").expect("legal");
    let done = worker.apply_next().await.expect("asked").expect("the one that can be read");
    assert_eq!((done.id, done.state), (good, OrderState::Completed));
    assert_eq!(worker.apply_next().await.expect("asked"), None, "they are left for later");
    let error = worker.apply(one).await;
    assert!(matches!(error, Ok(None)), "postponed, and not leased: {error:?}");
    database.run(&format!("UPDATE latchwork_work_order SET error = NULL WHERE id = '{two}'")).await;
    database.run("UPDATE latchwork_work_order SET apply_after = 0").await;
    let done = worker.apply_next().await.expect("asked").expect("it was restored");
    assert_eq!((done.id, done.state), (two, OrderState::Completed));
}

async fn w07_damaged_content_fails_the_apply(database: TestDatabase) {
    let work = database.manager().await;
    let worker = work.apply_worker("w").expect("legal");
    let damages = [
        ("UPDATE latchwork_work_result SET result = '{' WHERE item_id = 'ITEM'", "content_damaged"),
        ("UPDATE latchwork_work_result SET result = '2' WHERE item_id = 'ITEM'", "content_changed"),
        ("DELETE FROM latchwork_work_result WHERE item_id = 'ITEM'", "content_changed"),
        ("UPDATE latchwork_work_input SET input = 'x' WHERE item_id = 'ITEM'", "content_damaged"),
        ("DELETE FROM latchwork_work_payload WHERE order_id = 'ORDER'", "content_damaged"),
        ("DELETE FROM latchwork_work_review WHERE order_id = 'ORDER'", "content_damaged"),
    ];
    for (sql, code) in damages {
        let order = approved(&work, 0).await;
        let item = work.items(order, None, 1).await.expect("items")[0].item.id;
        let sql = sql.replace("ITEM", &item.to_string()).replace("ORDER", &order.to_string());
        assert_eq!(database.run(&sql).await, 1, "{sql}");
        let failed = worker.apply_next().await.expect("asked").expect("an order");
        assert_eq!((failed.id, failed.state), (order, OrderState::Failed), "{sql}");
        let error = failed.error.expect("why");
        assert_eq!((&error["stage"], &error["code"]), (&json!("apply"), &json!(code)), "{sql}");
    }
    verified(&work).await;
}

/// Its digest names another one, or it is no JSON: nobody is shown it, and nothing is approved by it.
async fn w17_a_damaged_preview_is_made_anew(database: TestDatabase) {
    let mut types = OrderTypes::new();
    let shown = DynamicOrderType::new("job").preview(|order| {
        let after = order.payload.clone();
        Box::pin(async { Ok(Some(Diff::between(json!(null), after))) })
    });
    types.add_dynamic(shown).expect("legal");
    let work = WorkManager::builder(types).connect(&database.url).await.expect("it opens");
    let order = submitted(&work, Proposal::new("job", json!({"items": 1}))).await;
    let bob = work.client(Actor::user("bob").expect("legal"));
    for damaged in ["{", r#"{"after":"harmless","before":null,"changes":[]}"#] {
        let seen = work.preview(order).await.expect("a preview");
        let sql = format!("UPDATE latchwork_work_review SET preview = '{damaged}'");
        assert!(database.run(&sql).await > 0);
        let error = bob.approve(Approval::of(&seen)).await.expect_err("not what is stored");
        assert_eq!(error.code(), "content_changed");
        let anew = work.preview(order).await.expect("made anew");
        assert_eq!((&anew.diff, &anew.digest), (&seen.diff, &seen.digest));
        assert_eq!(anew.content_version, seen.content_version + 1);
    }
    approve(&work, order).await;
    let worker = work.apply_worker("w").expect("legal");
    let done = worker.apply_next().await.expect("asked").expect("an order");
    assert_eq!(done.state, OrderState::Completed);
    let told = work.timeline(order, None, 100).await.expect("a timeline").events;
    assert!(told.iter().any(|event| event.event == EventType::Applied));
}
