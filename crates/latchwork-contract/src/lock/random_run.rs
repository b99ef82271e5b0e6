//! A random run over all of it, written down and checked.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::provider::Moment;
use latchwork_lock::{FenceGate, Guard, Locks, Mode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::case::case;
use super::fixture::FORCE;
use super::{Case, Fixture};
use crate::history::{History, Recorder, What, check};

pub(super) const CASES: &[Case] = &[case!(
    l01_a_random_history_is_sound,
    [Exclusion, Expiry, Tokens, Fairness, Shared, Wait, Renew, Inspect]
)
.real_time()];

/// What the tasks of a run share.
struct Run {
    recorder: Recorder<Vec<u8>>,
    gate: FenceGate,
    writes: std::sync::atomic::AtomicU64,
    keys: Vec<String>,
    ttl: Duration,
    /// How much longer everything takes than elsewhere.
    slowness: u32,
    end: Moment,
}

/// The run is repeated by the environment variable `LATCHWORK_SEED`; the schedule is not.
async fn l01_a_random_history_is_sound(f: Fixture) {
    let seed = match std::env::var("LATCHWORK_SEED") {
        Ok(seed) => seed.parse().expect("LATCHWORK_SEED is a number"),
        Err(_) => rand::random(),
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let run = Arc::new(Run {
        recorder: Recorder::new(Vec::new()),
        gate: FenceGate::new(),
        writes: std::sync::atomic::AtomicU64::new(0),
        keys: (0..3).map(|i| f.key(&format!("{i}"))).collect(),
        ttl: f.ttl() * 2,
        slowness: f.slowness(),
        // Some hold to the end of their ttl: there must be time for others.
        end: f.now().after(Duration::from_secs(3).max(f.ttl() * 8)),
    });
    let clients = [f.open().await, f.open().await, f.open().await];
    let workers: Vec<_> = (0..12)
        .map(|i| {
            let (run, locks) = (run.clone(), clients[i % 3].clone());
            let rng = StdRng::seed_from_u64(rng.random());
            tokio::spawn(async move { work(&run, &locks, rng).await })
        })
        .collect();
    let watcher = {
        let (run, locks) = (run.clone(), f.open().await);
        tokio::spawn(async move { watch(&run, &locks).await })
    };
    for task in join_all(workers).await {
        task.expect("no panic");
    }
    watcher.await.expect("no panic");
    let lines = Arc::into_inner(run).expect("all tasks have ended").recorder.into_inner();
    let history = History::read([lines.as_slice()]).expect("what was written can be read");
    let grants = history.events().iter().filter(|e| matches!(e.what, What::Granted { .. })).count();
    let waits = history.events().iter().filter(|e| matches!(e.what, What::Queued { .. })).count();
    assert!(grants > 10 && waits > 3, "seed {seed}: {grants} grants and {waits} waits say little");
    let found: Vec<_> = check(&history).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "seed {seed}:\n{}", found.join("\n"));
}

/// Asks, holds, and ends in one of the ways in which holders end.
async fn work(run: &Run, locks: &Locks, mut rng: StdRng) {
    while locks.clock().now() < run.end {
        let request: u64 = rng.random();
        let key = &run.keys[rng.random_range(0..run.keys.len())];
        let mode = if rng.random_bool(0.4) { Mode::Shared } else { Mode::Exclusive };
        let wait = Duration::from_millis(rng.random_range(1..400)) * run.slowness;
        // Some are given up midway.
        let patience = Duration::from_millis(rng.random_range(50..1_000)) * run.slowness;
        let record = |what| run.recorder.record(key, request, what).expect("in memory");
        record(What::Asked { mode, until: locks.clock().now().after(wait.min(patience)) });
        let asking = locks.lock(key).mode(mode).note(format!("{request}")).ttl(run.ttl).wait(wait);
        let asking = asking.try_acquire();
        let Ok(answer) = tokio::time::timeout(patience, asking).await else {
            record(What::GaveUp);
            continue;
        };
        let Some(guard) = answer.expect("it answers") else {
            record(What::GaveUp);
            continue;
        };
        let until = locks.clock().now().after(guard.remaining());
        record(What::Granted { fence: guard.fence(), until });
        hold(run, locks, key, request, guard, &mut rng).await;
    }
}

async fn hold(run: &Run, locks: &Locks, key: &str, request: u64, guard: Guard, rng: &mut StdRng) {
    let record = |what| run.recorder.record(key, request, what).expect("in memory");
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..8))).await;
    if guard.mode() == Mode::Exclusive {
        let fence = guard.fence();
        // The place is taken inside the gate: it is the order of the writes themselves.
        let place = || run.writes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if let Ok(place) = run.gate.write(key, fence, place) {
            record(What::Written { fence, place });
        }
    }
    match rng.random_range(0..20) {
        // Stopped past its end, and then it goes on as if nothing had happened.
        0 => {
            guard.lost().await;
            record(What::Expired);
            let fence = guard.fence();
            let place = || run.writes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            if guard.mode() == Mode::Exclusive
                && let Ok(place) = run.gate.write(key, fence, place)
            {
                record(What::Written { fence, place });
            }
            let _ = guard.release().await;
        }
        1..5 => {
            if guard.refresh_with(FORCE).await.is_ok() {
                record(What::Renewed { until: locks.clock().now().after(guard.remaining()) });
            }
            record(What::Releasing);
            let _ = guard.release().await;
        }
        5..8 => {
            record(What::Releasing);
            drop(guard);
        }
        _ => {
            record(What::Releasing);
            let _ = guard.release().await;
        }
    }
}

/// Sees who stands in which queue.
async fn watch(run: &Run, locks: &Locks) {
    while locks.clock().now() < run.end {
        for key in &run.keys {
            for waiter in locks.inspect(key).await.expect("it answers").waiters {
                let request = waiter.note.and_then(|note| note.parse().ok()).expect("its note");
                let position = waiter.position;
                run.recorder.record(key, request, What::Queued { position }).expect("in memory");
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
