//! What happens to workers and to leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Holder, Result};
use rand::RngExt;
use rand::rngs::StdRng;

use super::children::Crew;
use super::stage::{Stage, process_of};
use crate::history::What;

/// Makes one fault after another until the run is over.
pub(super) fn make(
    stage: &Arc<Stage>,
    crew: &mut Crew<'_>,
    chance: &mut StdRng,
    runtime: &tokio::runtime::Runtime,
) {
    let unit = stage.part.torture.unit;
    let mut next = stage.now();
    let mut breaks = Vec::new();
    while !stage.is_over() {
        std::thread::sleep(Duration::from_millis(2));
        crew.go_on(stage.now());
        if stage.now() < next {
            continue;
        }
        next = stage.now().after(Duration::from_micros(chance.random_range(20_000..300_000)));
        let victim = chance.random_range(0..crew.len());
        match chance.random_range(0..10) {
            0..2 => crew.kill(victim),
            // The one with the most waiters in some queue, where there are any.
            2..4 => {
                let waiting = runtime.block_on(most_waiting(stage, chance.random_range(0..99)));
                crew.kill(waiting.and_then(|number| crew.place_of(number)).unwrap_or(victim));
            }
            // Past the longest ttl, or only past some. Half of them go on in any case.
            4..7 if crew.stopped() * 2 < crew.len() => {
                let span = unit.mul_f64(chance.random_range(0.5..4.0));
                crew.stop(victim, span, || runtime.block_on(is_stuck(stage)));
            }
            // Beside this loop: it may have to wait for one who is stopped, and only this loop
            // can tell that one to go on.
            _ => {
                let (stage, order) = (stage.clone(), Order::random(chance));
                breaks.push(runtime.spawn(async move { break_one(&stage, order).await }));
            }
        }
    }
    crew.go_on(Moment::NEVER);
    runtime.block_on(join_all(breaks)).into_iter().for_each(|ended| ended.expect("no panic"));
}

/// The part of it that needs no processes.
pub(super) async fn make_here(stage: &Stage, mut chance: StdRng) {
    while !stage.is_over() {
        let pause = Duration::from_micros(chance.random_range(5_000..100_000));
        tokio::time::sleep(pause).await;
        break_one(stage, Order::random(&mut chance)).await;
    }
}

/// What an administrator is told to do.
struct Order {
    key: usize,
    all: bool,
}

impl Order {
    fn random(chance: &mut StdRng) -> Self {
        Order { key: chance.random_range(0..usize::MAX), all: chance.random_bool(0.5) }
    }
}

/// An administrator ends all leases of a key, or the first that is seen.
async fn break_one(stage: &Stage, order: Order) {
    let key = &stage.keys[order.key % stage.keys.len()];
    let since = stage.now();
    let broken =
        if order.all { stage.locks.break_lock(key).await } else { break_seen(stage, key).await };
    match broken {
        Ok(holders) => {
            for holder in holders {
                let request = holder.note.and_then(|note| note.parse().ok()).unwrap_or(0);
                stage.record(key, request, What::Broken { fence: Some(holder.fence), since });
            }
        }
        Err(error) => {
            assert!(error.is_temporary(), "a break of {key:?}: {error}");
            stage.record(key, 0, What::Broken { fence: None, since });
        }
    }
}

async fn break_seen(stage: &Stage, key: &str) -> Result<Vec<Holder>> {
    let seen = stage.locks.inspect(key).await?;
    let Some(holder) = seen.holders.first() else { return Ok(Vec::new()) };
    let broken = stage.locks.break_lease(key, holder.fence).await?;
    Ok(broken.into_iter().collect())
}

/// The process with the most waiters for a key; none where nobody waits, or where the backend is held
/// up by one who is stopped.
async fn most_waiting(stage: &Stage, key: usize) -> Option<u32> {
    let key = &stage.keys[key % stage.keys.len()];
    let patience = stage.part.torture.unit / 4;
    let seen = tokio::time::timeout(patience, stage.locks.inspect(key)).await.ok()?.ok()?;
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for request in seen.waiters.iter().filter_map(|waiter| waiter.note.as_ref()?.parse().ok()) {
        *counts.entry(process_of(request)).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(number, _)| number)
}

/// Whether an edit waits for somebody, tried by one that changes nothing: no lease has fence 0.
/// Who stops in the middle of an edit may hold up all others, and what they are offered lapses.
async fn is_stuck(stage: &Stage) -> bool {
    let try_all = stage.keys.iter().map(|key| stage.locks.break_lease(key, Fence::new(0)));
    let patience = stage.part.torture.unit / 4;
    tokio::time::timeout(patience, join_all(try_all)).await.is_err()
}
