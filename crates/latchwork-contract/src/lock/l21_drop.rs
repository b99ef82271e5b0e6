//! L21 Drop queues the release; close flushes.

use std::time::Duration;

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l21_a_dropped_guard_is_released, [Exclusion]),
    case!(l21_close_flushes_many, [Exclusion]),
    case!(l21_a_guard_dropped_outside_of_any_runtime_is_released, [Exclusion]),
    case!(l21_a_dropped_guard_wakes_a_waiter, [Exclusion, Wait, Inspect]),
    case!(l21_a_closed_client_can_go_on, [Exclusion]),
];

async fn l21_a_dropped_guard_is_released(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    drop(guard);
    // Without a flush it happens soon; f.free waits for it, far less long than the ttl.
    f.free(&theirs, &key).await.release().await.expect("held");
}

async fn l21_close_flushes_many(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let keys: Vec<_> = (0..f.rounds(50)).map(|i| f.key(&format!("{i}"))).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(ours.lock(key).acquire().await.expect("a free key"));
    }
    drop(guards);
    ours.close().await;
    for key in &keys {
        let next = theirs.lock(key).try_acquire().await.expect("it answers");
        assert!(next.is_some(), "{key} was not released when close returned");
    }
}

async fn l21_a_guard_dropped_outside_of_any_runtime_is_released(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let thread = std::thread::spawn(move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "this thread is in no runtime");
        drop(guard);
    });
    tokio::task::spawn_blocking(move || thread.join()).await.expect("no panic").expect("no panic");
    ours.close().await;
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l21_a_dropped_guard_wakes_a_waiter(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&theirs, &key, latchwork_lock::Mode::Exclusive).await;
    drop(guard);
    f.soon("the waiter is let in", waiter).await.release().await.expect("held");
}

async fn l21_a_closed_client_can_go_on(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    drop(locks.lock(&key).acquire().await.expect("a free key"));
    locks.close().await;
    locks.close().await;
    let guard = locks.lock(&key).ttl(Duration::from_secs(5)).acquire().await.expect("free");
    guard.release().await.expect("held");
}
