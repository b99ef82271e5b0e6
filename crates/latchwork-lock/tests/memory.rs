//! What only the in-memory provider promises: a request can be dropped at every poll.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use latchwork_lock::{Guard, InMemoryLockProvider, Locks, ManualClock, PageRequest, Result};

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Guard>> + Send + 'a>>;

/// What happens between two polls of the request that will be dropped.
type Event<'a> = Box<dyn Fn(&mut Vec<Guard>) + 'a>;

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(&futures::task::noop_waker()))
}

/// Runs a request up to each of its polls, drops it there, and asks whether anything is left.
#[tokio::test]
async fn l05_a_request_can_be_dropped_at_every_poll() {
    for drop_at in 0..6 {
        for shared in [false, true] {
            let clock = ManualClock::new();
            let locks = Locks::new(InMemoryLockProvider::with_clock(Arc::new(clock.clone())));
            let mut guards = vec![locks.lock("key").acquire().await.expect("free")];

            let request = locks.lock("key").wait_forever();
            let request = if shared { request.shared() } else { request };
            let mut dropped: Asking<'_> = Box::pin(request.acquire());
            let mut behind: Asking<'_> = Box::pin(locks.lock("key").wait_forever().acquire());

            let events: [Event<'_>; 6] = [
                Box::new(|_| ()),
                Box::new(|_| ()),
                Box::new(|guards| guards.clear()),
                Box::new(|_| clock.advance(Duration::from_secs(1))),
                Box::new(|_| clock.advance(Duration::from_secs(3))),
                Box::new(|_| ()),
            ];
            let mut granted = None;
            for (at, event) in events.iter().enumerate() {
                event(&mut guards);
                if at == 1 {
                    assert!(poll(&mut behind).is_pending());
                }
                if at == drop_at {
                    break;
                }
                if granted.is_none()
                    && let Poll::Ready(guard) = poll(&mut dropped)
                {
                    granted = Some(guard.expect("granted"));
                }
            }
            if granted.is_none() {
                drop(dropped);
            }
            drop(granted);
            guards.clear();
            let next = tokio::time::timeout(Duration::from_secs(10), behind).await;
            drop(next.expect("the one behind gets in").expect("granted"));
            let left = locks.list("", PageRequest::default()).await.expect("lists");
            assert!(left.keys.is_empty(), "dropped at {drop_at}, shared {shared}: {left:?}");
        }
    }
}

#[tokio::test]
async fn clear_ends_every_lease() {
    let provider = InMemoryLockProvider::new();
    let locks = Locks::new(provider.clone());
    let guard = locks.lock("key").acquire().await.expect("free");
    provider.clear();
    assert_eq!(guard.release().await.expect_err("broken").code(), "lock_lost");
    assert!(locks.lock("key").try_acquire().await.expect("answers").is_some());
}

#[tokio::test]
async fn a_lock_needs_no_tokio_runtime_to_be_waited_for() {
    let locks = latchwork_lock::blocking::Locks::connect("memory:").expect("there");
    let guard = locks.lock("key").acquire().expect("free");
    let other = locks.clone();
    let waiter = std::thread::spawn(move || other.lock("key").wait_forever().acquire().map(drop));
    let began = std::time::Instant::now();
    while locks.inspect("key").expect("answers").waiters.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "nobody waits");
        std::thread::yield_now();
    }
    guard.release().expect("held");
    waiter.join().expect("no panic").expect("granted");
}
