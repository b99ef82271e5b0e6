//! What becomes of requests that are dropped, late or many.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Wait};
use latchwork_lock::{FileLockProvider, Key};

use crate::support::secs;
use crate::{connect, files, locks, temp, waiters};

#[test]
fn a_drop_without_a_runtime_is_flushed_by_close() {
    let dir = temp();
    let locks = locks(dir.path());
    for _ in 0..20 {
        let guards: Vec<_> = (0..5)
            .map(|n| locks.lock(format!("k{n}")).acquire().expect("flushed before"))
            .collect();
        std::thread::spawn(move || drop(guards)).join().expect("dropped");
        locks.close();
        assert!(files(&dir.path().join("keys")).is_empty());
    }
}

#[tokio::test]
async fn a_dropped_question_leaves_nothing() {
    let dir = temp();
    let locks = connect(dir.path()).await;
    for round in 0..60_u32 {
        // Dropped before, in and after the edit, with and without a wait.
        let patience = Duration::from_micros(u64::from(round) * 150);
        let held = match round % 2 {
            0 => None,
            _ => Some(locks.lock("k").acquire().await.expect("nothing was left")),
        };
        let asking = locks.lock("k").wait(secs(60)).acquire();
        let got = tokio::time::timeout(patience, asking).await;
        drop(got);
        drop(held);
        locks.close().await;
        let left = files(&dir.path().join("keys"));
        // An edit that was under way ends after the close, and then sees that nobody wants it.
        assert!(left.is_empty(), "round {round}: {}", fs::read_to_string(&left[0]).expect("reads"));
    }
}

#[test]
fn a_question_that_nobody_waits_for_is_not_asked() {
    let dir = temp();
    // The thread for edits is busy: the question is still to be asked when it is dropped.
    one_blocking_thread().block_on(async {
        let locks = connect(dir.path()).await;
        let lease = locks.lock("r").acquire().await.expect("free").into_lease().await;
        let lease = lease.expect("a lease");
        let (go, wait) = channel();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        let soon = Duration::from_millis(20);
        let asked = tokio::time::timeout(soon, locks.lock("k").acquire()).await;
        assert!(asked.is_err(), "nobody can answer");
        let resumed = tokio::time::timeout(soon, locks.resume(lease.clone())).await;
        assert!(resumed.is_err(), "nobody can answer");
        locks.close().await;
        go.send(()).expect("heard");
        busy.await.expect("ended").expect("told");
        tokio::task::spawn_blocking(|| ()).await.expect("after the question");
        assert!(!locks.exists("k").await.expect("inspected"), "a grant without an owner");
        // The lease was not rotated to a token that nobody has.
        locks.resume(lease).await.expect("still there").release().await.expect("released");
    });
}

#[test]
fn a_waiter_whose_time_is_over_is_not_let_in_out_of_turn() {
    let dir = temp();
    let other = locks(dir.path());
    let held = other.lock("k").acquire().expect("free");
    one_blocking_thread().block_on(async {
        let locks = connect(dir.path()).await;
        let asking = tokio::spawn(async move {
            locks.lock("k").wait(Duration::from_millis(300)).acquire().await.map(drop)
        });
        let began = Instant::now();
        let queued = async |count| {
            while waiters(&other, "k") != count {
                assert!(began.elapsed() < secs(20), "never {count} waiters");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        queued(1).await;
        // Its last question comes late.
        let (go, wait) = channel();
        let busy = tokio::task::spawn_blocking(move || wait.recv());
        queued(0).await;
        held.release().expect("released");
        other.lock("k").acquire().expect("the next one's turn").release().expect("released");
        go.send(()).expect("heard");
        busy.await.expect("ended").expect("told");
        let late = asking.await.expect("ended").expect_err("others were served meanwhile");
        assert_eq!(late.code(), "lock_taken");
    });
}

fn one_blocking_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime")
}

#[tokio::test]
async fn a_provider_needs_no_front_door_to_leave_the_queue() {
    let dir = temp();
    let provider = FileLockProvider::open(dir.path()).expect("a directory");
    let request = |wait| {
        let key = Key::new("k").expect("a key");
        AcquireRequest::new(key, secs(600), provider.clock().now()).with_wait(wait)
    };
    let first = request(Wait::No);
    let granted = provider.acquire(&first).await.expect("asked");
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let second = request(Wait::Forever);
    let waiting = tokio::time::timeout(Duration::from_millis(300), provider.acquire(&second));
    assert!(waiting.await.is_err());
    provider.close().await;
    let found = provider.inspect(&first.key).await.expect("inspected");
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 0));
    // Asked again, the same grant (L17).
    let Acquired::Granted(again) = provider.acquire(&first).await.expect("asked") else {
        panic!("it is ours");
    };
    assert_eq!(again.fence, found.holders[0].fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_all_get_their_turn() {
    let dir = temp();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = connect(dir.path()).await;
        for _ in 0..20 {
            let (locks, inside) = (locks.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let guard = locks.lock("k").wait(secs(60)).acquire().await.expect("its turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let fence = guard.fence().get();
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("held to the end");
                fence
            }));
        }
    }
    let began = Instant::now();
    let mut fences = BTreeSet::new();
    for task in tasks {
        fences.insert(task.await.expect("ended"));
    }
    println!("60 turns in {:?}", began.elapsed());
    // Without notices each would take the fallback second.
    assert!(began.elapsed() < secs(30), "{:?}", began.elapsed());
    assert_eq!(fences.len(), 60);
    assert!(files(&dir.path().join("keys")).is_empty());
}

/// Releases by `drop` must not fall behind those who ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drops_under_load_do_not_pile_up() {
    const TASKS: usize = 32;
    // Where syncing costs nothing, those who ask take all the time there is.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| temp());
    let locks = connect(dir.path()).await;
    let until = Instant::now() + secs(4);
    let tasks = (0..TASKS).map(|task| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut dropped = 0;
            for round in 0.. {
                if Instant::now() >= until {
                    break;
                }
                let key = format!("{task}-{round}");
                let guard = locks.lock(&*key).ttl(secs(600)).acquire().await.expect("free");
                if round % 3 == 0 {
                    drop(guard);
                    dropped += 1;
                } else {
                    guard.release().await.expect("held");
                }
            }
            dropped
        })
    });
    let mut dropped = 0;
    for task in tasks.collect::<Vec<_>>() {
        dropped += task.await.expect("ended");
    }
    let (left, stopped) = (files(&dir.path().join("keys")).len(), Instant::now());
    locks.close().await;
    println!("{dropped} dropped, {left} of them not free at the end, for {:?}", stopped.elapsed());
    // One that falls behind has most of them left; one that keeps up has a few from the last moment.
    assert!(left <= TASKS + dropped / 4, "{left} of {dropped}");
    assert!(files(&dir.path().join("keys")).is_empty());
}
