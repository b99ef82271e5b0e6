//! What the lock is for: the race that appears without one.

use std::sync::Arc;

use latchwork_lock::{InMemoryLockProvider, Locks, ManualClock, NoOpLockProvider};
use latchwork_payments::application::CapturePaymentResponse;
use latchwork_payments::application::Result;
use latchwork_payments::application::ports::{CaptureRepository as _, lock_key};
use latchwork_payments::domain::PaymentId;
use latchwork_payments::infrastructure::MemoryStore;
use tokio::sync::Barrier;

use crate::hooked::Hooked;
use crate::support::{World, code, put_authorized, soon, waiters};

/// Two requests that meet between the check and the save, where no lock would let them.
async fn meet(
    locks: [Locks; 2],
    keys: [&str; 2],
) -> (MemoryStore, PaymentId, [Result<CapturePaymentResponse>; 2]) {
    let (clock, store) = (ManualClock::new(), MemoryStore::new());
    let id = put_authorized(&store, &clock).await;
    let barrier = Arc::new(Barrier::new(2));
    let between = Hooked::new(store.clone(), move || {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
        }
    });
    let [one, two] = locks.map(|locks| World::new(locks, clock.clone(), between.clone()));
    // In one task: the first comes to the barrier before the second begins.
    let both =
        async { tokio::join!(one.capture(id, keys[0], 10_000), two.capture(id, keys[1], 10_000)) };
    let (one, two) = soon("both end", both).await;
    (store, id, [one, two])
}

fn no_op() -> Locks {
    Locks::new(NoOpLockProvider::new())
}

/// Two instances of the service, each with a provider of its own that excludes nobody: both find
/// the payment authorized, and the money is taken twice.
#[tokio::test]
async fn without_a_lock_a_payment_is_captured_twice() {
    let (store, id, answers) = meet([no_op(), no_op()], ["key-1", "key-2"]).await;
    let [one, two] = answers.map(|answer| answer.expect("both believe that they captured"));
    assert!(!one.replayed && !two.replayed);
    assert_ne!(one.capture.id, two.capture.id);
    assert_eq!(store.captures_of(id).await.expect("read").len(), 2, "this is the race");
}

/// The same request twice: one capture is stored over the other, and one caller has the name of a
/// capture that there is not.
#[tokio::test]
async fn without_a_lock_an_answer_is_wrong() {
    let (store, id, answers) = meet([no_op(), no_op()], ["key", "key"]).await;
    let [one, two] = answers.map(|answer| answer.expect("both believe that they captured"));
    assert_ne!(one.capture.id, two.capture.id, "an idempotent request with two answers");
    assert_eq!(store.captures_of(id).await.expect("read").len(), 1);
}

/// With growing fences the store still takes the newest writer only. But a fence is no lock: the
/// other one is turned away at the very end, instead of waiting and getting the answer.
#[tokio::test]
async fn a_fence_alone_refuses_where_a_lock_would_wait() {
    let shared = no_op();
    let (store, id, [one, two]) = meet([shared.clone(), shared], ["key", "key"]).await;
    assert_eq!(code(one), "stale_fence");
    let two = two.expect("the newest fence passes");
    assert_eq!(store.captures_of(id).await.expect("read"), [two.capture]);
}

/// The same two requests under a real lock cannot meet there: while the first is between check
/// and save, the second is seen to wait, and then it gets the first one's answer.
#[tokio::test]
async fn with_a_lock_the_second_waits() {
    let (clock, store) = (ManualClock::new(), MemoryStore::new());
    let locks = Locks::new(InMemoryLockProvider::new());
    let id = put_authorized(&store, &clock).await;
    let between = Hooked::new(store.clone(), {
        let locks = locks.clone();
        move || {
            let locks = locks.clone();
            async move { waiters(&locks, &lock_key(id), 1).await }
        }
    });
    let world = World::new(locks, clock, between);
    let both =
        async { tokio::join!(world.capture(id, "key", 10_000), world.capture(id, "key", 10_000)) };
    let (one, two) = soon("both end", both).await;
    let (one, two) = (one.expect("captured"), two.expect("replayed"));
    assert!(!one.replayed && two.replayed && one.capture == two.capture);
    assert_eq!(store.captures_of(id).await.expect("read"), [one.capture]);
}
