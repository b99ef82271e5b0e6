//! Processes that die, or stand still, while many of their tasks wait (L5).

use std::collections::HashSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::FutureExt;
use latchwork_lock::Locks;
use libtest_mimic::Trial;
use tokio::task::JoinHandle;

use crate::support::child::CROWD;
use crate::support::{
    Backend, Child, Part, SLACK, Signal, TestDatabase, connect, eventually, millis, secs, waiter,
    waiting,
};
use crate::trials;

/// How long a hand-off waits for its waiter to claim it.
const CLAIM_WINDOW: Duration = Duration::from_secs(2);

pub(crate) fn trials(backend: Backend) -> Vec<Trial> {
    let mut all = trials![backend;
        a_waiter_that_does_not_look_costs_others_of_its_process_no_place,
        dead_waiters_cost_one_claim_window_after_a_release,
        dead_waiters_cost_one_claim_window_after_an_expiry,
    ];
    if backend.keeps_places {
        all.extend(trials![backend; a_process_that_stood_still_keeps_the_places_of_its_waiters]);
    }
    all
}

async fn dead_waiters_cost_one_claim_window_after_a_release(test_database: TestDatabase) {
    let (locks, others) =
        (connect(&test_database.address).await, connect(&test_database.address).await);
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let own = guard.fence().get();
    let crowd = Child::start("crowd", &test_database.address, "key", secs(2));
    waiting(&locks, "key", CROWD).await;
    let waiters = [passer(&others), passer(&others)];
    waiting(&locks, "key", CROWD + 2).await;
    kill(crowd).await;
    guard.release().await.expect("held");
    one_window_for_all(&locks, waiters, &[own], Instant::now(), CLAIM_WINDOW).await;
}

async fn dead_waiters_cost_one_claim_window_after_an_expiry(test_database: TestDatabase) {
    let (locks, others) =
        (connect(&test_database.address).await, connect(&test_database.address).await);
    let ttl = secs(2).max(test_database.backend.unit * 2);
    let crowd = Part::new("holding crowd", &test_database.address, "key", ttl).start();
    let own = crowd.expect_line("held").parse().expect("a fence");
    let held = Instant::now();
    // The key may have ended before all of them stand in the queue, on a busy machine.
    eventually("many in the queue", async || {
        let seen = locks.inspect("key").await;
        seen.is_ok_and(|seen| seen.waiters.len() >= CROWD - 2)
    })
    .await;
    let waiters = [passer(&others), passer(&others)];
    eventually("both in the queue", async || {
        let seen = locks.inspect("key").await.expect("it answers");
        let ours = |process: &str| process.contains(&std::process::id().to_string());
        seen.waiters.iter().filter(|waiter| ours(&waiter.process)).count() == 2
    })
    .await;
    kill(crowd).await;
    one_window_for_all(&locks, waiters, &[own], held, ttl + CLAIM_WINDOW).await;
}

/// Asks for the key in a task, and gives it back at once; its fence.
fn passer(locks: &Locks) -> JoinHandle<u64> {
    let waiter = waiter(locks, "key");
    tokio::spawn(async {
        let guard = waiter.await.expect("no panic");
        let fence = guard.fence().get();
        guard.release().await.expect("held");
        fence
    })
}

/// Kills the process, and lets the server notice: what it had sent before may still be under way.
async fn kill(crowd: Child) {
    crowd.kill();
    tokio::time::sleep(millis(100)).await;
}

/// The waiters of a living process are let in after one reservation for the dead at most.
async fn one_window_for_all(
    locks: &Locks,
    waiters: [JoinHandle<u64>; 2],
    known: &[u64],
    since: Instant,
    limit: Duration,
) {
    let served = async {
        let mut fences = known.to_vec();
        for waiter in waiters {
            fences.push(waiter.await.expect("no panic"));
        }
        (fences, since.elapsed())
    };
    let mut served = pin!(served);
    let mut seen = HashSet::new();
    let (fences, took) = loop {
        let inspection = locks.inspect("key").await.expect("it answers");
        seen.extend(inspection.holders.iter().map(|holder| holder.fence.get()));
        if let Ok(done) = tokio::time::timeout(millis(20), &mut served).await {
            break done;
        }
    };
    seen.retain(|fence| !fences.contains(fence));
    println!("both let in after {took:?}, and {} reservations for the dead", seen.len());
    assert!(seen.len() <= 1, "{} reservations for the dead, in {took:?}", seen.len());
    let late = limit + locks.capabilities().granularity() + SLACK;
    assert!(took < late, "let in after {took:?}");
}

async fn a_waiter_that_does_not_look_costs_others_of_its_process_no_place(
    test_database: TestDatabase,
) {
    let (locks, ours) =
        (connect(&test_database.address).await, connect(&test_database.address).await);
    let theirs = connect(&test_database.address).await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let mut idle = Box::pin(ours.lock("key").wait(secs(60)).acquire());
    eventually("one in the queue", async || {
        assert!((&mut idle).now_or_never().is_none(), "it is held");
        locks.inspect("key").await.is_ok_and(|seen| seen.waiters.len() == 1)
    })
    .await;
    let second = waiter(&ours, "key");
    waiting(&locks, "key", 2).await;
    let third = waiter(&theirs, "key");
    waiting(&locks, "key", 3).await;
    guard.release().await.expect("held");
    // The first one's turn passes, since it is not polled; its process lives.
    let second = second.await.expect("no panic");
    let fence = second.fence();
    second.release().await.expect("held");
    let third = third.await.expect("no panic");
    assert!(third.fence() > fence, "in the order in which they came");
    third.release().await.expect("held");
    let first = idle.await.expect("its turn comes when it looks");
    first.release().await.expect("held");
}

async fn a_process_that_stood_still_keeps_the_places_of_its_waiters(test_database: TestDatabase) {
    let (locks, others) =
        (connect(&test_database.address).await, connect(&test_database.address).await);
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let crowd = Child::start("crowd", &test_database.address, "key", secs(30));
    waiting(&locks, "key", CROWD).await;
    crowd.signal(Signal::STOP);
    let passed_on = waiter(&others, "key");
    waiting(&locks, "key", CROWD + 1).await;
    let last = waiter(&others, "key");
    waiting(&locks, "key", CROWD + 2).await;
    guard.release().await.expect("held");
    let guard = passed_on.await.expect("no panic");
    crowd.signal(Signal::CONT);
    // All of them are there again: the one whose turn has passed has queued again, as the last.
    waiting(&locks, "key", CROWD + 1).await;
    guard.release().await.expect("held");
    let last = last.await.expect("no panic");
    let fence = last.fence().get();
    last.release().await.expect("held");
    let mut served: Vec<u64> =
        (0..CROWD).map(|_| crowd.expect_line("served").parse().expect("a fence")).collect();
    served.sort_unstable();
    let before = served.iter().filter(|served| **served < fence).count();
    assert_eq!(before, CROWD - 1, "all but the one whose turn has passed: {served:?}, {fence}");
}
