//! W7: an apply that fails, hangs or panics fails its order, and a retry keeps what agents did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use latchwork_work::{
    ApplySettings, Diff, DynamicOrderType, EventNote, EventType, ItemState, OrderState, TypeError,
};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{
    PLAIN, agent, apply_all, approve, events, hand_in, nothing, order_state, plain, user,
};
use super::w07_apply::{UNHURRIED, applied_by, apply_one, approved, hurried};

cases![
    w07_bug_a_failed_apply_fails_the_order_with_its_error,
    w07_a_retry_after_a_failed_apply_keeps_every_result,
    w07_a_retry_walks_to_approved_in_one_transaction,
    w07_a_retry_waits_for_approval_when_the_content_has_changed,
    w07_a_hung_apply_is_bounded,
    w07_a_panic_fails_the_order,
    w07_a_failure_is_recorded_whatever_its_message,
];

/// A type whose apply fails while a switch is set.
fn failing(fails: &Arc<AtomicU32>, settings: ApplySettings) -> DynamicOrderType {
    let fails = fails.clone();
    applied_by(settings).apply(move |_, _| {
        let left = fails.load(Ordering::SeqCst);
        if left > 0 {
            fails.store(left - 1, Ordering::SeqCst);
            return Box::pin(async { Err(TypeError::Failed("the target is full".into())) });
        }
        Box::pin(async { Ok(Diff::empty()) })
    })
}

/// In the reference the order stayed submitted, and nothing was told.
async fn w07_bug_a_failed_apply_fails_the_order_with_its_error(f: Fixture) {
    let fails = Arc::new(AtomicU32::new(1));
    let work = f.with_types([failing(&fails, ApplySettings::default())]).await;
    let order = approved(&work, 2).await;
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    let error = failed.error.expect("why");
    assert_eq!((&error["stage"], &error["code"]), (&json!("apply"), &json!("apply_failed")));
    let told = events(&work, order).await;
    let told = told.iter().find(|event| event.event == EventType::Failed).expect("told");
    assert!(told.message.as_ref().expect("a message").contains("the target is full"));
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!(item.item.state, ItemState::Submitted, "the agents' work is kept");
    }
    assert_eq!(apply_all(&work).await, 0, "it is not tried by itself");
}

async fn w07_a_retry_after_a_failed_apply_keeps_every_result(f: Fixture) {
    let fails = Arc::new(AtomicU32::new(2));
    let work = f.with_types([failing(&fails, ApplySettings::default())]).await;
    let order = approved(&work, 3).await;
    for _ in 0..2 {
        assert_eq!(apply_one(&work, order).await.state, OrderState::Failed);
        let retried = user(&work, "ada").retry(order).await.expect("retried");
        assert_eq!(retried.state, OrderState::Approved, "the approved content stands");
        assert_eq!(retried.error, None);
    }
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    for item in work.items(order, None, 10).await.expect("items") {
        assert_eq!((item.item.results, item.item.attempts), (1, 1), "nobody worked again");
    }
    let told = events(&work, order).await;
    let fences: Vec<_> = told
        .iter()
        .filter(|event| matches!(event.event, EventType::Failed | EventType::Applied))
        .map(|event| event.payload.as_ref().expect("a payload")["fence"].clone())
        .collect();
    assert_eq!(fences, [1, 2, 3], "each run has a higher fence");
}

async fn w07_a_retry_walks_to_approved_in_one_transaction(f: Fixture) {
    let fails = Arc::new(AtomicU32::new(1));
    let work = f.with_types([failing(&fails, ApplySettings::default())]).await;
    let order = approved(&work, 2).await;
    apply_one(&work, order).await;
    let before = events(&work, order).await.len();
    user(&work, "ada").retry(order).await.expect("retried");
    let told = events(&work, order).await.split_off(before);
    let walk: Vec<_> = told.iter().map(|event| (event.event, event.item_id)).collect();
    use EventType::{Approved, Retried, Submitted};
    assert_eq!(walk, [(Retried, None), (Submitted, None), (Approved, None)], "no item moves");
    // An event has the time of its transaction.
    assert!(told.iter().all(|event| event.created_at == told[0].created_at), "{told:?}");
    assert_eq!(told[0].actor.id.as_deref(), Some("ada"));
    assert_eq!(told[2].payload.as_ref().expect("why")["outcome"], "stands");
    nothing(&agent(&work, "agent-2")).await;
}

async fn w07_a_retry_waits_for_approval_when_the_content_has_changed(f: Fixture) {
    let fails = Arc::new(AtomicU32::new(1));
    let work = f.with_types([failing(&fails, ApplySettings::default())]).await;
    let order = approved(&work, 2).await;
    apply_one(&work, order).await;
    let item = work.items(order, None, 1).await.expect("items")[0].item.id;
    let ada = user(&work, "ada");
    ada.transition_item(item, ItemState::Failed, EventNote::new()).await.expect("failed");
    ada.transition_item(item, ItemState::Queued, EventNote::new()).await.expect("queued");
    let retried = ada.retry(order).await.expect("retried");
    assert!(retried.state != OrderState::Approved, "{}", retried.state);
    hand_in(&work, order).await;
    assert_eq!(order_state(&work, order).await, OrderState::Submitted);
    assert_eq!(apply_all(&work).await, 0);
    approve(&work, order, "bob").await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
}

async fn w07_a_hung_apply_is_bounded(f: Fixture) {
    for in_transaction in [false, true] {
        let settings = ApplySettings { in_transaction, lease_ttl: UNHURRIED, ..hurried() };
        let hangs = applied_by(settings).apply(|_, _| Box::pin(std::future::pending()));
        let work = f.with_types([hangs]).await;
        let order = approved(&work, 1).await;
        let failed = apply_one(&work, order).await;
        assert_eq!(failed.state, OrderState::Failed);
        assert_eq!(failed.error.expect("why")["code"], "apply_timeout");
    }
}

async fn w07_a_panic_fails_the_order(f: Fixture) {
    let panics = plain(PLAIN).apply(|_, _| Box::pin(async { panic!("a bug") }));
    let work = f.with_types([panics]).await;
    let order = approved(&work, 1).await;
    let error = apply_one(&work, order).await.error.expect("why");
    assert_eq!(error["code"], "apply_panicked");
    assert!(error["message"].as_str().expect("text").contains("a bug"), "{error}");
}

async fn w07_a_failure_is_recorded_whatever_its_message(f: Fixture) {
    for message in ["a\0b".to_owned(), "é".repeat(3 << 20)] {
        let told = message.clone();
        let fails = plain(PLAIN).apply(move |_, _| {
            let error = TypeError::Failed(told.clone().into());
            Box::pin(async { Err(error) })
        });
        let work = f.with_types([fails]).await;
        let order = approved(&work, 1).await;
        let failed = apply_one(&work, order).await;
        assert_eq!(failed.state, OrderState::Failed);
        let kept = failed.error.expect("why")["message"].as_str().expect("text").to_owned();
        assert!(kept.chars().next() == message.chars().next() && kept.len() < 10_000);
    }
}
