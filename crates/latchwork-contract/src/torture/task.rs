//! One task: it asks, and what it gets it holds for a while.

use std::io::Write;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::{Error, GuardSet, Held, Mode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::drops::drop_many;
use super::hold::hold;
use super::stage::Stage;
use crate::history::What;

/// Goes on until the run is over.
pub(super) async fn work(stage: &Stage, mut chance: StdRng) {
    while !stage.is_over() {
        match chance.random_range(0..40) {
            0 | 1 => ask_for_several(stage, &mut chance).await,
            2..6 => resume(stage, &mut chance).await,
            6 => crowd(stage, &mut chance).await,
            7 => drop_many(stage, &mut chance).await,
            _ => ask_for_any(stage, &mut chance).await,
        }
    }
}

async fn ask_for_any(stage: &Stage, chance: &mut StdRng) {
    let key = &stage.keys[chance.random_range(0..stage.keys.len())];
    ask(stage, key, chance).await;
}

/// Many requests of one process for one key at once, so that a kill leaves many dead waiters.
async fn crowd(stage: &Stage, chance: &mut StdRng) {
    let key = &stage.keys[chance.random_range(0..stage.keys.len())];
    let each = (0..chance.random_range(4..12)).map(|_| {
        let mut chance = StdRng::from_rng(chance);
        async move { ask(stage, key, &mut chance).await }
    });
    join_all(each.collect::<Vec<_>>()).await;
}

/// Asks for one key, and sometimes drops the question before it is answered.
async fn ask(stage: &Stage, key: &str, chance: &mut StdRng) {
    let request = stage.request();
    let mode = if chance.random_bool(0.35) { Mode::Shared } else { Mode::Exclusive };
    let (wait, dropped) = (patience(stage, chance), chance.random_bool(0.15));
    let patience = if dropped {
        Duration::from_micros(chance.random_range(0..100_000))
    } else {
        Duration::MAX
    };
    let asking = stage.locks.lock(key).mode(mode).ttl(ttl(stage, chance));
    let asking = asking.wait(wait).note(format!("{request}"));
    let asking = match chance.random_range(0..6) {
        // Renewed behind its back, for longer than some are held.
        0 => asking.auto_renew(stage.part.torture.unit * 2),
        _ => asking,
    };
    let until = stage.now().after(wait.min(patience));
    stage.record(key, request, What::Asked { mode, until });
    match tokio::time::timeout(patience, asking.try_acquire()).await {
        Ok(Ok(Some(guard))) => {
            granted(stage, request, &guard);
            hold(stage, request, guard, chance).await;
        }
        Ok(Ok(None)) | Err(_) => stage.record(key, request, What::GaveUp),
        Ok(Err(error)) => failed(stage, key, request, &error),
    }
}

/// Asks for two or three keys at once. Without a note: it stands in one queue after another, and
/// leaves the first when it is tired of the last, so its place says nothing.
async fn ask_for_several(stage: &Stage, chance: &mut StdRng) {
    let request = stage.request();
    let mut keys: Vec<&String> =
        (0..3).map(|_| &stage.keys[chance.random_range(0..stage.keys.len())]).collect();
    keys.sort_unstable();
    keys.dedup();
    let wait = patience(stage, chance);
    let until = stage.now().after(wait);
    for key in &keys {
        stage.record(key, request, What::Asked { mode: Mode::Exclusive, until });
    }
    let asking = stage.locks.lock_all(&keys).ttl(ttl(stage, chance)).wait(wait);
    match asking.try_acquire().await {
        Ok(Some(set)) => hold_several(stage, request, set, chance).await,
        Ok(None) => keys.iter().for_each(|key| stage.record(key, request, What::GaveUp)),
        // One was broken while another was waited for.
        Err(error) if error.is_loss() => {
            keys.iter().for_each(|key| stage.record(key, request, What::GaveUp));
        }
        Err(error) => keys.iter().for_each(|key| failed(stage, key, request, &error)),
    }
}

async fn hold_several(stage: &Stage, request: u64, set: GuardSet, chance: &mut StdRng) {
    set.iter().for_each(|held| granted(stage, request, held));
    tokio::time::sleep(Duration::from_millis(chance.random_range(0..10))).await;
    set.iter().for_each(|held| stage.record(held.key(), request, What::Releasing));
    match set.release().await {
        Err(error) if !error.is_loss() => assert!(error.is_temporary(), "{error}"),
        _ => {}
    }
}

/// Goes on with a lease that another left.
async fn resume(stage: &Stage, chance: &mut StdRng) {
    let take = chance.random_bool(0.8);
    let Some(letter) = stage.mailbox.get(take).expect("leases can be read") else {
        return ask_for_any(stage, chance).await;
    };
    let (request, first, key) = (stage.request(), letter.request, letter.lease.key.clone());
    let what = What::Resuming { from: first, mode: letter.lease.mode };
    stage.record(&key, request, what);
    match stage.locks.resume(letter.lease).await {
        Ok(guard) => {
            granted(stage, request, &guard);
            hold(stage, request, guard, chance).await;
        }
        Err(error) if error.is_loss() => {
            stage.record(&key, request, What::Lost);
            stage.mailbox.discard(first);
        }
        Err(error) => failed(stage, &key, request, &error),
    }
}

fn granted(stage: &Stage, request: u64, held: &Held) {
    // The time first: whoever is stopped between the two trusts for too short, not for too long.
    let until = stage.now().after(held.remaining());
    stage.record(held.key(), request, What::Granted { fence: held.fence(), until });
}

/// An outage is no fault of the locks; anything else is.
fn failed(stage: &Stage, key: &str, request: u64, error: &Error) {
    assert!(error.is_temporary(), "request {request:x} for {key:?}: {error}");
    // Of a worker that is a file beside its history.
    let _ = writeln!(std::io::stderr(), "request {request:x} for {key:?}: {error}");
    stage.record(key, request, What::Failed);
}

/// None, a short one or a long one.
fn patience(stage: &Stage, chance: &mut StdRng) -> Duration {
    match chance.random_range(0..10) {
        0 => Duration::ZERO,
        1..6 => Duration::from_millis(chance.random_range(1..150)),
        _ => stage.part.torture.longest_wait().mul_f64(chance.random_range(0.2..1.0)),
    }
}

fn ttl(stage: &Stage, chance: &mut StdRng) -> Duration {
    stage.part.torture.unit.mul_f64(chance.random_range(1.0..3.0))
}
