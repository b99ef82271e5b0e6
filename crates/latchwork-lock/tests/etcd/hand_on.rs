//! A release that begins the next lease of the same process: what it costs, and what is left of
//! waiters that sleep, go, or end with their runtime.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use latchwork_lock::Locks;

use crate::cluster::Cluster;
use crate::support::{Child, connect, eventually, millis, secs, waiter, waiting};
use crate::trips::{counts, during};

pub(crate) async fn a_release_begins_the_next_lease() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    // Whoever runs into the next second needs a lease of the server, or meets the look of every
    // second one: it tries again.
    let mut found = HashMap::new();
    for _ in 0..20 {
        let guard = locks.lock("key").acquire().await.expect("free");
        let next = waiter(&locks, "key");
        waiting(&locks, "key", 1).await;
        let fence = guard.fence();
        let mut got = None;
        found = during(&cluster, async {
            guard.release().await.expect("held");
            got = Some(next.await.expect("its turn"));
        })
        .await;
        let next = got.expect("its turn");
        assert!(next.fence() > fence && next.waited());
        assert_eq!(next.previous_fence(), Some(fence));
        next.release().await.expect("held");
        if found == counts(&[("Txn", 1)]) {
            return;
        }
    }
    panic!("more than one transaction: {found:?}");
}

pub(crate) async fn a_waiter_of_another_process_comes_in_its_turn() {
    let cluster = Cluster::start(1).await;
    let address = cluster.address(0);
    let locks = connect(&address).await;
    let guard = locks.lock("key").acquire().await.expect("free");
    let first = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    let mut between = Child::start("wait", &address, "key", secs(20));
    waiting(&locks, "key", 2).await;
    let last = waiter(&locks, "key");
    waiting(&locks, "key", 3).await;
    guard.release().await.expect("held");
    let first = first.await.expect("its turn");
    assert!(!between.has_spoken() && !last.is_finished());
    let fence = first.fence();
    first.release().await.expect("held");
    let theirs: u64 = between.hear("held").parse().expect("a fence");
    assert!(theirs > fence.get());
    assert!(!last.is_finished(), "out of turn");
    between.release();
    let last = last.await.expect("its turn");
    assert!(last.fence().get() > theirs);
    last.release().await.expect("held");
}

/// Remembers that it was woken, and does nothing.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A task that is not polled when its turn comes.
pub(crate) async fn what_a_sleeper_was_handed_goes_back() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let mut sleeper = Box::pin(locks.lock("key").ttl(secs(60)).wait(secs(60)).acquire());
    let answered = Arc::new(Woken::default());
    let waker = Waker::from(answered.clone());
    let mut look = || sleeper.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(look().is_pending());
    // Each answer lets it ask the next question when it looks. The one that comes when it stands in
    // line is the last: it takes its seat there, and sleeps on.
    let mut stands = false;
    while !stands {
        eventually("it was answered", async || answered.0.swap(false, Ordering::AcqRel)).await;
        stands = locks.inspect("key").await.expect("it answers").waiters.len() == 1;
        assert!(look().is_pending());
    }
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 2).await;
    let fence = guard.fence();
    guard.release().await.expect("held");
    let next = tokio::time::timeout(secs(20), next).await.expect("not after a ttl").expect("fine");
    assert!(next.fence().get() > fence.get() + 1, "the sleeper was handed it before");
    assert!(look().is_pending(), "two at once");
    let fence = next.fence();
    eventually("it stands in line again", async || {
        assert!(look().is_pending());
        locks.inspect("key").await.expect("it answers").waiters.len() == 1
    })
    .await;
    next.release().await.expect("held");
    eventually("its turn", async || match look() {
        Poll::Ready(got) => {
            assert!(got.expect("granted").fence() > fence);
            true
        }
        Poll::Pending => false,
    })
    .await;
}

/// Nobody holds and nobody waits, long before the ttl would see to it.
async fn is_free(locks: &Locks, key: &str) {
    eventually("it is free", async || {
        let seen = locks.inspect(key).await.expect("it answers");
        seen.holders.is_empty() && seen.waiters.is_empty()
    })
    .await;
}

pub(crate) async fn waiters_that_go_leave_nothing() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    for round in 0_u64..60 {
        let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
        let going: Vec<_> = (0..3)
            .map(|_| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let asked = locks.lock("key").ttl(secs(60)).wait(secs(60)).acquire();
                    asked.await.expect("its turn").release().await.expect("held");
                })
            })
            .collect();
        waiting(&locks, "key", 3).await;
        let released = tokio::spawn(async move { guard.release().await });
        // Somewhere between the question and the answer.
        tokio::time::sleep(std::time::Duration::from_micros(round * 40)).await;
        going.iter().for_each(tokio::task::JoinHandle::abort);
        released.await.expect("no panic").expect("held");
        is_free(&locks, "key").await;
    }
}

pub(crate) async fn the_end_of_a_runtime_leaves_nothing() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    for round in 0_u64..20 {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
        for task in 0..4 {
            let locks = locks.clone();
            runtime.spawn(async move {
                loop {
                    let key = format!("key-{}", task % 2);
                    let asked = locks.lock(key).ttl(secs(60)).wait(secs(60)).acquire();
                    asked.await.expect("its turn").release().await.expect("held");
                }
            });
        }
        tokio::time::sleep(millis(50) + std::time::Duration::from_micros(round * 130)).await;
        runtime.shutdown_background();
        is_free(&locks, "key-0").await;
        is_free(&locks, "key-1").await;
    }
}
