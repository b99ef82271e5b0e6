//! Why something waits, through all layers.

use serde_json::json;

use crate::flows::paused;
use crate::support::{AGENT, Fixture};

#[tokio::test]
async fn a_chain_leads_from_an_order_to_the_signal_that_is_missing() {
    let f = Fixture::new().await;
    let flow = paused(&f, "ORD-1").await;
    let key = f.get(&format!("/v1/flows/{flow}")).await.ok()["lock_key"].clone();
    let order = f.propose(&["a"]).await;
    let leased = f.post_as("/v1/items/checkout", json!({}), &[AGENT]).await.ok();
    // The agent waits for the key that the paused flow holds.
    let wait = json!({"key": key, "token": "1".repeat(32)});
    assert_eq!(f.post_as("/v1/locks/wait", wait, &[AGENT]).await.ok()["ready"], false);

    let id = order["id"].as_str().expect("an id");
    let told = f.get(&format!("/v1/explain/orders/{id}")).await.ok();
    assert_eq!(
        (&told["state"], &told["subject"]["kind"]),
        (&json!("checked_out"), &json!("order"))
    );
    let chain = ["/reasons/0", "/because/0", "/because/0", "/because/0"];
    let codes: Vec<_> = (1..=chain.len())
        .map(|depth| told.pointer(&format!("{}/code", chain[..depth].concat())).cloned())
        .collect();
    let expected = ["leased", "lock_wait", "lock_held", "signal"].map(|code| Some(json!(code)));
    assert_eq!(codes, expected, "{told:#}");
    let item = leased["leases"][0]["item_id"].as_str().expect("an id");
    let told = f.get(&format!("/v1/explain/items/{item}")).await.ok();
    assert_eq!(told["reasons"][0]["because"][0]["subject"]["id"], key);

    let encoded = key.as_str().expect("a key").replace('/', "%2F").replace(':', "%3A");
    let told = f.get(&format!("/v1/explain/locks/{encoded}")).await.ok();
    assert_eq!(told["reasons"][0]["subject"], json!({"kind": "flow", "id": flow}));
    assert_eq!(
        (&told["state"], &told["reasons"][1]["code"]),
        (&json!("held"), &json!("lock_queue"))
    );
    let told = f.get(&format!("/v1/explain/flows/{flow}")).await.ok();
    assert_eq!((&told["state"], &told["reasons"][0]["code"]), (&json!("paused"), &json!("signal")));
    assert_eq!(told["reasons"].as_array().map(Vec::len), Some(1), "it does not wait for itself");
}

#[tokio::test]
async fn what_does_not_wait_has_no_reasons() {
    let f = Fixture::new().await;
    let told = f.get("/v1/explain/locks/nobody").await.ok();
    assert_eq!((&told["state"], &told["reasons"]), (&json!("free"), &json!([])));
    let none = "00000000-0000-0000-0000-000000000000";
    f.get(&format!("/v1/explain/orders/{none}")).await.refused(404, "order_not_found");
    f.get(&format!("/v1/explain/items/{none}")).await.refused(404, "item_not_found");
    f.get(&format!("/v1/explain/flows/{none}")).await.refused(404, "context_not_found");
    // An order of a holder that says for which one it works.
    let order = f.propose(&["a"]).await;
    let note = format!("order:{}", order["id"].as_str().expect("an id"));
    let ask = json!({"key": "k", "token": "2".repeat(32), "note": note});
    f.post_as("/v1/locks/acquire", ask, &[AGENT]).await.ok();
    let told = f.get("/v1/explain/locks/k").await.ok();
    assert_eq!(told["reasons"][0]["because"][0]["code"], "unclaimed", "{told:#}");
}
