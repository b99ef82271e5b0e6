//! Results in parts over HTTP.

use serde_json::json;

use crate::support::{AGENT, Fixture, on_both};

on_both![parts_make_up_a_result, the_limits_of_parts_are_told];

/// A lease on the item of a fresh article, and the item's path.
async fn leased(f: &Fixture) -> (serde_json::Value, String) {
    f.post("/v1/orders", json!({"type": "article", "payload": {}})).await.ok();
    let got = f.post_as("/v1/items/checkout", json!({}), &[AGENT]).await.ok();
    let item = got["leases"][0]["item_id"].as_str().expect("an id").to_owned();
    (got["leases"][0]["id"].clone(), format!("/v1/items/{item}"))
}

async fn parts_make_up_a_result(f: Fixture) {
    let (lease, item) = leased(&f).await;
    let part = |key: &str, seq: Option<u32>, payload: &str| json!({"lease": lease, "key": key, "seq": seq, "payload": payload});
    let wrong = f.post_as("/v1/parts", part("title", None, ""), &[AGENT]).await;
    wrong.refused(422, "part_invalid");
    assert_eq!(wrong.body["errors"][0]["field"], "/payload");
    for (seq, text) in [(0, "first"), (2, "third")] {
        f.post_as("/v1/parts", part("pages", Some(seq), text), &[AGENT]).await.ok();
    }
    let finalize = json!({"lease": lease});
    let early = f.post_as("/v1/parts/finalize", finalize.clone(), &[AGENT]).await;
    early.refused(409, "parts_incomplete");
    let missing = early.body["missing"].to_string();
    assert!(missing.contains("title") && missing.contains("gap"), "{missing}");

    let done = f.post_as("/v1/parts", part("title", None, "On locks"), &[AGENT]).await.ok();
    assert_eq!((&done["status"], &done["replaced"]), (&json!("validated"), &json!(true)));
    f.post_as("/v1/parts", part("pages", Some(1), "second"), &[AGENT]).await.ok();
    let found = f.get(&format!("{item}/parts?key=title&status=validated&bodies=true")).await.ok();
    assert_eq!(found["parts"][0]["body"]["payload"], "On locks");
    assert_eq!(f.get(&format!("{item}/parts")).await.ok()["parts"][0].get("body"), None);
    f.get(&format!("{item}/parts?colour=red")).await.refused(400, "unknown_name");
    f.get(&format!("{item}/parts?bodies=maybe")).await.refused(400, "invalid_argument");
    let done = f.post_as("/v1/parts/finalize", finalize, &[AGENT]).await.ok();
    assert_eq!(done["state"], "submitted");
    let result = f.get(&item).await.ok()["result"]["result"].clone();
    assert_eq!(result, json!({"title": "On locks", "pages": ["first", "second", "third"]}));
}

async fn the_limits_of_parts_are_told(f: Fixture) {
    let (lease, _) = leased(&f).await;
    let page = |seq: u32| json!({"lease": lease, "key": "pages", "seq": seq, "payload": "x"});
    let unknown = json!({"lease": lease, "key": "colour", "payload": "red"});
    f.post_as("/v1/parts", unknown, &[AGENT]).await.refused(422, "part_invalid");
    // A part of a key that the type does not have is not kept, and does not count.
    for seq in 0..4 {
        f.post_as("/v1/parts", page(seq), &[AGENT]).await.ok();
    }
    f.post_as("/v1/parts", page(4), &[AGENT]).await.refused(422, "part_limit");
    // What is validated and has the wrong form as a whole is refused as a result.
    let best = json!({"lease": lease, "mode": "best_effort"});
    f.post_as("/v1/parts/finalize", best, &[AGENT]).await.refused(422, "result_invalid");
    let other = [("latchwork-actor", "agent:a-2")];
    f.post_as("/v1/parts", page(0), &other).await.refused(403, "lease_foreign");
}
