//! Two payments at once, in the order of their keys.

use latchwork_payments::application::blocking;
use latchwork_payments::application::ports::lock_key;

use crate::support::{
    InMemory, OnSqlite, Setting, amount, request, runtime, soon, transfer, waiters,
};

const ROUNDS: usize = 8;

/// Many transfers in both directions: all end, and nothing is made or lost.
async fn crossing<W: Setting>(setting: W) {
    let world = setting.open().await;
    let (a, b) = (world.authorized(10_000).await, world.authorized(10_000).await);
    let mut tasks = Vec::new();
    for (from, to, cents) in [(a, b, 300), (b, a, 200)] {
        let service = setting.open().await.service;
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let request = transfer(from, to, &format!("round-{round}"), cents);
                let answer = service.transfer.execute(request).await.expect("transferred");
                assert!(!answer.replayed);
            }
        }));
    }
    for task in tasks {
        soon("no circle", task).await.expect("no panic");
    }
    let left = (world.payment(a).await.data().amount, world.payment(b).await.data().amount);
    assert_eq!(left, (amount(9_200), amount(10_800)));
}

#[test]
fn crossing_transfers_end_in_memory() {
    runtime().block_on(crossing(InMemory::new()));
}

#[cfg(target_os = "linux")]
#[test]
fn crossing_transfers_end_on_files() {
    runtime().block_on(crossing(crate::support::OnFiles::new()));
}

#[test]
fn crossing_transfers_end_on_sqlite() {
    runtime().block_on(crossing(OnSqlite::new()));
}

#[test]
fn crossing_transfers_end_on_threads() {
    let (runtime, setting) = (runtime(), InMemory::new());
    let world = runtime.block_on(setting.open());
    let a = runtime.block_on(world.authorized(10_000));
    let b = runtime.block_on(world.authorized(10_000));
    let locks = world.locks.clone().into();
    let both = blocking::TransferAmount::new(locks, world.time.clone(), world.store.clone());
    let both = both.expect("a runtime");
    std::thread::scope(|threads| {
        for (from, to, cents) in [(a, b, 300), (b, a, 200)] {
            let both = &both;
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let request = transfer(from, to, &format!("round-{round}"), cents);
                    both.execute(request.clone()).expect("transferred");
                    assert!(both.execute(request).expect("replayed").replayed);
                }
            });
        }
    });
    assert_eq!(runtime.block_on(world.payment(a)).data().amount, amount(9_200));
    assert_eq!(runtime.block_on(world.payment(b)).data().amount, amount(10_800));
}

/// Whichever way the money goes, the lower key is locked first: while it is taken, the higher one
/// stays free.
#[tokio::test]
async fn the_lower_key_is_locked_first() {
    let world = InMemory::new().open().await;
    let (a, b) = (world.authorized(10_000).await, world.authorized(10_000).await);
    let (low, high) = if lock_key(a) < lock_key(b) { (a, b) } else { (b, a) };
    for (from, to) in [(low, high), (high, low)] {
        let door = world.locks.lock(lock_key(low)).acquire().await.expect("free");
        let service = world.service.clone();
        let moving =
            tokio::spawn(
                async move { service.transfer.execute(transfer(from, to, "key", 100)).await },
            );
        waiters(&world.locks, &lock_key(low), 1).await;
        assert!(!world.locks.exists(&lock_key(high)).await.expect("asked"), "it waits for the low");
        door.release().await.expect("held");
        soon("its turn", moving).await.expect("no panic").expect("transferred");
    }
    for id in [low, high] {
        assert!(!world.locks.exists(&lock_key(id)).await.expect("asked"), "both are released");
        assert_eq!(world.payment(id).await.data().amount, amount(10_000));
    }
}

/// A capture waits for a transfer of its payment, and captures what the transfer has left.
#[tokio::test]
async fn captures_and_transfers_take_turns() {
    let world = InMemory::new().open().await;
    let (a, b) = (world.authorized(10_000).await, world.authorized(10_000).await);
    let door = world.locks.lock(lock_key(a)).acquire().await.expect("free");
    let moving = tokio::spawn({
        let service = world.service.clone();
        async move { service.transfer.execute(transfer(a, b, "key", 4_000)).await }
    });
    // Of the two keys it may wait for `a` while it holds `b`, or for `a` first.
    waiters(&world.locks, &lock_key(a), 1).await;
    let capture = tokio::spawn({
        let service = world.service.clone();
        async move { service.capture.execute(request(a, "key", 10_000)).await }
    });
    waiters(&world.locks, &lock_key(a), 2).await;
    door.release().await.expect("held");
    soon("its turn", moving).await.expect("no panic").expect("transferred");
    let error = soon("its turn", capture).await.expect("no panic").expect_err("60.00 are left");
    assert_eq!(error.code(), "amount_exceeds_authorized");
}
