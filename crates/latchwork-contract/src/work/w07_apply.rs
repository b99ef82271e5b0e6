//! W7: apply is a leased step outside of the request, recorded once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_work::{
    ApplySettings, Diff, DynamicOrderType, EventNote, EventType, Failure, FailurePolicy, ItemState,
    Order, OrderState, ReviewSettings, TypeError, TypeSettings, WorkManager,
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
    w07_bug_a_failed_apply_fails_the_order_with_its_error,
    w07_a_retry_after_a_failed_apply_keeps_every_result,
    w07_a_retry_waits_for_approval_when_the_content_has_changed,
    w07_a_worker_that_lost_its_lease_records_nothing,
    w07_the_next_worker_has_the_same_key_and_a_higher_fence,
    w07_a_hung_apply_is_bounded,
    w07_a_panic_fails_the_order,
    w07_the_hooks_run_in_order,
    w07_a_failing_after_hook_is_tried_again_alone,
    w07_a_cleanup_that_never_succeeds_fails_the_order,
    w07_an_exact_preview_is_made_again,
    w07_a_lease_that_is_lost_in_the_preview_applies_nothing,
    w07_failed_items_are_given_up_on_approval,
    w07_a_large_diff_is_told_without_its_bodies,
    w07_an_apply_that_kills_every_worker_ends,
    w07_nothing_is_applied_that_nobody_reviewed,
    w07_another_version_of_the_type_does_not_apply,
];

fn applied_by(settings: ApplySettings) -> DynamicOrderType {
    plain(PLAIN).settings(TypeSettings { apply: settings, ..TypeSettings::default() })
}

/// Long enough on a busy machine.
const UNHURRIED: Duration = Duration::from_secs(20);

/// Leases of a second, hooks of 200 ms, cleanup at once.
fn hurried() -> ApplySettings {
    ApplySettings {
        lease_ttl: Duration::from_secs(1),
        time_limit: Duration::from_millis(200),
        cleanup: at_once(3),
        ..ApplySettings::default()
    }
}

async fn approved(work: &WorkManager, items: u64) -> latchwork_work::OrderId {
    let order = submitted(work, PLAIN, items).await;
    assert_eq!(approve(work, order, "bob").await.state, OrderState::Approved);
    order
}

async fn apply_one(work: &WorkManager, order: latchwork_work::OrderId) -> Order {
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

/// A type whose apply waits for a signal, and counts its runs.
fn waiting(
    gate: &Arc<tokio::sync::Semaphore>,
    fences: &Arc<std::sync::Mutex<Vec<(String, u64)>>>,
    settings: ApplySettings,
) -> DynamicOrderType {
    let (gate, fences) = (gate.clone(), fences.clone());
    applied_by(settings).apply(move |_, step| {
        fences.lock().expect("no panic").push((step.idempotency_key(), step.fence()));
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.expect("open").forget();
            Ok(Diff::empty())
        })
    })
}

/// Takes the order from its worker, as if that one had slept past its lease.
async fn w07_a_worker_that_lost_its_lease_records_nothing(f: Fixture) {
    let (gate, fences) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default());
    let settings = ApplySettings { time_limit: Duration::from_secs(20), ..hurried() };
    let work = f.with_types([waiting(&gate, &fences, settings)]).await;
    let other = f.manager().await;
    let order = approved(&work, 1).await;
    let slow = {
        let worker = work.apply_worker("slow").expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    while fences.lock().expect("no panic").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It keeps its lease as long as it lives.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert_eq!(other.apply_worker("b").expect("legal").apply(order).await.expect("asked"), None);
    work.take_back_apply(order).await.expect("taken back");
    let done = other.apply_worker("b").expect("legal").apply(order).await.expect("asked");
    assert_eq!(done.expect("taken over").state, OrderState::Completed);
    gate.add_permits(9);
    slow.await.expect("no panic");
    let told = events(&work, order).await;
    let applied: Vec<_> = told.iter().filter(|e| e.event == EventType::Applied).collect();
    assert_eq!(applied.len(), 1, "recorded once");
    assert_eq!(applied[0].payload.as_ref().expect("a payload")["worker"], "b");
    assert!(told.iter().any(|event| event.event == EventType::LeaseExpired), "told");
}

async fn w07_the_next_worker_has_the_same_key_and_a_higher_fence(f: Fixture) {
    let (gate, fences) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::default());
    let settings = ApplySettings { time_limit: Duration::from_secs(20), ..hurried() };
    let work = f.with_types([waiting(&gate, &fences, settings)]).await;
    let order = approved(&work, 1).await;
    for n in 1..=2 {
        let worker = work.apply_worker(format!("w-{n}")).expect("legal");
        let dies = tokio::spawn(async move { worker.apply(order).await });
        while fences.lock().expect("no panic").len() < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies.abort();
        let _ = dies.await;
        while work.apply_lease(order).await.expect("asked").is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    gate.add_permits(9);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    let key = order.to_string();
    assert_eq!(*fences.lock().expect("no panic"), [(key.clone(), 1), (key.clone(), 2), (key, 3)]);
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

fn hooks(calls: &Arc<std::sync::Mutex<Vec<&'static str>>>, cleanup_fails: u32) -> DynamicOrderType {
    let left = Arc::new(AtomicU32::new(cleanup_fails));
    let (before, during, after) = (calls.clone(), calls.clone(), calls.clone());
    applied_by(ApplySettings { lease_ttl: UNHURRIED, time_limit: UNHURRIED, ..hurried() })
        .before_apply(move |_, _| {
            before.lock().expect("no panic").push("before");
            Box::pin(async { Ok(()) })
        })
        .apply(move |_, _| {
            during.lock().expect("no panic").push("apply");
            Box::pin(async { Ok(Diff::between(json!(1), json!(2))) })
        })
        .after_apply(move |order, diff, _| {
            assert_eq!(order.order.state, OrderState::Applied);
            assert_eq!(diff.after, json!(2));
            after.lock().expect("no panic").push("after");
            let fails = left.load(Ordering::SeqCst);
            left.store(fails.saturating_sub(1), Ordering::SeqCst);
            Box::pin(async move {
                match fails {
                    0 => Ok(()),
                    _ => Err(TypeError::Failed("the cache is away".into())),
                }
            })
        })
}

async fn w07_the_hooks_run_in_order(f: Fixture) {
    let calls = Arc::default();
    let work = f.with_types([hooks(&calls, 0)]).await;
    let order = approved(&work, 1).await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    assert_eq!(*calls.lock().expect("no panic"), ["before", "apply", "after"]);
}

async fn w07_a_failing_after_hook_is_tried_again_alone(f: Fixture) {
    let calls = Arc::default();
    let work = f.with_types([hooks(&calls, 2)]).await;
    let order = approved(&work, 2).await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Applied);
    work.seal().await.expect("sealed");
    assert_eq!(order_state(&work, order).await, OrderState::Applied, "it is not over");
    assert_eq!(apply_one(&work, order).await.state, OrderState::Applied);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    assert_eq!(*calls.lock().expect("no panic"), ["before", "apply", "after", "after", "after"]);
    let told = events(&work, order).await;
    let failed = told.iter().filter(|event| event.event == EventType::CleanupFailed).count();
    assert_eq!(failed, 2);
    assert_eq!(told.iter().filter(|event| event.event == EventType::Applied).count(), 1);
}

async fn w07_a_cleanup_that_never_succeeds_fails_the_order(f: Fixture) {
    let calls = Arc::default();
    let work = f.with_types([hooks(&calls, 3)]).await;
    let order = approved(&work, 1).await;
    for _ in 0..2 {
        assert_eq!(apply_one(&work, order).await.state, OrderState::Applied);
    }
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    assert_eq!(failed.error.expect("why")["stage"], "cleanup");
    // A retry cleans up, and applies nothing.
    let retried = user(&work, "ada").retry(order).await.expect("retried");
    assert_eq!(retried.state, OrderState::Applied);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    let runs = calls.lock().expect("no panic").iter().filter(|call| **call == "apply").count();
    assert_eq!(runs, 1, "never again once it is recorded");
    let told = events(&work, order).await;
    assert_eq!(told.iter().filter(|event| event.event == EventType::Applied).count(), 1);
}

async fn w07_an_exact_preview_is_made_again(f: Fixture) {
    let world = Arc::new(AtomicU32::new(1));
    let runs = Arc::new(AtomicU32::new(0));
    let (seen, counted) = (world.clone(), runs.clone());
    let review = ReviewSettings { exact_preview: true, ..Default::default() };
    let exact = plain(PLAIN)
        .settings(TypeSettings { review, ..TypeSettings::default() })
        .preview(move |_| {
            let now = seen.load(Ordering::SeqCst);
            Box::pin(async move { Ok(Some(Diff::between(json!({"n": now}), json!({"n": 0})))) })
        })
        .apply(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(Diff::empty()) })
        });
    let work = f.with_types([exact]).await;
    let order = approved(&work, 1).await;
    world.store(5, Ordering::SeqCst);
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    let error = failed.error.expect("why");
    assert_eq!((&error["code"], &error["stage"]), (&json!("preview_changed"), &json!("apply")));
    assert!(error["details"]["readable"].to_string().contains('5'), "{error}");
    assert_eq!(runs.load(Ordering::SeqCst), 0, "nothing was changed");
    let retried = user(&work, "ada").retry(order).await.expect("retried");
    assert_eq!(retried.state, OrderState::Submitted, "somebody has to look again");
    let preview = work.preview(order).await.expect("a preview");
    assert_eq!(preview.diff.as_ref().expect("a diff").before, json!({"n": 5}), "as it is now");
    approve(&work, order, "bob").await;
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// The lease is taken away while the exact preview is made for the second time: the type's apply, which
/// never waits, must not be begun behind that.
async fn w07_a_lease_that_is_lost_in_the_preview_applies_nothing(f: Fixture) {
    let (asked, runs) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (asks, counted, waits) = (asked.clone(), runs.clone(), gate.clone());
    let review = ReviewSettings { exact_preview: true, ..Default::default() };
    let apply = ApplySettings { time_limit: Duration::from_secs(20), ..hurried() };
    let exact = plain(PLAIN)
        .settings(TypeSettings { review, apply, ..TypeSettings::default() })
        .preview(move |_| {
            let (second, waits) = (asks.fetch_add(1, Ordering::SeqCst) > 0, waits.clone());
            Box::pin(async move {
                if second {
                    waits.acquire().await.expect("open").forget();
                }
                Ok(None)
            })
        })
        .apply(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(Diff::empty()) })
        });
    let work = f.with_types([exact]).await;
    let order = approved(&work, 1).await;
    let before = asked.load(Ordering::SeqCst);
    let slow = {
        let worker = work.apply_worker("slow").expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    while asked.load(Ordering::SeqCst) == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    work.take_back_apply(order).await.expect("taken back");
    let next = {
        let worker = work.apply_worker("next").expect("legal");
        tokio::spawn(async move { worker.apply(order).await.expect("the store answers") })
    };
    let left = slow.await.expect("no panic").expect("it was leased");
    assert_eq!((left.state, runs.load(Ordering::SeqCst)), (OrderState::Approved, 0));
    gate.add_permits(9);
    let done = next.await.expect("no panic").expect("taken over");
    assert_eq!((done.state, runs.load(Ordering::SeqCst)), (OrderState::Completed, 1));
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

async fn w07_an_apply_that_kills_every_worker_ends(f: Fixture) {
    let runs = Arc::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let settings =
        ApplySettings { max_attempts: 2, time_limit: Duration::from_secs(20), ..hurried() };
    let work = f.with_types([waiting(&gate, &runs, settings)]).await;
    let order = approved(&work, 1).await;
    for n in 1..=2 {
        let worker = work.apply_worker("w").expect("legal");
        let dies = tokio::spawn(async move { worker.apply(order).await });
        while runs.lock().expect("no panic").len() < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies.abort();
        let _ = dies.await;
        work.take_back_apply(order).await.expect("expired");
    }
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    assert_eq!(failed.error.expect("why")["code"], "apply_attempts");
    assert_eq!(runs.lock().expect("no panic").len(), 2);
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
