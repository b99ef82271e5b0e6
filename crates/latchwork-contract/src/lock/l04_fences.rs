//! L4 Fences grow: strictly, per key, whatever ended the lease before.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::{Fence, Mode};

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l04_over_release, []),
    case!(l04_over_a_new_client, []),
    case!(l04_over_expiry, [Exclusion, Expiry]),
    case!(l04_over_break, [Exclusion, Break]),
    case!(l04_over_take_over, [TakeOver]),
    case!(l04_over_resume, [HandOver]),
    case!(l04_over_resume_with_others_waiting, [HandOver, Wait, Inspect, Exclusion]),
    case!(l04_over_a_hand_off, [Wait, Inspect, Exclusion]),
    case!(l04_between_readers, [Shared]),
    case!(l04_over_many_tasks, [Wait, Exclusion]),
];

async fn l04_over_release(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let mut last = Fence::new(0);
    for _ in 0..f.rounds(50) {
        let guard = locks.lock(&key).acquire().await.expect("a free key");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().await.expect("held");
    }
}

async fn l04_over_a_new_client(f: Fixture) {
    let key = f.key("a");
    let mut last = Fence::new(0);
    for _ in 0..5 {
        let locks = f.open().await;
        let guard = locks.lock(&key).acquire().await.expect("a free key");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().await.expect("held");
        locks.close().await;
    }
}

async fn l04_over_expiry(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let dead = locks.lock(&key).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    let next = f.free(&locks, &key).await;
    assert!(next.fence() > dead.fence());
}

async fn l04_over_break(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let broken = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    let next = locks.lock(&key).acquire().await.expect("broken, so free");
    assert!(next.fence() > broken.fence());
}

async fn l04_over_take_over(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let old = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    let new = locks.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert!(new.fence() > old.fence());
}

async fn l04_over_resume(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let mut last = guard.fence();
    let mut lease = guard.into_lease().await.expect("held");
    for _ in 0..3 {
        let guard = locks.resume(lease).await.expect("held");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        lease = guard.into_lease().await.expect("held");
    }
    locks.resume(lease).await.expect("held").release().await.expect("held");
    let next = locks.lock(&key).acquire().await.expect("free");
    assert!(next.fence() > last);
}

async fn l04_over_resume_with_others_waiting(f: Fixture) {
    // The trap: a fence that a waiter got on queueing is older than that of a later rotation.
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&locks, &key, Mode::Exclusive).await;
    let lease = guard.into_lease().await.expect("held");
    let resumed = locks.resume(lease).await.expect("held");
    let fence = resumed.fence();
    resumed.release().await.expect("held");
    let next = f.soon("the waiter is next", waiter).await;
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
}

async fn l04_over_a_hand_off(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let first = f.enqueue(&locks, &key, Mode::Exclusive).await;
    let second = f.enqueue(&locks, &key, Mode::Exclusive).await;
    let mut last = guard.fence();
    guard.release().await.expect("held");
    for waiter in [first, second] {
        let guard = f.soon("the next is let in", waiter).await;
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().await.expect("held");
    }
}

async fn l04_between_readers(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let mut guards: Vec<latchwork_lock::Guard> = Vec::new();
    for i in 0..6 {
        let locks = if i % 2 == 0 { &ours } else { &theirs };
        let guard = locks.lock(&key).shared().acquire().await.expect("readers coexist");
        assert!(guards.last().is_none_or(|last| guard.fence() > last.fence()));
        guards.push(guard);
    }
}

async fn l04_over_many_tasks(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    let key = f.key("a");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let rounds = f.rounds(15);
    let tasks = (0..8).map(|i| {
        let (locks, key, seen) = (clients[i % 2].clone(), key.clone(), seen.clone());
        tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = locks.lock(&key).wait(Duration::from_secs(30)).acquire().await;
                let guard = guard.expect("its turn comes");
                seen.lock().expect("no panic").push(guard.fence());
                guard.release().await.expect("held");
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    // In the order of the grants, since they were noted down inside.
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.len(), 8 * rounds);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}
