//! The other side: what a worker process does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use latchwork_lock::{Clock, Locks, SystemClock};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::pulse::pulse;
use super::stage::{Part, Stage};
use super::task::work;
use crate::history::What;

/// The variable in which a worker finds its part.
pub(super) const PART: &str = "LATCHWORK_TORTURE_WORKER";

/// Makes a worker of this process, which ends with it, if a supervisor has started it as one;
/// else it does nothing. Call it in a test of the name `worker`.
///
/// # Panics
/// When the locks answer in a way that they must not. The supervisor tells of it.
pub fn worker() {
    let Ok(part) = std::env::var(PART) else { return };
    let part: Part = serde_json::from_str(&part).expect("the supervisor's own words");
    // A supervisor that is killed cannot tell a stopped worker to go on and end.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal that exists");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(play(part));
    std::process::exit(0);
}

async fn play(part: Part) {
    let Some(locks) = connect(&part).await else { return };
    let stage = Arc::new(Stage::open(part, &locks).expect("the directory is there"));
    let done = join_all(tasks(&stage));
    match select(pin!(done), pin!(pulse(&stage))).await {
        Either::Left((ended, _)) => ended.into_iter().for_each(|ended| ended.expect("no panic")),
        Either::Right(_) => unreachable!("a pulse goes on"),
    }
    // Some still hold what they forgot to release; from here on it may be free.
    stage.record("", 0, What::ProcessEnds { who: stage.part.number });
    let lost = stage.drops.left_over(stage.part.torture.slack).await;
    assert!(lost.is_none(), "{lost:?}");
    stage.locks.close().await;
}

/// Opens the backend, which may be too busy for a newcomer for a while; none when the run is over.
async fn connect(part: &Part) -> Option<Locks> {
    while SystemClock.now() < part.end {
        match Locks::connect(&part.torture.url).await {
            Ok(locks) => return Some(locks),
            Err(error) => assert!(error.is_temporary(), "the backend is there: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// Starts the tasks of one process.
pub(super) fn tasks(stage: &Arc<Stage>) -> Vec<tokio::task::JoinHandle<()>> {
    let start = |task| {
        let stage = stage.clone();
        tokio::spawn(async move { work(&stage, stage.chance(task)).await })
    };
    (0..stage.part.torture.tasks).map(start).collect()
}
