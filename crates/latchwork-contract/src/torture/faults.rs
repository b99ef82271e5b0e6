//! What happens to workers and to leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Holder, Result};
use rand::RngExt;
use rand::rngs::StdRng;

use super::process_context::{ProcessContext, process_of};
use super::workers::Workers;
use crate::history::What;

/// Makes one fault after another until the run is over.
pub(super) fn make(
    context: &Arc<ProcessContext>,
    workers: &mut Workers<'_>,
    chance: &mut StdRng,
    runtime: &tokio::runtime::Runtime,
) {
    let unit = context.assignment.torture.unit;
    let mut next = context.now();
    let mut breaks = Vec::new();
    while !context.is_over() {
        std::thread::sleep(Duration::from_millis(2));
        workers.resume_due(context.now());
        if context.now() < next {
            continue;
        }
        next = context.now().after(Duration::from_micros(chance.random_range(20_000..300_000)));
        let victim = chance.random_range(0..workers.len());
        match chance.random_range(0..10) {
            0..2 => workers.kill(victim),
            // The one with the most waiters in some queue, where there are any.
            2..4 => {
                let waiting = runtime.block_on(most_waiting(context, chance.random_range(0..99)));
                workers.kill(waiting.and_then(|number| workers.index_of(number)).unwrap_or(victim));
            }
            // Past the longest ttl, or only past some. Half of them go on in any case.
            4..7 if workers.stopped() * 2 < workers.len() => {
                let span = unit.mul_f64(chance.random_range(0.5..4.0));
                workers.stop(victim, span, || runtime.block_on(is_stuck(context)));
            }
            // Beside this loop: it may have to wait for one who is stopped, and only this loop
            // can tell that one to go on.
            _ => {
                let (context, order) = (context.clone(), Order::random(chance));
                breaks.push(runtime.spawn(async move { break_one(&context, order).await }));
            }
        }
    }
    workers.resume_due(Moment::NEVER);
    runtime.block_on(join_all(breaks)).into_iter().for_each(|ended| ended.expect("no panic"));
}

/// The part of it that needs no processes.
pub(super) async fn make_here(context: &ProcessContext, mut chance: StdRng) {
    while !context.is_over() {
        let pause = Duration::from_micros(chance.random_range(5_000..100_000));
        tokio::time::sleep(pause).await;
        break_one(context, Order::random(&mut chance)).await;
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
async fn break_one(context: &ProcessContext, order: Order) {
    let key = &context.keys[order.key % context.keys.len()];
    let since = context.now();
    let broken = if order.all {
        context.locks.break_lock(key).await
    } else {
        break_seen(context, key).await
    };
    match broken {
        Ok(holders) => {
            for holder in holders {
                let request = holder.note.and_then(|note| note.parse().ok()).unwrap_or(0);
                context.record(key, request, What::Broken { fence: Some(holder.fence), since });
            }
        }
        Err(error) => {
            assert!(error.is_temporary(), "a break of {key:?}: {error}");
            context.record(key, 0, What::Broken { fence: None, since });
        }
    }
}

async fn break_seen(context: &ProcessContext, key: &str) -> Result<Vec<Holder>> {
    let seen = context.locks.inspect(key).await?;
    let Some(holder) = seen.holders.first() else { return Ok(Vec::new()) };
    let broken = context.locks.break_lease(key, holder.fence).await?;
    Ok(broken.into_iter().collect())
}

/// The process with the most waiters for a key; none where nobody waits, or where the backend is held
/// up by one who is stopped.
async fn most_waiting(context: &ProcessContext, key: usize) -> Option<u32> {
    let key = &context.keys[key % context.keys.len()];
    let patience = context.assignment.torture.unit / 4;
    let seen = tokio::time::timeout(patience, context.locks.inspect(key)).await.ok()?.ok()?;
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for request in seen.waiters.iter().filter_map(|waiter| waiter.note.as_ref()?.parse().ok()) {
        *counts.entry(process_of(request)).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(number, _)| number)
}

/// Whether an edit waits for somebody, tried by one that changes nothing: no lease has fence 0.
/// Who stops in the middle of an edit may hold up all others, and what they are offered lapses.
async fn is_stuck(context: &ProcessContext) -> bool {
    let try_all = context.keys.iter().map(|key| context.locks.break_lease(key, Fence::new(0)));
    let patience = context.assignment.torture.unit / 4;
    tokio::time::timeout(patience, join_all(try_all)).await.is_err()
}
