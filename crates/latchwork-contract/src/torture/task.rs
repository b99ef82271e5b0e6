//! One task: it asks, and what it gets it holds for a while.

use std::io::Write;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::{Error, GuardSet, Held, Mode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::drops::drop_many;
use super::hold::hold;
use super::process_context::ProcessContext;
use crate::history::What;

/// Goes on until the run is over.
pub(super) async fn work(context: &ProcessContext, mut chance: StdRng) {
    while !context.is_over() {
        match chance.random_range(0..40) {
            0 | 1 => request_several(context, &mut chance).await,
            2..6 => resume(context, &mut chance).await,
            6 => crowd(context, &mut chance).await,
            7 => drop_many(context, &mut chance).await,
            _ => request_any(context, &mut chance).await,
        }
    }
}

async fn request_any(context: &ProcessContext, chance: &mut StdRng) {
    let key = &context.keys[chance.random_range(0..context.keys.len())];
    request_one(context, key, chance).await;
}

/// Many requests of one process for one key at once, so that a kill leaves many dead waiters.
async fn crowd(context: &ProcessContext, chance: &mut StdRng) {
    let key = &context.keys[chance.random_range(0..context.keys.len())];
    let each = (0..chance.random_range(4..12)).map(|_| {
        let mut chance = StdRng::from_rng(chance);
        async move { request_one(context, key, &mut chance).await }
    });
    join_all(each.collect::<Vec<_>>()).await;
}

/// Asks for one key, and sometimes drops the question before it is answered.
async fn request_one(context: &ProcessContext, key: &str, chance: &mut StdRng) {
    let request = context.request();
    let mode = if chance.random_bool(0.35) { Mode::Shared } else { Mode::Exclusive };
    let (wait, dropped) = (patience(context, chance), chance.random_bool(0.15));
    let patience = if dropped {
        Duration::from_micros(chance.random_range(0..100_000))
    } else {
        Duration::MAX
    };
    let asking = context.locks.lock(key).mode(mode).ttl(ttl(context, chance));
    let asking = asking.wait(wait).note(format!("{request}"));
    let asking = match chance.random_range(0..6) {
        // Renewed behind its back, for longer than some are held.
        0 => asking.auto_renew(context.assignment.torture.unit * 2),
        _ => asking,
    };
    let until = context.now().after(wait.min(patience));
    context.record(key, request, What::Asked { mode, until });
    match tokio::time::timeout(patience, asking.try_acquire()).await {
        Ok(Ok(Some(guard))) => {
            granted(context, request, &guard);
            hold(context, request, guard, chance).await;
        }
        Ok(Ok(None)) | Err(_) => context.record(key, request, What::GaveUp),
        Ok(Err(error)) => failed(context, key, request, &error),
    }
}

/// Asks for two or three keys at once. Without a note: it stands in one queue after another, and
/// leaves the first when it is tired of the last, so its place says nothing.
async fn request_several(context: &ProcessContext, chance: &mut StdRng) {
    let request = context.request();
    let mut keys: Vec<&String> =
        (0..3).map(|_| &context.keys[chance.random_range(0..context.keys.len())]).collect();
    keys.sort_unstable();
    keys.dedup();
    let wait = patience(context, chance);
    let until = context.now().after(wait);
    for key in &keys {
        context.record(key, request, What::Asked { mode: Mode::Exclusive, until });
    }
    let asking = context.locks.lock_all(&keys).ttl(ttl(context, chance)).wait(wait);
    match asking.try_acquire().await {
        Ok(Some(set)) => hold_several(context, request, set, chance).await,
        Ok(None) => keys.iter().for_each(|key| context.record(key, request, What::GaveUp)),
        // One was broken while another was waited for.
        Err(error) if error.is_loss() => {
            keys.iter().for_each(|key| context.record(key, request, What::GaveUp));
        }
        Err(error) => keys.iter().for_each(|key| failed(context, key, request, &error)),
    }
}

async fn hold_several(context: &ProcessContext, request: u64, set: GuardSet, chance: &mut StdRng) {
    set.iter().for_each(|held| granted(context, request, held));
    tokio::time::sleep(Duration::from_millis(chance.random_range(0..10))).await;
    set.iter().for_each(|held| context.record(held.key(), request, What::Releasing));
    match set.release().await {
        Err(error) if !error.is_loss() => assert!(error.is_temporary(), "{error}"),
        _ => {}
    }
}

/// Goes on with a lease that another left.
async fn resume(context: &ProcessContext, chance: &mut StdRng) {
    let take = chance.random_bool(0.8);
    let Some(stored) = context.mailbox.get(take).expect("leases can be read") else {
        return request_any(context, chance).await;
    };
    let (request, first, key) = (context.request(), stored.request, stored.lease.key.clone());
    let what = What::Resuming { from: first, mode: stored.lease.mode };
    context.record(&key, request, what);
    match context.locks.resume(stored.lease).await {
        Ok(guard) => {
            granted(context, request, &guard);
            hold(context, request, guard, chance).await;
        }
        Err(error) if error.is_loss() => {
            context.record(&key, request, What::Lost);
            context.mailbox.discard(first);
        }
        Err(error) => failed(context, &key, request, &error),
    }
}

fn granted(context: &ProcessContext, request: u64, held: &Held) {
    // The time first: a task that is stopped between the two trusts for too short, not for too long.
    let until = context.now().after(held.remaining());
    context.record(held.key(), request, What::Granted { fence: held.fence(), until });
}

/// An outage is no fault of the locks; anything else is.
fn failed(context: &ProcessContext, key: &str, request: u64, error: &Error) {
    assert!(error.is_temporary(), "request {request:x} for {key:?}: {error}");
    // Of a worker that is a file beside its history.
    let _ = writeln!(std::io::stderr(), "request {request:x} for {key:?}: {error}");
    context.record(key, request, What::Failed);
}

/// None, a short one or a long one.
fn patience(context: &ProcessContext, chance: &mut StdRng) -> Duration {
    match chance.random_range(0..10) {
        0 => Duration::ZERO,
        1..6 => Duration::from_millis(chance.random_range(1..150)),
        _ => context.assignment.torture.longest_wait().mul_f64(chance.random_range(0.2..1.0)),
    }
}

fn ttl(context: &ProcessContext, chance: &mut StdRng) -> Duration {
    context.assignment.torture.unit.mul_f64(chance.random_range(1.0..3.0))
}
