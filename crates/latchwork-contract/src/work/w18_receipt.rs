//! W18: what an applied order rests on verifies offline.

use std::path::Path;

use latchwork_work::{
    AutoApprove, Diff, OrderId, Receipt, ReviewSettings, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, apply_all, approve, plain, submitted};
use super::w10_audit::{hurried, maintenance};

cases![
    w18_a_receipt_verifies_offline_and_a_changed_one_does_not,
    w18_only_an_applied_and_sealed_order_has_a_receipt,
    w18_a_rule_that_approved_is_on_the_receipt,
    w18_a_receipt_outlives_its_order_and_not_its_events,
];

/// What the page of Python says of a receipt: its exit code and its words.
async fn verified(work: &WorkManager, receipt: &Value) -> (i32, String) {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let name = format!("latchwork-receipt-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).expect("a directory");
    let trail = work.export(0, 10_000).await.expect("an export");
    let checkpoints: Vec<_> = work.checkpoints().await.expect("checkpoints");
    let lines: Vec<_> = trail.iter().map(|line| json!(line).to_string()).collect();
    let (export, file) = (directory.join("export"), directory.join("receipt"));
    std::fs::write(&export, lines.join("\n")).expect("written");
    std::fs::write(&file, receipt.to_string()).expect("written");
    let pruned = directory.join("checkpoints");
    let lines: Vec<_> = checkpoints.iter().map(|line| json!(line).to_string()).collect();
    std::fs::write(&pruned, lines.join("\n")).expect("written");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/verify.py");
    let mut command = std::process::Command::new("python3");
    let out = command.arg(page).arg(export).arg(pruned).arg("--receipt").arg(file).output();
    let out = out.expect("python3 runs");
    std::fs::remove_dir_all(&directory).expect("removed");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let code = out.status.code().expect("it exits");
    let parsed: Receipt = serde_json::from_value(receipt.clone()).expect("a receipt");
    let findings = parsed.findings(&trail);
    assert_eq!(findings.is_empty(), code == 0, "both find the same: {said} {findings:?}");
    (code, said)
}

async fn applied(work: &WorkManager) -> OrderId {
    let order = submitted(work, PLAIN, 2).await;
    approve(work, order, "bob").await;
    assert_eq!(apply_all(work).await, 1);
    order
}

async fn w18_a_receipt_verifies_offline_and_a_changed_one_does_not(f: Fixture) {
    let telling = plain(PLAIN)
        .preview(|order| {
            let after = order.payload.clone();
            Box::pin(async { Ok(Some(Diff::between(json!({"é": 1.5e30}), after))) })
        })
        .apply(|_, _| Box::pin(async { Ok(Diff::between(json!(1), json!(2)).summary("done")) }));
    let work = f.with_types([telling]).await;
    let (order, other) = (applied(&work).await, applied(&work).await);
    work.seal().await.expect("sealed");
    let receipt = json!(work.receipt(order).await.expect("a receipt"));
    assert_eq!(receipt["approvals"][0]["by"]["id"], "bob");
    assert_eq!(receipt["applied"]["fence"], 1);
    assert_eq!(receipt["diff"]["summary"], "done");
    let (code, said) = verified(&work, &receipt).await;
    assert_eq!(code, 0, "{said}");
    let foreign = json!(work.receipt(other).await.expect("a receipt"));
    let changes: [(&str, Value); 9] = [
        ("/approvals/0/by/id", json!("mallory")),
        ("/digest", json!("0".repeat(64))),
        ("/content_version", json!(2)),
        ("/rule/approvals", json!(0)),
        ("/diff/summary", json!("something else")),
        ("/applied/worker", json!("mallory")),
        ("/preview", json!("{}")),
        ("/order_id", json!(other)),
        ("/events", foreign["events"].clone()),
    ];
    for (path, value) in changes {
        let mut changed = receipt.clone();
        *changed.pointer_mut(path).expect(path) = value;
        let (code, said) = verified(&work, &changed).await;
        assert!(code == 1 && said.contains("receipt:"), "{path}: {code} {said}");
    }
}

async fn w18_only_an_applied_and_sealed_order_has_a_receipt(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let refused = async || work.receipt(order).await.expect_err("none yet");
    assert_eq!(refused().await.code(), "no_receipt");
    approve(&work, order, "bob").await;
    assert_eq!(apply_all(&work).await, 1);
    let unsealed = refused().await;
    assert!(unsealed.code() == "not_sealed" && unsealed.is_temporary());
    work.seal().await.expect("sealed");
    work.receipt(order).await.expect("a receipt");
    let none = OrderId::new(work.now().await.expect("a time"));
    assert_eq!(work.receipt(none).await.expect_err("none").code(), "order_not_found");
}

async fn w18_a_rule_that_approved_is_on_the_receipt(f: Fixture) {
    let auto_approve = Some(AutoApprove { version: "v7".to_owned(), schema: Some(json!(true)) });
    let review = ReviewSettings { auto_approve, ..Default::default() };
    let settings = TypeSettings { review, ..TypeSettings::default() };
    let work = f.with_types([plain(PLAIN).settings(settings)]).await;
    let order = submitted(&work, PLAIN, 1).await;
    assert_eq!(apply_all(&work).await, 1);
    work.seal().await.expect("sealed");
    let receipt = json!(work.receipt(order).await.expect("a receipt"));
    assert_eq!(receipt["auto_approve"], "v7");
    let (code, said) = verified(&work, &receipt).await;
    assert_eq!(code, 0, "{said}");
}

/// The trail stays when the order is removed, and with it the receipt, without the preview. When events are
/// removed too, there is no receipt any more, and the answer does not say that there never was one.
async fn w18_a_receipt_outlives_its_order_and_not_its_events(f: Fixture) {
    let previewed = plain(PLAIN).preview(|order| {
        let after = order.payload.clone();
        Box::pin(async { Ok(Some(Diff::between(json!(null), after))) })
    });
    let work = f.with_types([previewed]).await;
    let (order, late) = (applied(&work).await, applied(&work).await);
    work.seal().await.expect("sealed");
    let kept = work.receipt(order).await.expect("a receipt");
    assert!(kept.preview.is_some());
    let mut orders_only = hurried();
    orders_only.prune_events_after = None;
    maintenance(&work, orders_only).round().await.expect("a round");
    assert_eq!(work.order(order).await.expect_err("removed").code(), "order_not_found");
    let receipt = work.receipt(order).await.expect("a receipt");
    let mut without = kept;
    without.preview = None;
    assert_eq!(receipt, without);
    let (code, said) = verified(&work, &json!(receipt)).await;
    assert_eq!(code, 0, "{said}");
    // Some events of the first order at a time: first those of its beginning, at last all of them.
    let mut rounds = maintenance(&work, hurried());
    let mut told_as_pruned = false;
    for _ in 0..200 {
        rounds.round().await.expect("a round");
        let Err(error) = work.receipt(order).await else { continue };
        if error.code() == "order_not_found" {
            assert!(told_as_pruned && work.receipt(late).await.is_ok(), "no event of it is left");
            return events_only(&work).await;
        }
        assert_eq!(error.code(), "no_receipt");
        assert!(error.to_string().contains("pruned"), "{error}");
        told_as_pruned = true;
    }
    panic!("its events are never removed");
}

/// The order is there, and none of its events is.
async fn events_only(work: &WorkManager) {
    let order = applied(work).await;
    work.seal().await.expect("sealed");
    let mut settings = hurried();
    (settings.prune_orders_after, settings.batch) = (None, 1_000);
    maintenance(work, settings).round().await.expect("a round");
    assert_eq!(work.events(0, 10).await.expect("events"), []);
    let error = work.receipt(order).await.expect_err("nothing is left that says so");
    assert!(error.code() == "no_receipt" && error.to_string().contains("pruned"), "{error}");
}
