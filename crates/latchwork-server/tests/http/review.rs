//! Preview, approve, reject, apply and receipt over HTTP.

use serde_json::{Value, json};

use crate::support::{ADA, AGENT, BOB, CY, Fixture, on_both};

on_both![
    two_reviewers_approve_what_they_have_seen,
    a_rejected_item_is_done_again_and_told_why,
    a_decision_on_another_version_is_refused,
    a_preview_needs_results,
    who_applies_is_told_and_taken_back,
];

/// The approval of what a preview shows.
fn seen(preview: &Value) -> Value {
    json!({"content_version": preview["content_version"], "digest": preview["digest"]})
}

async fn two_reviewers_approve_what_they_have_seen(f: Fixture) {
    let (path, items) = f.submitted("page", &["a", "b"]).await;
    let preview = f.get(&format!("{path}/preview")).await.ok();
    assert_eq!(preview["diff"]["after"], json!(["a!", "b!"]));
    assert_eq!(preview["diff"]["changes"][0], json!({"op": "add", "path": "/0", "value": "a!"}));
    assert_eq!(preview["review"]["needed"], 2);
    let approve = format!("{path}/approve");
    for who in [ADA, AGENT] {
        let refused = f.post_as(&approve, seen(&preview), &[who]).await;
        refused.refused(403, "reviewer_refused");
    }
    let wrong = json!({"content_version": preview["content_version"], "digest": "0"});
    let refused = f.post_as(&approve, wrong, &[BOB]).await;
    refused.refused(409, "content_changed");
    assert_eq!(refused.body["digest"], preview["digest"]);

    let first = f.post_as(&approve, seen(&preview), &[BOB]).await;
    let tag = first.header("etag").to_owned();
    let first = first.ok();
    assert_eq!((&first["counted"], &first["order"]["state"]), (&json!(true), &json!("submitted")));
    assert_eq!(tag, format!("\"{}\"", first["order"]["version"]));
    let again = f.post_as(&approve, seen(&preview), &[BOB]).await.ok();
    assert_eq!(again["counted"], false);

    // An edit makes another content: Bob's approval is void, and he is told what is different.
    let mut edit = seen(&preview);
    edit["edits"] = json!([{"item": items[1], "result": "B?"}]);
    let edited = f.post_as(&approve, edit, &[CY]).await.ok();
    assert_eq!(edited["order"]["state"], "submitted");
    assert_ne!(edited["content_version"], preview["content_version"]);
    let late = f.post_as(&approve, seen(&preview), &[BOB]).await;
    late.refused(409, "content_changed");
    let changes = late.body["changes"].to_string();
    assert!(changes.contains("b!") && changes.contains("B?"), "{changes}");
    assert_eq!(late.body["content_version"], edited["content_version"]);
    let wrong = json!({"content_version": edited["content_version"], "digest": edited["digest"],
        "edits": [{"item": items[0], "result": ""}]});
    f.post_as(&approve, wrong, &[BOB]).await.refused(422, "result_invalid");
    let preview = f.get(&format!("{path}/preview")).await.ok();
    assert_eq!(preview["diff"]["after"], json!(["a!", "B?"]));
    let done = f.post_as(&approve, seen(&preview), &[BOB]).await.ok();
    assert_eq!(done["order"]["state"], "approved");

    let versions = items[1].as_str().expect("an id");
    let versions = f.get(&format!("/v1/items/{versions}/results")).await.ok();
    assert_eq!(versions["results"][0]["actor"]["id"], "a-1");
    assert_eq!(versions["results"][1]["result"], "B?");
    assert_eq!(versions["results"][1]["edited_from"], 1);

    let receipt = format!("{path}/receipt");
    f.get(&receipt).await.refused(409, "no_receipt");
    f.apply().await;
    assert_eq!(f.get(&path).await.ok()["order"]["state"], "completed");
    let unsealed = f.get(&receipt).await;
    unsealed.refused(409, "not_sealed");
    assert_eq!(unsealed.header("retry-after"), "1");
    f.work.seal().await.expect("sealed");
    let receipt = f.get(&receipt).await.ok();
    assert_eq!(receipt["diff"]["after"], json!(["a!", "B?"]));
    assert_eq!(receipt["digest"], preview["digest"]);
    verifies_offline(&f, &receipt).await;
    let trail = f.get("/v1/audit/verify").await.ok();
    assert_eq!((&trail["intact"], &trail["unsealed"]), (&json!(true), &json!(0)));
    f.post_as(&approve, seen(&preview), &[CY]).await.refused(409, "order_state");
}

/// The receipt against the exported trail, by the page of Python that trusts none of our code.
async fn verifies_offline(f: &Fixture, receipt: &Value) {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut lines, mut path) = (String::new(), "/v1/audit/export?limit=5".to_owned());
    loop {
        let page = f.get(&path).await;
        assert_eq!(page.header("content-type"), "application/x-ndjson");
        lines.push_str(&page.text);
        let link = page.header("link").to_owned();
        let Some((next, _)) = link.strip_prefix('<').and_then(|link| link.split_once('>')) else {
            break;
        };
        path = next.to_owned();
    }
    let (trail, file) = (directory.path().join("trail"), directory.path().join("receipt"));
    std::fs::write(&trail, lines).expect("written");
    std::fs::write(&file, receipt.to_string()).expect("written");
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/verify.py");
    let mut command = std::process::Command::new("python3");
    let out = command.arg(page).arg(trail).arg("--receipt").arg(file).output();
    let out = out.expect("python3 runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

async fn a_rejected_item_is_done_again_and_told_why(f: Fixture) {
    let (path, items) = f.submitted("translation", &["a", "b"]).await;
    let id = path.rsplit('/').next().expect("an id");
    let reject = format!("{path}/reject");
    f.post_as(&reject, json!({"errors": []}), &[BOB]).await.refused(400, "invalid_argument");
    let item = items[1].as_str().expect("an id");
    f.post_as(&format!("/v1/items/{item}/comments"), json!({"text": "be brief"}), &[BOB])
        .await
        .ok();
    let errors = json!([{"code": "tone", "message": "too loud", "field": "", "item": item}]);
    let body = json!({"errors": errors, "rework": true, "items": [item], "comment": "again"});
    assert_eq!(f.post_as(&reject, body, &[BOB]).await.ok()["state"], "in_progress");

    let got = f.post_as("/v1/items/checkout", json!({"order": id}), &[AGENT]).await.ok();
    let lease = &got["leases"][0];
    assert_eq!(lease["item_id"], items[1]);
    let told = lease["previous"].to_string();
    for word in ["b!", "too loud", "again", "be brief"] {
        assert!(told.contains(word), "{word} is not in {told}");
    }
    let leases = f.get(&format!("/v1/leases?order={id}")).await.ok();
    assert_eq!(leases["leases"][0]["leased_by_agent_id"], "a-1");
    assert!(!leases.to_string().contains(lease["id"].as_str().expect("an id")), "{leases}");
    let body = json!({"lease": lease["id"], "result": "quietly"});
    f.post_as("/v1/items/submit", body, &[AGENT]).await.ok();

    let preview = f.get(&format!("{path}/preview")).await.ok();
    let errors = json!({"errors": [{"code": "no", "message": "never mind"}]});
    assert_eq!(f.post_as(&reject, errors.clone(), &[BOB]).await.ok()["state"], "rejected");
    let late = f.post_as(&format!("{path}/approve"), seen(&preview), &[CY]).await;
    late.refused(409, "decided");
    assert_eq!(late.body["current_state"], "rejected");
    f.post_as(&reject, errors, &[CY]).await.refused(409, "decided");
}

async fn a_decision_on_another_version_is_refused(f: Fixture) {
    let (path, _) = f.submitted("translation", &["a"]).await;
    let tag = f.get(&path).await.header("etag").to_owned();
    let preview = f.get(&format!("{path}/preview")).await.ok();
    let stale = ("if-match", "\"1\"");
    let errors = json!({"errors": [{"code": "no", "message": "never mind"}]});
    for (what, body) in [("approve", seen(&preview)), ("reject", errors)] {
        let refused = f.post_as(&format!("{path}/{what}"), body, &[BOB, stale]).await;
        refused.refused(412, "version_mismatch");
        assert_eq!(format!("\"{}\"", refused.body["current_version"]), tag);
    }
    let current = ("if-match", tag.as_str());
    let done = f.post_as(&format!("{path}/approve"), seen(&preview), &[BOB, current]).await.ok();
    assert_eq!(done["order"]["state"], "approved");
}

async fn a_preview_needs_results(f: Fixture) {
    let order = f.propose(&["a"]).await;
    let path = format!("/v1/orders/{}", order["id"].as_str().expect("an id"));
    let early = f.get(&format!("{path}/preview")).await;
    early.refused(409, "order_state");
    assert_eq!(early.body["current_state"], "queued");
    let nobody = "/v1/orders/00000000-0000-0000-0000-000000000000";
    for what in ["preview", "receipt", "apply", "items"] {
        f.get(&format!("{nobody}/{what}")).await.refused(404, "order_not_found");
    }
}

async fn who_applies_is_told_and_taken_back(f: Fixture) {
    let (path, _) = f.submitted("translation", &["a"]).await;
    let preview = f.get(&format!("{path}/preview")).await.ok();
    f.post_as(&format!("{path}/approve"), seen(&preview), &[BOB]).await.ok();
    assert_eq!(f.get(&format!("{path}/apply")).await.ok(), json!({"lease": null}));
    let back = f.post(&format!("{path}/apply/take-back"), json!({})).await.ok();
    assert_eq!(back, json!({"lease": null}));
    f.apply().await;
    assert_eq!(f.get(&path).await.ok()["order"]["state"], "completed");
}
