//! What `/metrics` shows.

use std::time::Duration;

use latchwork_server::Role;
use serde_json::json;

use crate::support::Fixture;

/// The sum of all series of this name with this in their labels.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let series = text.lines().filter_map(|line| line.strip_prefix(name));
    let series = series.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn figures_of_all_layers_are_shown() {
    // One database: the figures are of the process.
    let f = Fixture::new().await;
    let root = f.plain("root", Role::Admin).await;
    let bot = f.plain("bot", Role::Agent).await;
    let body = json!({"type": "keyed", "payload": {"texts": ["a"]}});
    f.post("/v1/orders", &root, body).await.ok();
    f.propose(&root, "blue").await;
    let got = f.post("/v1/items/checkout", &bot, json!({"types": ["keyed"]})).await.ok();
    assert_eq!(got["leases"].as_array().map(Vec::len), Some(1));
    let over = async {
        while f.work.reclaim_expired().await.expect("it answers") == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), over).await.expect("the lease runs out");

    let got = f.post("/v1/items/checkout", &bot, json!({"types": ["blue"]})).await.ok();
    let lease = &got["leases"][0];
    let done = json!({"lease": lease["id"], "result": "x"});
    f.post("/v1/items/submit", &bot, done).await.ok();
    let order = format!("/v1/orders/{}", lease["order_id"].as_str().expect("an id"));
    let preview = f.get(&format!("{order}/preview"), &root).await.ok();
    let seen = json!({"content_version": preview["content_version"], "digest": preview["digest"]});
    let judge = f.plain("judge", Role::Reviewer).await;
    f.post(&format!("{order}/approve"), &judge, seen).await.ok();
    let worker = f.work.apply_worker("worker").expect("legal");
    assert!(worker.apply_next().await.expect("applied").is_some());

    let lock = |number: u8, wait_ms: u64| json!({"key": "a", "token": format!("{number:032x}"), "wait_ms": wait_ms});
    f.post("/v1/locks/acquire", &bot, lock(1, 0)).await.ok();
    f.post("/v1/locks/acquire", &bot, lock(2, 20)).await.refused(409, "lock_taken");
    f.work.seal().await.expect("sealed");

    let text = f.get("/metrics", &root).await.text;
    for (name, label, least) in [
        ("latchwork_orders", "state=\"completed\"", 1.0),
        ("latchwork_items", "type=\"keyed\"", 1.0),
        ("latchwork_work_claims_total", "type=\"keyed\"", 1.0),
        ("latchwork_work_claims_total", "type=\"blue\"", 1.0),
        ("latchwork_work_leases_expired_total", "type=\"keyed\"", 1.0),
        ("latchwork_work_apply_seconds_count", "outcome=\"applied\"", 1.0),
        ("latchwork_lock_wait_seconds_count", "outcome=\"over\"", 1.0),
        ("latchwork_http_requests_total", "route=\"/v1/items/checkout\"", 2.0),
        ("latchwork_http_request_seconds_count", "route=\"/v1/items/checkout\"", 2.0),
    ] {
        assert!(sum(&text, name, label) >= least, "{name} {label}: {text}");
    }
    assert!(text.contains("latchwork_sealing_lag_seconds 0"), "{text}");
    // Nothing of what callers send is the name or label of a series.
    assert!(!text.contains("bot") && !text.contains("/v1/orders/0"), "{text}");
}
