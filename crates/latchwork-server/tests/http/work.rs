//! Orders and items over HTTP.

use std::time::Duration;

use axum::body::Body;
use serde_json::{Value, json};

use crate::support::{AGENT, Fixture, request};

#[tokio::test]
async fn an_order_goes_from_propose_to_submitted() {
    let f = Fixture::new().await;
    let body = json!({"type": "translation", "payload": {"texts": ["a"]}, "priority": 5});
    let proposed = f.post("/v1/orders", body).await;
    assert_eq!((proposed.status.as_u16(), proposed.header("etag")), (201, "\"1\""));
    let path = proposed.header("location").to_owned();
    let id = proposed.body["order"]["id"].clone();
    assert_eq!(path, format!("/v1/orders/{}", id.as_str().expect("an id")));

    let leases = f.post_as("/v1/items/checkout", json!({}), &[AGENT]).await.ok();
    let lease = &leases["leases"][0];
    assert_eq!((&lease["input"], &lease["agent"]), (&json!("a"), &json!("a-1")));
    let named = json!({"lease": lease["id"]});
    f.post_as("/v1/items/heartbeat", named, &[AGENT]).await.ok();
    let wrong = json!({"lease": lease["id"], "result": ""});
    let refused = f.post_as("/v1/items/submit", wrong, &[AGENT]).await;
    refused.refused(422, "result_invalid");
    assert_eq!(refused.body["errors"][0]["code"], "minLength");
    let result = json!({"lease": lease["id"], "result": "b"});
    let done = f.post_as("/v1/items/submit", result, &[AGENT]).await.ok();
    assert_eq!(done["state"], "submitted");

    let found = f.get(&path).await.ok();
    assert_eq!(found["order"]["state"], "submitted");
    assert_eq!(found["item_counts"], json!({"submitted": 1}));
    let item =
        f.get(&format!("/v1/items/{}", lease["item_id"].as_str().expect("an id"))).await.ok();
    assert_eq!(item["result"]["result"], "b");
    let events = f.get(&format!("{path}/events")).await.ok();
    let first = &events["events"][0];
    assert_eq!((&first["event"], &first["actor"]["id"]), (&json!("proposed"), &json!("local")));
    assert_eq!(first["provenance"]["unverified"], true);
}

#[tokio::test]
async fn a_key_has_one_effect_and_says_that_it_was_replayed() {
    let f = Fixture::new().await;
    let key = ("idempotency-key", "k-1");
    let body = json!({"type": "translation", "payload": {"texts": ["a", "b"]}});
    let first = f.post_as("/v1/orders", body.clone(), &[key]).await;
    assert_eq!(first.header("idempotent-replayed"), "");
    let again = f.post_as("/v1/orders", body, &[key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(first.body, again.body);
    let other = json!({"type": "translation", "payload": {"texts": ["c"]}});
    f.post_as("/v1/orders", other, &[key]).await.refused(422, "idempotency_conflict");

    let leased = f.post_as("/v1/items/checkout", json!({}), &[AGENT, key]).await;
    let again = f.post_as("/v1/items/checkout", json!({}), &[AGENT, key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    let lease = leased.body["leases"][0]["id"].clone();
    assert_eq!(again.body["leases"][0]["id"], lease);
    // An operation without an answer type of its own is marked too.
    let release = json!({"lease": lease});
    f.post_as("/v1/items/release", release.clone(), &[AGENT, key]).await.ok();
    let again = f.post_as("/v1/items/release", release, &[AGENT, key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    // The lease that the key stands for is over, and is not given out again.
    f.post_as("/v1/items/checkout", json!({}), &[AGENT, key]).await.refused(409, "lease_expired");
}

#[tokio::test]
async fn what_was_seen_is_what_is_changed() {
    let f = Fixture::new().await;
    let order = f.propose(&["a"]).await;
    let path = format!("/v1/orders/{}", order["id"].as_str().expect("an id"));
    let tag = f.get(&path).await.header("etag").to_owned();
    f.post_as("/v1/items/checkout", json!({}), &[AGENT]).await.ok();
    let cancel = format!("{path}/cancel");
    let stale = f.post_as(&cancel, json!({"reason": "x"}), &[("if-match", &tag)]).await;
    stale.refused(412, "version_mismatch");
    let tag = f.get(&path).await.header("etag").to_owned();
    let done = f.post_as(&cancel, json!({"reason": "x"}), &[("if-match", &tag)]).await;
    assert_eq!(done.ok()["state"], "dead_lettered");
    let illegal = f.post(&format!("{path}/dead-letter"), json!({})).await;
    illegal.refused(409, "illegal_transition");
    assert_eq!(illegal.body["current_state"], "dead_lettered");
    assert_eq!(illegal.body["attempted_state"], "dead_lettered");
    assert_eq!(illegal.body["allowed"], json!([]));
}

#[tokio::test]
async fn pages_follow_their_links_and_miss_nothing() {
    let f = Fixture::new().await;
    for _ in 0..5 {
        f.propose(&["a"]).await;
    }
    let (mut path, mut seen) = ("/v1/orders?page[size]=2&state=queued".to_owned(), Vec::new());
    loop {
        let page = f.get(&path).await;
        let ids = page.body["orders"].as_array().expect("orders").iter().map(|o| o["id"].clone());
        seen.extend(ids.map(|id| id.to_string()));
        let link = page.header("link").to_owned();
        let Some((next, _)) = link.strip_prefix('<').and_then(|link| link.split_once('>')) else {
            break;
        };
        path = next.to_owned();
    }
    let unique: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), unique.len()), (5, 5));
    f.get("/v1/orders?colour=red").await.refused(400, "unknown_name");
    f.get("/v1/orders?page[cursor]=x").await.refused(400, "invalid_argument");
    let items = f.get("/v1/items?state=queued&limit=3").await;
    assert_eq!(items.body["items"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_long_poll_is_woken_by_a_proposal() {
    let f = Fixture::new().await;
    let wait = json!({"wait_ms": 20_000});
    let poll = f.post_as("/v1/items/checkout", wait, &[AGENT]);
    let propose = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        f.propose(&["a"]).await;
    };
    let both = async { tokio::join!(poll, propose).0.ok() };
    let got = tokio::time::timeout(Duration::from_secs(10), both).await.expect("woken in time");
    assert_eq!(got["leases"].as_array().map(Vec::len), Some(1));
    let too_long = f.post_as("/v1/items/checkout", json!({"wait_ms": 60_001}), &[AGENT]).await;
    too_long.refused(400, "invalid_argument");
}

#[tokio::test]
async fn refusals_name_what_is_wrong() {
    let f = Fixture::new().await;
    let nobody = "/v1/orders/00000000-0000-0000-0000-000000000000";
    f.get(nobody).await.refused(404, "order_not_found");
    f.get("/v1/orders/7").await.refused(400, "invalid_argument");
    f.get("/v1/nothing").await.refused(404, "not_found");
    f.get("/v1/order-types/x").await.refused(404, "order_type_not_found");
    f.post("/v1/stats", json!({})).await.refused(405, "method_not_allowed");
    let unknown = f.post("/v1/orders", json!({"type": "x", "payload": 1})).await;
    unknown.refused(422, "order_type_not_found");
    assert_eq!(unknown.body["allowed"], json!(["article", "page", "translation"]));
    let wrong =
        f.post("/v1/orders", json!({"type": "translation", "payload": {"texts": [1]}})).await;
    wrong.refused(422, "payload_invalid");
    assert_eq!(wrong.body["errors"][0]["field"], "/payload/texts/0");
    f.post("/v1/orders", json!({"type": "translation", "paylod": {}}))
        .await
        .refused(400, "malformed_request");
    // A user leases nothing, and says who it is in one way only.
    f.post("/v1/items/checkout", json!({})).await.refused(400, "invalid_argument");
    let odd = [("latchwork-actor", "root")];
    f.post_as("/v1/items/checkout", json!({}), &odd).await.refused(400, "invalid_argument");
    let token = [("authorization", "Bearer lw_admin_x")];
    f.post_as("/v1/orders", json!({}), &token).await.refused(401, "unauthorized");
    // Another agent's lease is another agent's.
    f.propose(&["a"]).await;
    let got = f.post_as("/v1/items/checkout", json!({}), &[AGENT]).await.ok();
    let lease = json!({"lease": got["leases"][0]["id"]});
    let other = [("latchwork-actor", "agent:a-2")];
    f.post_as("/v1/items/release", lease, &other).await.refused(403, "lease_foreign");
}

#[tokio::test]
async fn a_body_that_cannot_be_read_names_its_field() {
    let f = Fixture::new().await;
    let checkout = "/v1/items/checkout";
    let many = "/v1/orders/propose-many";
    for (path, body, field) in [
        ("/v1/orders", json!({"type": 5, "payload": {}}), "/type"),
        ("/v1/orders", json!({"type": "x", "payload": {}, "priorty": 5}), "/priorty"),
        ("/v1/orders", json!({"type": "x", "payload": {}, "a/b~c": 5}), "/a~1b~0c"),
        (checkout, json!({"types": ["a", 5]}), "/types/1"),
        (checkout, json!({"limit": -1}), "/limit"),
        (many, json!({"orders": [{"type": 5, "payload": {}}]}), "/orders/0/type"),
    ] {
        let answer = f.post(path, body).await;
        answer.refused(400, "malformed_request");
        assert_eq!(answer.body["errors"][0]["field"], field, "{}", answer.text);
    }
    // What is missing is named in the sentence.
    let answer = f.post("/v1/orders", json!({"payload": {}})).await;
    assert!(answer.text.contains("`type`"), "{}", answer.text);
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_nothing_breaks() {
    let f = Fixture::new().await;
    let send = async |body: Vec<u8>| {
        let request = request("POST", "/v1/orders").header("content-type", "application/json");
        f.send(request.body(Body::from(body)).expect("a request")).await
    };
    send(b"[".repeat(200_000)).await.refused(400, "malformed_request");
    send(b"{\"type\":".to_vec()).await.refused(400, "malformed_request");
    send(vec![0xff; 100]).await.refused(400, "malformed_request");
    send(vec![b' '; (4 << 20) + 1]).await.refused(413, "too_large");
    let large = json!({"type": "translation", "payload": {"texts": ["x".repeat(2 << 20)]}});
    f.post("/v1/orders", large).await.refused(413, "too_large");
    for text in ["'; DROP TABLE latchwork_orders; --", "\" OR 1=1", "%00", "\u{202e}"] {
        let meta = json!({"type": "translation", "payload": {"texts": [text]}, "meta": {text: text},
            "unique_key": text});
        f.post("/v1/orders", meta).await.ok();
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for path in [
            "/v1/orders/",
            "/v1/items/",
            "/v1/orders?filter[type]=",
            "/v1/items?leased_by=",
            "/v1/events?after=",
        ] {
            let answer = f.get(&format!("{path}{encoded}")).await;
            assert!(answer.status.as_u16() < 500, "{path}{text}: {}", answer.status);
        }
    }
    assert_eq!(f.get("/v1/orders").await.ok()["orders"].as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn every_operation_of_the_description_answers_as_described() {
    let f = Fixture::new().await;
    let api = f.get("/openapi.json").await.ok();
    assert_eq!(api["openapi"], "3.1.0");
    let mut operations = 0;
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            operations += 1;
            let path = path
                .replace("{id}", "00000000-0000-0000-0000-000000000000")
                .replace("{name}", "x")
                .replace("{key}", "x");
            let answer = match method.as_str() {
                "get" => f.get(&path).await,
                _ => f.post(&path, Value::Null).await,
            };
            let responses = operation["responses"].as_object().expect("responses");
            let status = answer.status.as_u16();
            assert!(
                status < 500 && responses.contains_key(&status.to_string()),
                "{method} {path}: {status}"
            );
            for (status, response) in responses {
                let content = response["content"].as_object();
                assert!(
                    content.is_some_and(|content| !content.is_empty()),
                    "{method} {path} {status}"
                );
            }
        }
    }
    assert!(operations >= 20, "{operations}");
}
