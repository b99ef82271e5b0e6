//! W7: an exact preview is made again before anything is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork_work::{ApplySettings, Diff, OrderState, ReviewSettings, TypeSettings};
use serde_json::json;

use super::Fixture;
use super::case::cases;
use super::fixture::{PLAIN, approve, plain, user};
use super::w07_apply::{UNHURRIED, apply_one, approved, hurried};

cases![w07_an_exact_preview_is_made_again, w07_a_lease_that_is_lost_in_the_preview_applies_nothing,];

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
    let apply = ApplySettings { time_limit: Duration::from_secs(120), ..hurried() };
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
    let slow = tokio::time::timeout(UNHURRIED, slow)
        .await
        .expect("it notices, long before its time is up");
    let left = slow.expect("no panic").expect("it was leased");
    assert_eq!((left.state, runs.load(Ordering::SeqCst)), (OrderState::Approved, 0));
    gate.add_permits(9);
    let done = next.await.expect("no panic").expect("taken over");
    assert_eq!((done.state, runs.load(Ordering::SeqCst)), (OrderState::Completed, 1));
}
