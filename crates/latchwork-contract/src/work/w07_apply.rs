//! W7: apply is a step outside of the request, recorded once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_work::{
    ApplySettings, Diff, DynamicOrderType, EventNote, EventType, Failure, FailurePolicy, ItemState,
    Order, OrderState, ReviewSettings, TypeSettings, WorkManager,
};
use serde_json::{Value, json};

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, at_once, events, hand_in, lease, order_state, plain, propose,
    submitted, user,
};

cases![
    w07_items_are_accepted_and_completed_and_then_the_order,
    w07_approval_returns_before_anything_is_applied,
    w07_apply_is_given_key_fence_payload_and_results,
    w07_failed_items_are_given_up_on_approval,
    w07_a_large_diff_is_told_without_its_bodies,
    w07_a_diff_may_have_nul_characters,
    w07_nothing_is_applied_that_nobody_reviewed,
    w07_another_version_of_the_type_does_not_apply,
    w07_an_order_of_an_unknown_type_stays_free,
];

pub(super) fn applied_by(settings: ApplySettings) -> DynamicOrderType {
    plain(PLAIN).settings(TypeSettings { apply: settings, ..TypeSettings::default() })
}

/// Long enough on a busy machine.
pub(super) const UNHURRIED: Duration = Duration::from_secs(20);

/// Leases of a second, hooks of 200 ms, cleanup at once.
pub(super) fn hurried() -> ApplySettings {
    ApplySettings {
        lease_ttl: Duration::from_secs(1),
        time_limit: Duration::from_millis(200),
        cleanup: at_once(3),
        ..ApplySettings::default()
    }
}

pub(super) async fn approved(work: &WorkManager, items: u64) -> latchwork_work::OrderId {
    let order = submitted(work, PLAIN, items).await;
    assert_eq!(approve(work, order, "bob").await.state, OrderState::Approved);
    order
}

pub(super) async fn apply_one(work: &WorkManager, order: latchwork_work::OrderId) -> Order {
    let worker = work.apply_worker("worker-1").expect("legal");
    worker.apply(order).await.expect("the store answers").expect("it can be applied")
}

async fn w07_items_are_accepted_and_completed_and_then_the_order(f: Fixture) {
    let work = f.manager().await;
    let order = approved(&work, 2).await;
    let done = apply_one(&work, order).await;
    assert_eq!(done.state, OrderState::Completed);
    assert!(done.applied_at.is_some() && done.completed_at.is_some());
    let told = events(&work, order).await;
    let names: Vec<_> = told.iter().map(|event| (event.event, event.item_id.is_some())).collect();
    let from = names.iter().position(|name| name.0 == EventType::Applied).expect("applied");
    use EventType::{Accepted, Applied, Completed};
    let expected = [
        (Applied, false),
        (Accepted, true),
        (Accepted, true),
        (Completed, true),
        (Completed, true),
        (Completed, false),
    ];
    assert_eq!(names[from..], expected);
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!(item.item.state, ItemState::Completed);
        assert!(item.item.accepted_at.is_some());
    }
    work.seal().await.expect("sealed");
    assert_eq!(order_state(&work, order).await, OrderState::Completed);
    assert_eq!(apply_all(&work).await, 0, "once");
}

async fn w07_approval_returns_before_anything_is_applied(f: Fixture) {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let counting = plain(PLAIN).apply(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Diff::empty()) })
    });
    let work = f.with_types([counting]).await;
    approved(&work, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let running = tokio::spawn(work.apply_worker("w").expect("legal").run());
    let second = approved(&work, 1).await;
    while order_state(&work, second).await != OrderState::Completed {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.abort();
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

async fn w07_apply_is_given_key_fence_payload_and_results(f: Fixture) {
    let telling = plain(PLAIN).apply(|order, step| {
        let after = json!({"key": step.idempotency_key(), "fence": step.fence(),
            "attempt": step.attempt(), "worker": step.worker(), "payload": order.payload,
            "inputs": order.items.iter().map(|item| &item.input).collect::<Vec<_>>(),
            "results": order.items.iter().map(|item| &item.result).collect::<Vec<_>>()});
        Box::pin(async move { Ok(Diff::between(json!({}), after).summary("told")) })
    });
    let work = f.with_types([telling]).await;
    let order = approved(&work, 2).await;
    apply_one(&work, order).await;
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Applied).expect("applied");
    let diff = told.diff.as_ref().expect("a diff");
    assert_eq!(diff["after"]["key"], order.to_string());
    assert_eq!((&diff["after"]["fence"], &diff["after"]["attempt"]), (&json!(1), &json!(1)));
    assert_eq!(diff["after"]["worker"], "worker-1");
    assert_eq!(diff["after"]["payload"], json!({"items": 2}));
    assert_eq!(diff["after"]["inputs"], json!([{"n": 0}, {"n": 1}]));
    assert_eq!(diff["after"]["results"], json!([{"of": {"n": 0}}, {"of": {"n": 1}}]));
    assert_eq!(diff["summary"], "told");
    assert_eq!(diff["changes"][0]["op"], "add");
    let payload = told.payload.as_ref().expect("a payload");
    assert_eq!((&payload["fence"], &payload["content_version"]), (&json!(1), &json!(1)));
}

async fn w07_failed_items_are_given_up_on_approval(f: Fixture) {
    for policy in [FailurePolicy::BestEffort, FailurePolicy::Quorum(1)] {
        let settings = TypeSettings { failure: policy, ..TypeSettings::default() };
        let work = f.with_types([plain(PLAIN).settings(settings)]).await;
        let order = propose(&work, PLAIN, 2).await.id;
        let client = agent(&work, "agent-1");
        let held = lease(&client).await;
        client.fail(held.id, Failure::new("x", "y").permanent()).await.expect("failed");
        hand_in(&work, order).await;
        assert_eq!(order_state(&work, order).await, OrderState::Submitted);
        approve(&work, order, "bob").await;
        let failed = work.item(held.item_id).await.expect("an item").item;
        assert_eq!(failed.state, ItemState::DeadLettered);
        assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    }
}

async fn w07_a_large_diff_is_told_without_its_bodies(f: Fixture) {
    let review = ReviewSettings { max_diff_bytes: 1_000, ..Default::default() };
    let large =
        plain(PLAIN).settings(TypeSettings { review, ..TypeSettings::default() }).apply(|_, _| {
            let after = Value::from("x".repeat(100_000));
            Box::pin(async move { Ok(Diff::between(json!(null), after).summary("much")) })
        });
    let work = f.with_types([large]).await;
    let order = approved(&work, 1).await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed, "it is done");
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Applied).expect("told");
    let diff = told.diff.as_ref().expect("a diff").to_string();
    assert!(diff.len() < 1_000 && diff.contains("much") && diff.contains("not kept"), "{diff}");
}

async fn w07_a_diff_may_have_nul_characters(f: Fixture) {
    let telling = plain(PLAIN).apply(|_, _| {
        let diff = Diff::between(json!({"a\0": 1}), json!("a\0b")).summary("a\0b");
        Box::pin(async { Ok(diff) })
    });
    let work = f.with_types([telling]).await;
    let order = approved(&work, 1).await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Applied).expect("applied");
    assert_eq!(told.diff.as_ref().expect("a diff")["after"], "a\0b");
}

async fn w07_nothing_is_applied_that_nobody_reviewed(f: Fixture) {
    let work = f.manager().await;
    let order = submitted(&work, PLAIN, 1).await;
    let note = EventNote::new();
    user(&work, "ada").transition_order(order, OrderState::Approved, note).await.expect("by hand");
    assert_eq!(apply_all(&work).await, 0);
    let told = work.explain_order(order).await.expect("explained");
    let said = &told.blockers[0].first[0].message;
    assert!(said.contains("by hand"), "{said}");
}

async fn w07_another_version_of_the_type_does_not_apply(f: Fixture) {
    let work = f.manager().await;
    let order = approved(&work, 1).await;
    let other = f.with_types([plain(PLAIN).version(2)]).await;
    assert_eq!(apply_one(&other, order).await.state, OrderState::Approved, "left alone");
    assert_eq!(other.preview(order).await.expect_err("other").code(), "invalid_argument");
    work.take_back_apply(order).await.expect("expired");
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
}

/// Not leased for nothing: a program that knows the type can have it at once.
async fn w07_an_order_of_an_unknown_type_stays_free(f: Fixture) {
    let work = f.manager().await;
    let order = approved(&work, 1).await;
    let stranger = f.with_types([plain("strange")]).await;
    let asked = stranger.apply_worker("w").expect("legal").apply(order).await;
    assert_eq!(asked.expect_err("not its type").code(), "order_type_not_found");
    assert_eq!(work.apply_lease(order).await.expect("asked"), None);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
}
