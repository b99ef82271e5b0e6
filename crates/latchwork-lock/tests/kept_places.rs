//! A place in a queue that belongs to its token and not to a call or a process: over SQLite and
//! PostgreSQL.
#![allow(clippy::print_stdout, reason = "test support prints what it skips")]
#![allow(clippy::expect_used, clippy::panic, reason = "the helpers of a test fail it")]

mod support;

use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, Acquired, AnyLockProvider, Grant, LockProvider};
use latchwork_lock::provider::{Proof, Wait};
use latchwork_lock::{Fence, Key, Locks};
use libtest_mimic::{Arguments, Trial};
use support::backend::{TestDatabase, all};
use support::{eventually, millis, secs};

fn main() {
    let mut trials: Vec<Trial> = Vec::new();
    for backend in all() {
        if backend.name != "sqlite" && backend.name != "postgres" {
            continue;
        }
        macro_rules! tests {
            ($($name:ident),* $(,)?) => {$(
                trials.push(backend.trial(stringify!($name), $name));
            )*};
        }
        tests![
            a_place_outlives_its_call,
            a_place_moves_to_another_process,
            a_dropped_call_releases_nothing,
            a_grant_is_found_by_the_next_call,
            a_place_is_kept_although_its_process_has_been_silent,
            a_place_that_nobody_comes_back_for_is_given_up,
            a_call_elsewhere_is_not_disturbed_by_the_old_one,
            the_gate_of_the_backend_refuses_older_fences,
        ];
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// A process of its own, as far as the backend can tell.
async fn client(test_database: &TestDatabase) -> AnyLockProvider {
    let locks = Locks::connect(&test_database.address).await.expect("a backend");
    assert!(locks.capabilities().keeps_places());
    locks.any_provider()
}

/// Waits for a turn; a grant lasts two seconds unless it is renewed.
fn turn(provider: &AnyLockProvider, key: &Key, wait: Duration) -> AcquireRequest {
    AcquireRequest::new(key.clone(), secs(2), provider.clock().now())
        .with_wait(Wait::For(wait))
        .with_keep(secs(10))
}

fn key() -> Key {
    Key::new("kept/a").expect("legal")
}

async fn hold(provider: &AnyLockProvider, key: &Key) -> AcquireRequest {
    let request = AcquireRequest::new(key.clone(), secs(30), provider.clock().now());
    granted(provider.acquire(&request).await.expect("it answers"));
    request
}

#[track_caller]
fn granted(answer: Acquired) -> Grant {
    match answer {
        Acquired::Granted(grant) => grant,
        Acquired::Taken(_) => panic!("it is taken"),
    }
}

async fn is_waiting(provider: &AnyLockProvider, request: &AcquireRequest, place: usize) {
    let answer = provider.acquire(request).await.expect("it answers");
    assert!(matches!(answer, Acquired::Taken(_)), "its turn has not come");
    let found = provider.inspect(&request.key).await.expect("it answers");
    assert!(found.waiters.len() >= place, "{found:?}");
}

async fn release(provider: &AnyLockProvider, request: &AcquireRequest) {
    let proof = Proof { key: &request.key, token: request.token };
    assert!(provider.release(proof).await.expect("it answers"), "it was held");
}

async fn a_place_outlives_its_call(test_database: TestDatabase) {
    let (one, other, key) = (client(&test_database).await, client(&test_database).await, key());
    let held = hold(&one, &key).await;
    let first = turn(&one, &key, millis(50));
    is_waiting(&one, &first, 1).await;
    let second = turn(&other, &key, millis(50));
    is_waiting(&other, &second, 2).await;
    // The first comes back, and is still before the second.
    let mut again = first.clone();
    again.wait = Wait::For(secs(20));
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.acquire(&again).await }
    });
    release(&one, &held).await;
    let grant = granted(waiting.await.expect("no panic").expect("it answers"));
    assert_eq!(one.inspect(&key).await.expect("it answers").waiters.len(), 1);
    // A claim lets it last.
    let proof = Proof { key: &key, token: first.token };
    assert!(one.renew(proof, secs(30)).await.expect("it answers"));
    release(&one, &first).await;
    let mut again = second.clone();
    again.wait = Wait::For(secs(20));
    let next = granted(other.acquire(&again).await.expect("it answers"));
    assert!(next.fence > grant.fence);
}

async fn a_place_moves_to_another_process(test_database: TestDatabase) {
    let (one, other, key) = (client(&test_database).await, client(&test_database).await, key());
    let held = hold(&one, &key).await;
    let first = turn(&one, &key, millis(50));
    is_waiting(&one, &first, 1).await;
    let second = turn(&one, &key, millis(50));
    is_waiting(&one, &second, 2).await;
    // From now on the other process waits for both, in the same order.
    let mut tasks = Vec::new();
    for request in [&first, &second] {
        let (other, mut request) = (other.clone(), request.clone());
        request.wait = Wait::For(secs(20));
        tasks.push(tokio::spawn(async move {
            let grant = granted(other.acquire(&request).await.expect("it answers"));
            release(&other, &request).await;
            grant.fence
        }));
    }
    assert_eq!(one.inspect(&key).await.expect("it answers").waiters.len(), 2);
    release(&one, &held).await;
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.expect("no panic"));
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    assert!(one.inspect(&key).await.expect("it answers").waiters.is_empty());
}

async fn a_dropped_call_releases_nothing(test_database: TestDatabase) {
    let (one, key) = (client(&test_database).await, key());
    let held = hold(&one, &key).await;
    let first = turn(&one, &key, secs(20));
    let waiting = tokio::spawn({
        let (one, first) = (one.clone(), first.clone());
        async move { one.acquire(&first).await }
    });
    eventually("it waits", async || {
        one.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    one.close().await;
    assert_eq!(one.inspect(&key).await.expect("it answers").waiters.len(), 1, "the place is kept");
    // A request that does not wait is not released with its call either.
    let mut again = held.clone();
    again.keep = secs(1);
    for _ in 0..20 {
        let (one, again) = (one.clone(), again.clone());
        let asked = tokio::spawn(async move { one.acquire(&again).await });
        tokio::task::yield_now().await;
        asked.abort();
    }
    one.close().await;
    release(&one, &held).await;
}

async fn a_grant_is_found_by_the_next_call(test_database: TestDatabase) {
    let (one, other, key) = (client(&test_database).await, client(&test_database).await, key());
    let held = hold(&one, &key).await;
    let first = turn(&one, &key, millis(50));
    is_waiting(&one, &first, 1).await;
    // Its turn comes while nobody waits for it; the next call finds it, in another process.
    release(&one, &held).await;
    let mut again = first.clone();
    again.wait = Wait::For(Duration::ZERO);
    granted(other.acquire(&again).await.expect("it answers"));
    let proof = Proof { key: &key, token: first.token };
    assert!(other.renew(proof, secs(30)).await.expect("it answers"), "it can be claimed");
    let found = one.inspect(&key).await.expect("it answers");
    assert!(found.holders[0].expires_in > secs(20), "{found:?}");
}

async fn a_place_is_kept_although_its_process_has_been_silent(test_database: TestDatabase) {
    let (one, other, key) = (client(&test_database).await, client(&test_database).await, key());
    let held = hold(&other, &key).await;
    // A process that waits for nothing else says nothing more after this.
    let first = turn(&one, &key, millis(50));
    is_waiting(&one, &first, 1).await;
    let (second, again) = (turn(&other, &key, secs(30)), turn(&other, &key, secs(30)));
    let mut again = again;
    again.token = first.token;
    let wait = |request: AcquireRequest| {
        let other = other.clone();
        tokio::spawn(async move {
            let grant = granted(other.acquire(&request).await.expect("it answers"));
            release(&other, &request).await;
            grant.fence
        })
    };
    let second = wait(second);
    // Longer than it is believed to be alive, shorter than its place is kept.
    tokio::time::sleep(millis(9_000)).await;
    let first = wait(again);
    tokio::time::sleep(millis(500)).await;
    release(&other, &held).await;
    let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
    assert!(first < second, "{first} was queued before {second}");
}

async fn a_place_that_nobody_comes_back_for_is_given_up(test_database: TestDatabase) {
    let (one, key) = (client(&test_database).await, key());
    let held = hold(&one, &key).await;
    let gone = turn(&one, &key, millis(50)).with_keep(millis(300));
    is_waiting(&one, &gone, 1).await;
    eventually("it is given up", async || {
        one.inspect(&key).await.expect("it answers").waiters.is_empty()
    })
    .await;
    release(&one, &held).await;
    let next = AcquireRequest::new(key.clone(), secs(30), one.clock().now());
    granted(one.acquire(&next).await.expect("it answers"));
}

async fn a_call_elsewhere_is_not_disturbed_by_the_old_one(test_database: TestDatabase) {
    let (one, other, key) = (client(&test_database).await, client(&test_database).await, key());
    let held = hold(&one, &key).await;
    // The old call still waits when the new one comes: its connection is only half cut.
    let first = turn(&one, &key, secs(3));
    let old = tokio::spawn({
        let (one, first) = (one.clone(), first.clone());
        async move { one.acquire(&first).await }
    });
    eventually("it waits", async || {
        one.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    let second = turn(&other, &key, millis(50));
    is_waiting(&other, &second, 2).await;
    let mut again = first.clone();
    again.wait = Wait::For(secs(20));
    let new = tokio::spawn({
        let other = other.clone();
        async move { other.acquire(&again).await }
    });
    // The old one ends by itself, and takes nothing with it.
    let ended = old.await.expect("no panic").expect("it answers");
    assert!(matches!(ended, Acquired::Taken(_)));
    assert_eq!(one.inspect(&key).await.expect("it answers").waiters.len(), 2);
    release(&one, &held).await;
    granted(new.await.expect("no panic").expect("it answers"));
}

async fn the_gate_of_the_backend_refuses_older_fences(test_database: TestDatabase) {
    let one = Locks::connect(&test_database.address).await.expect("a backend");
    let other = Locks::connect(&test_database.address).await.expect("a backend");
    let check = async |locks: &Locks, fence| {
        locks.check_fence("order:1", Fence::new(fence)).await.expect("it answers")
    };
    assert!(check(&one, 7).await.is_ok() && check(&other, 7).await.is_ok());
    assert!(check(&other, 9).await.is_ok());
    let stale = check(&one, 8).await.expect_err("an older one");
    assert_eq!((stale.newest, stale.fence), (Fence::new(9), Fence::new(8)));
    assert_eq!(one.check_fence("", Fence::new(1)).await.expect_err("empty").code(), "invalid_key");
    let over = one.check_fence("a", Fence::new(u64::MAX)).await.expect_err("too high");
    assert_eq!(over.code(), "invalid_argument");
}
