//! Guards that are dropped under load: their releases are bounded, and come soon (L21).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use latchwork_lock::{Locks, PageRequest};
use libtest_mimic::Trial;
use tokio::sync::mpsc::{Receiver, channel};

use crate::support::{Backend, TestDatabase, connect, secs};
use crate::trials;

/// How many take keys at the same time. Every third guard is dropped.
const TASKS: usize = 32;

/// How many releases may be pending before new requests wait.
const LIMIT: usize = 128;

/// How long a dropped key may stay taken on a busy machine. Where releases pile up, it is more and
/// more.
const SOON: Duration = Duration::from_secs(4);

pub(crate) fn trials(backend: Backend) -> Vec<Trial> {
    let mut all = trials![backend; keys_dropped_under_load_are_free_soon];
    // Each commit waits for the disk there, so that it shows in time. On PostgreSQL too many pending
    // releases show it.
    if backend.name == "mysql" {
        all.extend(trials![backend; guards_dropped_together_share_messages]);
    }
    all
}

/// Measured beside releases one after the other, so that it holds on a busy machine.
async fn guards_dropped_together_share_messages(test_database: TestDatabase) {
    const DROPPED: u32 = 600;
    const RELEASED: u32 = 60;
    let (locks, pending) = open(&test_database).await;
    let take = async |count: u32, what: &str| {
        let mut guards = Vec::new();
        for number in 0..count {
            let key = format!("{what}-{number}");
            guards.push(locks.lock(&key).ttl(secs(300)).acquire().await.expect("free"));
        }
        guards
    };
    let (dropped, released) = (take(DROPPED, "dropped").await, take(RELEASED, "released").await);
    let began = Instant::now();
    for guard in released {
        guard.release().await.expect("held");
    }
    let each = began.elapsed() / RELEASED;
    let began = Instant::now();
    drop(dropped);
    locks.close().await;
    let took = began.elapsed();
    println!("a release took {each:.1?}, {DROPPED} drops {took:.1?}");
    assert_eq!(pending(), 0, "all are done");
    assert!(took < each * (DROPPED / 3), "{DROPPED} drops took {took:?}, a release {each:?}");
    let seen = locks.list("dropped-", PageRequest::default()).await.expect("an answer");
    assert!(seen.keys.is_empty(), "{seen:?}");
}

async fn keys_dropped_under_load_are_free_soon(test_database: TestDatabase) {
    let seconds = std::env::var("LATCHWORK_DROPS_SECONDS").ok();
    let span = secs(seconds.map_or(5, |seconds| seconds.parse().expect("a number")));
    let (locks, pending) = open(&test_database).await;
    let (send, dropped) = channel(1);
    let probe = tokio::spawn(probe(connect(&test_database.address).await, dropped));
    let most = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, pending, most, send) =
                (locks.clone(), pending.clone(), most.clone(), send.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while began.elapsed() < span {
                    let key = format!("key-{task}-{count}");
                    let guard = locks.lock(&key).ttl(secs(60)).acquire().await.expect("free");
                    count += 1;
                    if count % 3 != 0 {
                        guard.release().await.expect("held");
                        continue;
                    }
                    drop(guard);
                    // One at a time is looked for.
                    let _ = send.try_send((key, Instant::now()));
                    most.fetch_max(pending(), Ordering::Relaxed);
                }
                count
            })
        })
        .collect();
    drop(send);
    let mut count = 0;
    for task in tasks {
        count += task.await.expect("no panic");
    }
    let took = began.elapsed();
    let flushing = Instant::now();
    locks.close().await;
    let (flushed, most) = (flushing.elapsed(), most.load(Ordering::Relaxed));
    let mut waits = probe.await.expect("no panic");
    waits.sort_unstable();
    let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!(
        "{count} keys in {took:.1?}, a third of them dropped; of {} dropped keys the median was \
         free after {median:.1?}, the last after {longest:.1?}; at most {most} releases pending, \
         flushed in {flushed:.1?}",
        waits.len()
    );
    assert!(most <= LIMIT + TASKS, "{most} releases were pending");
    assert!(longest < SOON, "a dropped key was free after {longest:?}");
    assert!(flushed < SOON, "flushed in {flushed:?}");
}

/// How long it took until each of the dropped keys was free for another client.
async fn probe(locks: Locks, mut dropped: Receiver<(String, Instant)>) -> Vec<Duration> {
    let mut waits = Vec::new();
    while let Some((key, since)) = dropped.recv().await {
        let guard = locks.lock(&key).wait(secs(60)).acquire().await.expect("free soon");
        waits.push(since.elapsed());
        guard.release().await.expect("held");
    }
    waits
}

/// Tells how many releases are pending.
type Pending = Arc<dyn Fn() -> usize + Send + Sync>;

/// Where a provider tells how many releases are pending.
async fn open(test_database: &TestDatabase) -> (Locks, Pending) {
    let address = &test_database.address;
    match test_database.backend.name {
        #[cfg(feature = "mysql")]
        "mysql" => {
            let provider = latchwork_lock::MySqlLockProvider::connect(address).await;
            let provider = provider.expect("the backend is there");
            (Locks::new(provider.clone()), Arc::new(move || provider.pending_releases()))
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgres_pgbouncer" => {
            let provider = latchwork_lock::PostgresLockProvider::connect(address).await;
            let provider = provider.expect("the backend is there");
            (Locks::new(provider.clone()), Arc::new(move || provider.pending_releases()))
        }
        _ => (connect(address).await, Arc::new(|| 0)),
    }
}
