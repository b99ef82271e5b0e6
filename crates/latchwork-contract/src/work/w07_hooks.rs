//! W7: what runs before and after apply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_work::{ApplySettings, Diff, DynamicOrderType, EventType, OrderState, TypeError};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{at_once, events, order_state, user};
use super::w07_apply::{UNHURRIED, applied_by, apply_one, approved, hurried};

cases![
    w07_the_hooks_run_in_order,
    w07_a_failing_after_hook_is_tried_again_alone,
    w07_a_cleanup_that_never_succeeds_fails_the_order,
    w07_a_cleanup_that_kills_every_worker_ends,
    w07_a_cleanup_behind_a_long_transaction_keeps_its_lease,
];

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

async fn w07_a_cleanup_that_kills_every_worker_ends(f: Fixture) {
    let (gate, cleanups) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (waits, counted) = (gate.clone(), cleanups.clone());
    let settings = ApplySettings {
        max_attempts: 2,
        lease_ttl: UNHURRIED,
        time_limit: UNHURRIED,
        cleanup: at_once(1),
        ..hurried()
    };
    let kills = applied_by(settings).after_apply(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let waits = waits.clone();
        Box::pin(async move {
            waits.acquire().await.expect("open").forget();
            Ok(())
        })
    });
    let work = f.with_types([kills]).await;
    let order = approved(&work, 1).await;
    for n in 1..=2 {
        let worker = work.apply_worker("w").expect("legal");
        let dies = tokio::spawn(async move { worker.apply(order).await });
        while cleanups.load(Ordering::SeqCst) < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies.abort();
        let _ = dies.await;
        work.take_back_apply(order).await.expect("expired");
    }
    gate.add_permits(9);
    let failed = apply_one(&work, order).await;
    assert_eq!(failed.state, OrderState::Failed);
    let error = failed.error.expect("why");
    assert_eq!((&error["stage"], &error["code"]), (&json!("cleanup"), &json!("cleanup_attempts")));
    assert_eq!(cleanups.load(Ordering::SeqCst), 2);
    // What was applied stays so: a retry cleans up, with all its attempts again.
    let retried = user(&work, "ada").retry(order).await.expect("retried");
    assert_eq!(retried.state, OrderState::Applied);
    assert_eq!(apply_one(&work, order).await.state, OrderState::Completed);
    let told = events(&work, order).await;
    assert_eq!(told.iter().filter(|event| event.event == EventType::Applied).count(), 1);
}

/// Apply takes longer in the store's transaction than a lease lasts, and then the hook does: nobody else
/// runs the hook beside it.
async fn w07_a_cleanup_behind_a_long_transaction_keeps_its_lease(f: Fixture) {
    let (gate, cleanups) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (waits, counted) = (gate.clone(), cleanups.clone());
    let settings = ApplySettings {
        in_transaction: true,
        lease_ttl: Duration::from_secs(2),
        time_limit: UNHURRIED,
        ..hurried()
    };
    let long = applied_by(settings)
        .apply(|_, _| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(2_300)).await;
                Ok(Diff::empty())
            })
        })
        .after_apply(move |_, _, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            let waits = waits.clone();
            Box::pin(async move {
                waits.acquire().await.expect("open").forget();
                Ok(())
            })
        });
    let work = f.with_types([long]).await;
    let order = approved(&work, 1).await;
    let first = work.apply_worker("first").expect("legal");
    let running = tokio::spawn(async move { first.apply(order).await.expect("asked") });
    while cleanups.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let other = work.apply_worker("other").expect("legal");
    assert_eq!(other.apply(order).await.expect("asked"), None, "it is the first one's still");
    // From now on its lease is as short as any, so that a worker which dies is soon followed by another.
    let short = async {
        loop {
            let held = work.apply_lease(order).await.expect("asked").expect("it lives");
            let left = held.expires_at - work.now().await.expect("a time");
            if left.num_milliseconds() <= 2_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), short).await.expect("it is made short");
    assert_eq!(other.apply(order).await.expect("asked"), None);
    gate.add_permits(9);
    let done = running.await.expect("no panic").expect("it had the order");
    assert_eq!((done.state, cleanups.load(Ordering::SeqCst)), (OrderState::Completed, 1));
}
