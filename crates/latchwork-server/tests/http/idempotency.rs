//! `Idempotency-Key` on every mutating operation.

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use crate::support::{AGENT, BOB, Fixture, on_both};

on_both![every_mutating_operation_has_its_effect_once, an_empty_poll_is_not_stored];

/// Sends a request twice and another one under its key: one effect, a marked replay, a refusal.
async fn once(f: &Fixture, path: &str, body: Value, other: Value, who: (&str, &str)) -> Value {
    let key = ("idempotency-key", path);
    let first = f.post_as(path, body.clone(), &[who, key]).await;
    assert_eq!(first.header("idempotent-replayed"), "", "{path}");
    let first = first.ok();
    let again = f.post_as(path, body, &[who, key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true", "{path}");
    assert_eq!(again.ok(), first, "{path}");
    if !other.is_null() {
        f.post_as(path, other, &[who, key]).await.refused(422, "idempotency_conflict");
    }
    first
}

async fn every_mutating_operation_has_its_effect_once(f: Fixture) {
    let texts = |texts: Value| json!({"type": "translation", "payload": {"texts": texts}});
    let five = texts(json!(["a", "b", "c", "d", "e"]));
    let order = once(&f, "/v1/orders", five, texts(json!(["x"])), BOB).await["order"].clone();
    let path = format!("/v1/orders/{}", order["id"].as_str().expect("an id"));
    let all = |list: Value| json!({"orders": list, "all_or_none": true});
    let (one, two) = (texts(json!(["p"])), texts(json!(["q"])));
    once(&f, "/v1/orders/propose-many", all(json!([one])), all(json!([two])), BOB).await;
    let say = |text: &str| json!({"text": text});
    once(&f, &format!("{path}/comments"), say("x"), say("y"), BOB).await;
    once(&f, &format!("{path}/clone"), json!({}), json!({"priority": 7}), BOB).await;

    let five = json!({"order": order["id"], "limit": 5});
    let got = once(&f, "/v1/items/checkout", five, json!({"limit": 2}), AGENT).await;
    let lease = |n: usize| got["leases"][n]["id"].clone();
    let item = |n: usize| got["leases"][n]["item_id"].as_str().expect("an id").to_owned();
    once(&f, &format!("/v1/items/{}/comments", item(0)), say("x"), say("y"), BOB).await;
    let of = |n: usize, more: Value| {
        let mut body = json!({"lease": lease(n)});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("one"));
        body
    };
    let other = of(0, json!({"result": "y"}));
    once(&f, "/v1/items/submit", of(0, json!({"result": "x"})), other, AGENT).await;
    let other = of(1, json!({"reason": "y"}));
    once(&f, "/v1/items/release", of(1, json!({"reason": "x"})), other, AGENT).await;
    let other = of(2, json!({"for_ms": 2}));
    once(&f, "/v1/items/snooze", of(2, json!({"for_ms": 1})), other, AGENT).await;
    let failure = |code: &str| json!({"code": code, "message": "m", "permanent": true});
    let other = of(3, failure("y"));
    once(&f, "/v1/items/fail", of(3, failure("x")), other, AGENT).await;
    let part = |payload: &str| json!({"key": "title", "payload": payload});
    once(&f, "/v1/parts", of(4, part("x")), of(4, part("y")), AGENT).await;
    f.post("/v1/orders", json!({"type": "article", "payload": {}})).await.ok();
    let only = json!({"types": ["article"]});
    let got = f.post_as("/v1/items/checkout", only, &[AGENT]).await.ok();
    let title = json!({"lease": got["leases"][0]["id"], "key": "title", "payload": "t"});
    f.post_as("/v1/parts", title, &[AGENT]).await.ok();
    let finalize = |notes: &str| json!({"lease": got["leases"][0]["id"], "notes": notes});
    once(&f, "/v1/parts/finalize", finalize("x"), finalize("y"), AGENT).await;

    once(&f, &format!("{path}/retry"), json!({}), Value::Null, BOB).await;
    let why = |reason: &str| json!({"reason": reason});
    once(&f, &format!("{path}/requeue"), why("x"), why("y"), BOB).await;
    once(&f, &format!("{path}/cancel"), why("x"), why("y"), BOB).await;

    // An order that goes on without its failed item: that one can be tried again alone.
    f.post("/v1/orders", json!({"type": "page", "payload": {"texts": ["a", "b"]}})).await.ok();
    let page = json!({"types": ["page"]});
    let got = f.post_as("/v1/items/checkout", page, &[AGENT]).await.ok();
    let mut body = failure("x");
    body["lease"] = got["leases"][0]["id"].clone();
    f.post_as("/v1/items/fail", body, &[AGENT]).await.ok();
    let item = got["leases"][0]["item_id"].as_str().expect("an id").to_owned();
    once(&f, &format!("/v1/items/{item}/retry"), json!({}), Value::Null, BOB).await;

    let (path, _) = f.submitted("page", &["a"]).await;
    let preview = f.get(&format!("{path}/preview")).await.ok();
    let seen = |comment: &str| json!({"content_version": preview["content_version"], "digest": preview["digest"], "comment": comment});
    once(&f, &format!("{path}/approve"), seen("x"), seen("y"), BOB).await;
    let no = |code: &str| json!({"errors": [{"code": code, "message": "m"}]});
    once(&f, &format!("{path}/reject"), no("x"), no("y"), BOB).await;
    once(&f, &format!("{path}/dead-letter"), why("x"), why("y"), BOB).await;
}

async fn an_empty_poll_is_not_stored(f: Fixture) {
    let key = ("idempotency-key", "poll");
    let empty = f.post_as("/v1/items/checkout", json!({}), &[AGENT, key]).await.ok();
    assert_eq!(empty["leases"], json!([]));
    f.propose(&["a"]).await;
    let got = f.post_as("/v1/items/checkout", json!({}), &[AGENT, key]).await;
    assert_eq!(got.header("idempotent-replayed"), "");
    assert_eq!(got.ok()["leases"].as_array().map(Vec::len), Some(1));
}

/// On PostgreSQL, where two transactions are under way at once. SQLite has one writer: there a twin
/// waits for it and finds the answer.
#[tokio::test]
async fn a_twin_under_way_is_told_when_to_come_again() {
    let Some(f) = Fixture::postgres().await else { return };
    let mut twin = PgConnection::connect(&f.url).await.expect("connected");
    let mut tx = twin.begin().await.expect("begun");
    sqlx::query(
        "INSERT INTO latchwork_work_idempotency VALUES ('user bob', 'propose', 'k', 'x', '[]', 0, 9e18)",
    )
    .execute(&mut *tx)
    .await
    .expect("the twin's row");
    let key = ("idempotency-key", "k");
    let body = json!({"type": "translation", "payload": {"texts": ["a"]}});
    let waited = f.post_as("/v1/orders", body.clone(), &[BOB, key]).await;
    waited.refused(409, "idempotency_in_flight");
    assert_eq!(waited.header("retry-after"), "1");
    tx.rollback().await.expect("the twin gave up");
    f.post_as("/v1/orders", body, &[BOB, key]).await.ok();
}
