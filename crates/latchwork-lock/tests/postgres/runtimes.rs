//! Runtimes of the caller: each has a lane of its own, and what ends with one is not lost.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;

use futures::poll;
use latchwork_lock::{Locks, PageRequest};
use tokio::runtime::Runtime;

use crate::support::backend::postgres::test_database;
use crate::support::{connect, eventually, millis, secs};

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime")
}

/// Takes a key again and again, for ever.
async fn keep_locking(locks: Locks, key: String, grants: Arc<AtomicU32>) {
    loop {
        // Long enough that nothing ends by itself.
        let guard = locks.lock(&*key).ttl(secs(600)).wait(secs(60)).acquire().await;
        grants.fetch_add(1, Ordering::Relaxed);
        guard.expect("in time").release().await.expect("held");
    }
}

pub(crate) async fn two_runtimes_share_a_key() {
    const EACH: u32 = 60;
    let locks = connect(&test_database().await).await;
    let inside = Arc::new(AtomicBool::new(false));
    let round = |locks: Locks, inside: Arc<AtomicBool>| async move {
        for _ in 0..EACH {
            let guard = locks.lock("key").wait(secs(60)).acquire().await.expect("in time");
            assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            guard.release().await.expect("held");
        }
    };
    let others = [runtime(), runtime()];
    let mut tasks = Vec::new();
    for other in &others {
        for _ in 0..2 {
            tasks.push(other.spawn(round(locks.clone(), inside.clone())));
        }
    }
    tasks.push(tokio::spawn(round(locks.clone(), inside.clone())));
    for task in tasks {
        task.await.expect("no panic");
    }
    others.into_iter().for_each(Runtime::shutdown_background);
    assert!(!locks.exists("key").await.expect("it answers"));
}

/// A request is carried by the task that asks, which may look away or drop it at any time.
pub(crate) async fn who_does_not_look_holds_nobody_up() {
    let locks = connect(&test_database().await).await;
    let other = runtime();
    let ours = locks.clone();
    let looking_away = other.spawn(async move {
        let mut asking = pin!(ours.lock("one").ttl(secs(600)).acquire());
        // Where this thread has to wait for a core midway, the answer may be there at once.
        let at_once = poll!(&mut asking);
        for _ in 0..20 {
            let guard = ours.lock("two").acquire().await.expect("a free key");
            guard.release().await.expect("held");
        }
        let guard = match at_once {
            Poll::Ready(guard) => guard.expect("a free key"),
            Poll::Pending => asking.await.expect("a free key"),
        };
        {
            let mut giving = pin!(guard.release());
            let _ = poll!(&mut giving);
        }
        for polls in 1..20 {
            let mut asking = pin!(ours.lock("three").ttl(secs(600)).acquire());
            for _ in 0..polls {
                if poll!(&mut asking).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    });
    looking_away.await.expect("no panic");
    eventually("nothing is left", async || {
        locks.list("", PageRequest::default()).await.expect("it answers").keys.is_empty()
    })
    .await;
    other.shutdown_background();
}

/// Cut off anywhere: while asking, while waiting, while holding and while giving back.
pub(crate) async fn a_runtime_that_ends_leaves_nothing_behind() {
    let locks = connect(&test_database().await).await;
    for round in 0..12 {
        let other = runtime();
        let grants = Arc::new(AtomicU32::new(0));
        for task in 0..16 {
            // Some have a key for themselves, and others share one.
            let key = format!("key-{}", if task < 8 { task } else { 8 });
            other.spawn(keep_locking(locks.clone(), key, grants.clone()));
        }
        eventually("they are at it", async || grants.load(Ordering::Relaxed) > 16).await;
        tokio::time::sleep(millis(round)).await;
        match round % 3 {
            0 => other.shutdown_background(),
            _ => tokio::task::spawn_blocking(|| drop(other)).await.expect("no panic"),
        }
        eventually("nothing is left", async || {
            locks.list("", PageRequest::default()).await.expect("it answers").keys.is_empty()
        })
        .await;
    }
    // And the runtime that stays has its locks as before.
    locks.lock("key-8").acquire().await.expect("a free key").release().await.expect("held");
}
