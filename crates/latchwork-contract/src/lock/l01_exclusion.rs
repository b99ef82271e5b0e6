//! L1 Exclusion: an exclusive lease excludes every other; shared ones coexist with shared ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::{Guard, Locks, Mode};
use tokio::sync::Barrier;

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l01_exclusive_excludes_exclusive, [Exclusion]),
    case!(l01_exclusive_excludes_shared, [Exclusion, Shared]),
    case!(l01_shared_excludes_exclusive, [Exclusion, Shared]),
    case!(l01_shared_coexists_with_shared, [Exclusion, Shared]),
    case!(l01_one_of_many_wins, [Exclusion]),
    case!(l01_a_counter_without_atomics_loses_nothing, [Exclusion, Wait]),
    case!(l01_readers_never_meet_a_writer, [Exclusion, Shared, Wait]),
    case!(l01_keys_are_independent, []),
    case!(l01_prefixes_are_separate, [Exclusion]),
    case!(l01_processes_exclude_each_other, [Exclusion, CrossProcess]),
];

async fn l01_exclusive_excludes_exclusive(f: Fixture) {
    excludes(&f, Mode::Exclusive, Mode::Exclusive).await;
}

async fn l01_exclusive_excludes_shared(f: Fixture) {
    excludes(&f, Mode::Exclusive, Mode::Shared).await;
}

async fn l01_shared_excludes_exclusive(f: Fixture) {
    excludes(&f, Mode::Shared, Mode::Exclusive).await;
}

/// Within one client and between two; and only for as long as it is held.
async fn excludes(f: &Fixture, first: Mode, second: Mode) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).mode(first).acquire().await.expect("a free key");
    for locks in [&ours, &theirs] {
        let got = locks.lock(&key).mode(second).try_acquire().await.expect("it answers");
        assert!(got.is_none(), "a {second} lease beside a held {first} one");
    }
    guard.release().await.expect("it held to the end");
    let got = theirs.lock(&key).mode(second).try_acquire().await.expect("it answers");
    assert!(got.is_some(), "released, and still taken");
}

async fn l01_shared_coexists_with_shared(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let first = ours.lock(&key).shared().acquire().await.expect("a free key");
    let second = theirs.lock(&key).shared().acquire().await.expect("beside another reader");
    let third = ours.lock(&key).shared().acquire().await.expect("beside two readers");
    first.release().await.expect("held");
    third.release().await.expect("held");
    // One is left, and one is enough to keep a writer out.
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    second.release().await.expect("held");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l01_one_of_many_wins(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    for round in 0..f.rounds(10) {
        let key = f.key(&format!("round {round}"));
        let asks = (0..16).map(|i| {
            let (locks, key) = (clients[i % 2].clone(), key.clone());
            tokio::spawn(async move { locks.lock(&key).try_acquire().await.expect("it answers") })
        });
        let guards: Vec<_> =
            join_all(asks).await.into_iter().map(|g| g.expect("no panic")).collect();
        assert_eq!(guards.iter().flatten().count(), 1, "of sixteen that ask at once one wins");
    }
}

async fn l01_a_counter_without_atomics_loses_nothing(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    let key = f.key("counter");
    // Read, pause, write: not atomic, so that an overlap loses an increment.
    let counter = Arc::new(AtomicU64::new(0));
    let rounds = f.rounds(25);
    let tasks = (0..8).map(|i| {
        let (locks, key, counter) = (clients[i % 2].clone(), key.clone(), counter.clone());
        tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = locks.lock(&key).wait(Duration::from_secs(30)).acquire().await;
                let guard = guard.expect("its turn comes");
                let read = counter.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(read + 1, Ordering::Relaxed);
                guard.release().await.expect("it held to the end");
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    assert_eq!(counter.load(Ordering::Relaxed), 8 * rounds as u64);
}

async fn l01_readers_never_meet_a_writer(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    let key = f.key("a");
    // Readers inside, or -1 for a writer.
    let inside = Arc::new(AtomicI64::new(0));
    // At first all readers are in together; only then writers come between them.
    let together = Arc::new(Barrier::new(8));
    let rounds = f.rounds(20);
    let tasks = (0..8).map(|i| {
        let (locks, key) = (clients[i % 2].clone(), key.clone());
        let (inside, together) = (inside.clone(), together.clone());
        let mode = if i % 4 == 0 { Mode::Exclusive } else { Mode::Shared };
        tokio::spawn(async move {
            let first = match mode {
                Mode::Exclusive => None,
                Mode::Shared => Some(in_turn(&locks, &key, mode).await),
            };
            together.wait().await;
            if let Some(guard) = first {
                guard.release().await.expect("it held to the end");
            }
            for _ in 0..rounds {
                visit(&locks, &key, mode, &inside).await;
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
}

async fn in_turn(locks: &Locks, key: &str, mode: Mode) -> Guard {
    let asked = locks.lock(key).mode(mode).wait(Duration::from_secs(30));
    asked.acquire().await.expect("its turn comes")
}

async fn visit(locks: &Locks, key: &str, mode: Mode, inside: &AtomicI64) {
    let guard = in_turn(locks, key, mode).await;
    match mode {
        Mode::Exclusive => {
            let met = inside.swap(-1, Ordering::SeqCst);
            assert_eq!(met, 0, "a writer met {met} readers (-1: a writer)");
            tokio::task::yield_now().await;
            let met = inside.swap(0, Ordering::SeqCst);
            assert_eq!(met, -1, "somebody came in beside a writer");
        }
        Mode::Shared => {
            let met = inside.fetch_add(1, Ordering::SeqCst);
            assert!(met >= 0, "a reader met a writer");
            tokio::time::sleep(Duration::from_millis(1)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
    guard.release().await.expect("it held to the end");
}

async fn l01_keys_are_independent(f: Fixture) {
    let locks = f.open().await;
    let mut guards = Vec::new();
    for i in 0..20 {
        let key = f.key(&format!("{i}"));
        guards.push(locks.lock(&key).try_acquire().await.expect("it answers").expect("free"));
    }
    for guard in guards {
        guard.release().await.expect("it held to the end");
    }
}

async fn l01_prefixes_are_separate(f: Fixture) {
    let locks = f.open().await;
    let other = locks.with_prefix("other/").expect("a legal prefix");
    let key = f.key("a");
    let ours = locks.lock(&key).acquire().await.expect("a free key");
    let theirs = other.lock(&key).acquire().await.expect("another prefix is another key");
    for locks in [&locks, &other] {
        assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    }
    // The prefix is a part of the name, not a world of its own.
    let bare = locks.with_prefix("").expect("a prefix may be empty");
    let whole = format!("{}{key}", locks.prefix());
    assert!(bare.lock(&whole).try_acquire().await.expect("it answers").is_none());
    theirs.release().await.expect("held");
    ours.release().await.expect("held");
}

async fn l01_processes_exclude_each_other(f: Fixture) {
    let key = f.key("a");
    let first = f.open().await;
    let guard = first.lock(&key).acquire().await.expect("a free key");
    for _ in 0..3 {
        let newcomer = f.open().await;
        assert!(newcomer.lock(&key).try_acquire().await.expect("it answers").is_none());
        newcomer.close().await;
    }
    // Those who came and went have taken nothing along.
    assert!(f.open().await.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("it held to the end");
}
