//! Several requests in one.

use serde_json::json;

use crate::support::{AGENT, Fixture, on_both};

on_both![
    each_proposal_has_its_outcome,
    the_longest_key_stands_for_each_entry,
    all_or_none_is_stored,
    each_result_and_each_lease_has_its_outcome,
];

async fn each_proposal_has_its_outcome(f: Fixture) {
    let order = |texts: &[&str]| json!({"type": "translation", "payload": {"texts": texts}});
    let body = json!({"orders": [order(&["a"]), {"type": "x", "payload": 1}, order(&["b"]),
        {"type": "translation", "payload": {}, "unique_states": ["lost"]}]});
    let key = ("idempotency-key", "many");
    let done = f.post_as("/v1/orders/propose-many", body.clone(), &[key]).await;
    assert_eq!(done.header("idempotent-replayed"), "");
    let outcomes = done.ok()["outcomes"].clone();
    assert_eq!(outcomes[0]["proposed"]["order"]["state"], "queued");
    assert_eq!(outcomes[1]["problem"]["code"], "order_type_not_found");
    assert_eq!(outcomes[1]["problem"]["status"], 422);
    assert_eq!(outcomes[3]["problem"]["code"], "unknown_name");
    // Sent again it makes nothing, and finds what each entry did.
    let again = f.post_as("/v1/orders/propose-many", body, &[key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.ok()["outcomes"][2]["proposed"], outcomes[2]["proposed"]);
    assert_eq!(f.get("/v1/orders").await.ok()["orders"].as_array().map(Vec::len), Some(2));
    let none = f.post("/v1/orders/propose-many", json!({"orders": []})).await;
    none.refused(400, "invalid_argument");
}

async fn the_longest_key_stands_for_each_entry(f: Fixture) {
    let order = json!({"type": "translation", "payload": {"texts": ["a"]}});
    let body = json!({"orders": vec![order; 11]});
    for length in [251, 252, 255] {
        let (key, other) = ("k".repeat(length), "k".repeat(length - 1) + "x");
        let send = async |key: &str| {
            let key = ("idempotency-key", key);
            f.post_as("/v1/orders/propose-many", body.clone(), &[key]).await
        };
        let first = send(&key).await.ok();
        let made = first["outcomes"].as_array().expect("outcomes").iter();
        assert!(made.clone().all(|one| one["proposed"].is_object()), "{length}: {first}");
        let again = send(&key).await;
        assert_eq!(again.header("idempotent-replayed"), "true", "{length}");
        assert_eq!(again.ok(), first);
        assert_eq!(send(&other).await.header("idempotent-replayed"), "");
    }
    let key = "k".repeat(256);
    let refused = f.post_as("/v1/orders/propose-many", body, &[("idempotency-key", &key)]).await;
    assert_eq!(refused.ok()["outcomes"][0]["problem"]["code"], "invalid_argument");
}

async fn all_or_none_is_stored(f: Fixture) {
    let order = json!({"type": "translation", "payload": {"texts": ["a"]}});
    let wrong = json!({"orders": [order, {"type": "translation", "payload": {}}],
        "all_or_none": true});
    f.post("/v1/orders/propose-many", wrong).await.refused(422, "payload_invalid");
    assert_eq!(f.get("/v1/orders").await.ok()["orders"], json!([]));
    let right = json!({"orders": [order, order], "all_or_none": true});
    let done = f.post("/v1/orders/propose-many", right).await.ok();
    assert_eq!(done["outcomes"].as_array().map(Vec::len), Some(2));
    let plan = json!({"type": "translation", "payload": {"texts": ["a", "b"]}});
    let plan = f.post("/v1/orders/plan", plan).await.ok();
    assert_eq!(plan["items"], json!([{"input": "a"}, {"input": "b"}]));
    assert_eq!(f.get("/v1/orders").await.ok()["orders"].as_array().map(Vec::len), Some(2));
}

async fn each_result_and_each_lease_has_its_outcome(f: Fixture) {
    f.propose(&["a", "b", "c"]).await;
    let got = f.post_as("/v1/items/checkout", json!({"limit": 3}), &[AGENT]).await.ok();
    let lease = |n: usize| got["leases"][n]["id"].clone();
    let nobody = "00000000-0000-0000-0000-000000000000";
    let beat = json!({"leases": [lease(0), nobody, lease(1)]});
    let beats = f.post_as("/v1/items/heartbeat-many", beat, &[AGENT]).await.ok();
    let codes = beats["outcomes"].as_array().expect("outcomes").iter();
    let codes: Vec<_> = codes.map(|one| (&one["lease"], &one["problem"]["code"])).collect();
    assert!(codes.contains(&(&json!(nobody), &json!("lease_expired"))), "{codes:?}");
    assert!(codes.contains(&(&lease(1), &json!(null))), "{codes:?}");

    let one = |n: usize, result: &str| json!({"lease": lease(n), "result": result});
    let wrong = json!({"submissions": [one(0, "x"), one(1, "")], "all_or_none": true});
    f.post_as("/v1/items/submit-many", wrong, &[AGENT]).await.refused(422, "result_invalid");
    let mixed = json!({"submissions": [one(0, "x"), one(1, "")]});
    let done = f.post_as("/v1/items/submit-many", mixed, &[AGENT]).await.ok();
    assert_eq!(done["outcomes"][0]["submitted"]["state"], "submitted");
    assert_eq!(done["outcomes"][1]["problem"]["code"], "result_invalid");
    let rest = json!({"submissions": [one(1, "y"), one(2, "z")]});
    let key = ("idempotency-key", "rest");
    f.post_as("/v1/items/submit-many", rest.clone(), &[AGENT, key]).await.ok();
    let again = f.post_as("/v1/items/submit-many", rest, &[AGENT, key]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.ok()["outcomes"][1]["submitted"]["result_version"], 1);
}
