//! A release that begins the next lease of the same process: what it costs, and what is left of
//! waiters that sleep, go, or end with their runtime.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::provider::{Moment, Sleep};
use latchwork_lock::{Clock, EtcdLockProvider, Locks, SystemClock};

use crate::cluster::Cluster;
use crate::support::{self, Child, connect, eventually, millis, secs, waiter, waiting};
use crate::trips::{counts, during};

pub(crate) async fn a_release_begins_the_next_lease() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    // A round that runs into the next second needs a new server lease, or meets the poll of every two
    // seconds: it is repeated.
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
    let theirs: u64 = between.expect_line("held").parse().expect("a fence");
    assert!(theirs > fence.get());
    assert!(!last.is_finished(), "out of turn");
    between.release();
    let last = last.await.expect("its turn");
    assert!(last.fence().get() > theirs);
    last.release().await.expect("held");
}

/// The machine's clock, in a process that is stopped right after it has looked at it.
struct Pausing {
    /// How many looks from now; zero never.
    at: AtomicUsize,
}

/// Of a ttl of two seconds: longer than it takes until trust that counts from its end outlives the
/// server's lease, shorter than what is left of that lease.
const PAUSE: Duration = Duration::from_millis(1_900);

impl Clock for Pausing {
    fn now(&self) -> Moment {
        let now = SystemClock.now();
        // What the provider's own thread does would be counted in no order.
        let name = std::thread::current().name().map(str::to_owned);
        if !name.is_some_and(|name| name.starts_with("latchwork")) {
            let counted =
                self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |at| at.checked_sub(1));
            if counted == Ok(1) {
                std::thread::sleep(PAUSE);
            }
        }
        now
    }

    fn wall(&self) -> DateTime<Utc> {
        SystemClock.wall()
    }

    fn sleep_until(&self, until: Moment) -> Sleep {
        SystemClock.sleep_until(until)
    }
}

/// A release hands the key on while its process is stopped after each of its looks at the clock in
/// turn: when the server gives the key to another process, the one it was handed to knows its loss.
pub(crate) async fn a_process_that_pauses_does_not_trust_too_long() {
    let cluster = Cluster::start(1).await;
    let paused_at = |look: usize| {
        let address = cluster.address(0);
        // On a runtime of its own, since it is stopped.
        std::thread::spawn(move || support::block_on(pause_at(look, &address)))
    };
    let all: Vec<_> = (1..=6).map(paused_at).collect();
    for (look, paused) in all.into_iter().enumerate() {
        let ended = tokio::task::spawn_blocking(move || paused.join()).await.expect("it ran");
        assert!(ended.is_ok(), "stopped after look {}", look + 1);
    }
}

async fn pause_at(look: usize, address: &str) {
    let clock = Arc::new(Pausing { at: AtomicUsize::new(0) });
    let provider = EtcdLockProvider::connect_with_clock(address, clock.clone()).await;
    let locks = Locks::new(provider.expect("it is there"));
    let ask = |locks: &Locks| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock("key").ttl(secs(2)).wait(secs(60)).acquire().await })
    };
    let began = SystemClock.now();
    let guard = ask(&locks).await.expect("it ran").expect("free");
    let next = ask(&locks);
    waiting(&locks, "key", 1).await;
    let elsewhere = ask(&connect(address).await);
    waiting(&locks, "key", 2).await;
    // Late in the time for which the server's lease of the first serves for others, too.
    SystemClock.sleep_until(began.after(millis(700))).await;
    clock.at.store(look, Ordering::Release);
    let _ = guard.release().await; // a slow machine may have lost it meanwhile
    clock.at.store(0, Ordering::Release);
    let next = next.await.expect("it ran").expect("its turn");
    let elsewhere = elsewhere.await.expect("it ran").expect("its turn");
    // One that was stopped before it took up what it was handed stands in line again.
    let first = if next.fence() < elsewhere.fence() { next } else { elsewhere };
    assert!(!first.is_held(), "two at once");
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
