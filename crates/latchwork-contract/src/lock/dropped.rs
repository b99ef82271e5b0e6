//! Futures that are dropped at every one of their awaits (L17, L21).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::case::case;
use super::fixture::FORCE;
use super::{Case, Fixture, eventually};

pub(super) const CASES: &[Case] = &[
    case!(l17_an_acquire_dropped_at_any_await_leaves_nothing, [Exclusion]),
    case!(l17_a_wait_dropped_at_any_await_leaves_nothing, [Wait, Inspect, Exclusion]),
    case!(l17_a_renewal_dropped_at_any_await_takes_nothing_away, [Renew, Exclusion]),
    case!(l17_a_resume_dropped_at_any_await_leaves_no_holder, [HandOver, Exclusion]),
    case!(l21_a_release_dropped_at_any_await_happens, [Exclusion]),
    case!(l21_a_hand_over_dropped_at_any_await_is_released, [HandOver, Exclusion]),
];

/// More awaits than any of these futures has.
const AWAITS: usize = 40;

const LONG: Duration = Duration::from_secs(60);

/// Polls a future so many times, each when it was woken, and drops it where it waits then; what it
/// gave, if it came to its end before.
async fn cut_short<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn l17_an_acquire_dropped_at_any_await_leaves_nothing(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    for polls in 0..AWAITS {
        let asking = ours.lock(&key).ttl(LONG).acquire();
        if let Some(answer) = cut_short(polls, asking).await {
            return answer.expect("a free key").release().await.expect("held");
        }
        ours.close().await;
        f.free(&theirs, &key).await.release().await.expect("held");
    }
    panic!("it never came to its end");
}

async fn l17_a_wait_dropped_at_any_await_leaves_nothing(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    for polls in 0..AWAITS {
        let held = theirs.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let asking = ours.lock(&key).ttl(LONG).wait(LONG).acquire();
        // Handed over while it waits, as far as it comes to that.
        let releasing = async {
            for _ in 0..50 {
                if !theirs.inspect(&key).await.expect("it answers").waiters.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            held.release().await.expect("held");
        };
        let (answer, ()) = futures::join!(cut_short(polls, asking), releasing);
        if let Some(answer) = answer {
            return answer.expect("its turn").release().await.expect("held");
        }
        ours.close().await;
        f.free(&theirs, &key).await.release().await.expect("held");
        f.queued(&theirs, &key, 0).await;
    }
    panic!("it never came to its end");
}

async fn l17_a_renewal_dropped_at_any_await_takes_nothing_away(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
    for polls in 0..AWAITS {
        let renewed = cut_short(polls, guard.refresh_with(FORCE)).await;
        assert!(guard.is_held(), "after {polls} polls");
        assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
        if let Some(renewed) = renewed {
            renewed.expect("held");
            return guard.release().await.expect("held");
        }
    }
    panic!("it never came to its end");
}

async fn l17_a_resume_dropped_at_any_await_leaves_no_holder(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    for polls in 0..AWAITS {
        let key = f.key(&format!("{polls}"));
        let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let lease = guard.into_lease().await.expect("held");
        if let Some(resumed) = cut_short(polls, ours.resume(lease.clone())).await {
            return resumed.expect("still held").release().await.expect("held");
        }
        ours.close().await;
        // It was not rotated, and so can be resumed; or it was, and was given back.
        if let Ok(guard) = theirs.resume(lease).await {
            guard.release().await.expect("held");
        }
        eventually("no holder is left", async || {
            theirs.lock(&key).try_acquire().await.expect("it answers").is_some()
        })
        .await;
    }
    panic!("it never came to its end");
}

async fn l21_a_release_dropped_at_any_await_happens(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    for polls in 0..AWAITS {
        let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let released = cut_short(polls, guard.release()).await;
        ours.close().await;
        f.free(&theirs, &key).await.release().await.expect("held");
        if let Some(released) = released {
            return released.expect("held");
        }
    }
    panic!("it never came to its end");
}

async fn l21_a_hand_over_dropped_at_any_await_is_released(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    for polls in 0..AWAITS {
        let key = f.key(&format!("{polls}"));
        let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        if let Some(lease) = cut_short(polls, guard.into_lease()).await {
            let resumed = theirs.resume(lease.expect("held")).await.expect("still held");
            return resumed.release().await.expect("held");
        }
        ours.close().await;
        f.free(&theirs, &key).await.release().await.expect("held");
    }
    panic!("it never came to its end");
}
