//! The other side: what a worker process does.

use std::sync::Arc;

use futures::future::join_all;
use latchwork_lock::Locks;
use rustix::process::{Signal, set_parent_process_death_signal};

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
    let locks = Locks::connect(&part.torture.url).await.expect("the backend is there");
    let stage = Arc::new(Stage::open(part, &locks).expect("the directory is there"));
    join_all(tasks(&stage)).await.into_iter().for_each(|ended| ended.expect("no panic"));
    // Some still hold what they forgot to release; from here on it may be free.
    stage.record("", 0, What::ProcessEnds { who: stage.part.number });
    stage.locks.close().await;
}

/// Starts the tasks of one process.
pub(super) fn tasks(stage: &Arc<Stage>) -> Vec<tokio::task::JoinHandle<()>> {
    let start = |task| {
        let stage = stage.clone();
        tokio::spawn(async move { work(&stage, stage.chance(task)).await })
    };
    (0..stage.part.torture.tasks).map(start).collect()
}
