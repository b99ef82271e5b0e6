//! The other side: what a worker process does.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use latchwork_lock::{Clock, Locks, Result, SystemClock};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::pauses::record_pauses;
use super::process_context::{Assignment, ProcessContext};
use super::task::work;
use crate::history::What;

/// The variable in which a worker finds its assignment.
pub(super) const ASSIGNMENT: &str = "LATCHWORK_TORTURE_WORKER";

/// Makes a worker of this process, which ends with it, if a supervisor has started it as one;
/// else it does nothing. Call it first in the `main` of the test program.
///
/// # Panics
/// When the locks answer in a way that they must not. The supervisor reports it.
pub fn worker() {
    worker_with(by_address);
}

/// The same for locks that are opened in a way of their own: see [`run_with`](super::run_with).
///
/// # Panics
/// As [`worker`].
pub fn worker_with<F: Future<Output = Result<Locks>>>(open: impl Fn(String) -> F) {
    let Ok(assignment) = std::env::var(ASSIGNMENT) else { return };
    let assignment: Assignment =
        serde_json::from_str(&assignment).expect("the supervisor's own words");
    // A supervisor that is killed cannot tell a stopped worker to go on and end.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal that exists");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run_tasks(assignment, open));
    std::process::exit(0);
}

/// Opens what `Locks` itself knows.
pub(super) async fn by_address(address: String) -> Result<Locks> {
    Locks::connect(&address).await
}

async fn run_tasks<F: Future<Output = Result<Locks>>>(
    assignment: Assignment,
    open: impl Fn(String) -> F,
) {
    let Some(locks) = connect(&assignment, open).await else { return };
    let context =
        Arc::new(ProcessContext::open(assignment, &locks).expect("the directory is there"));
    let done = join_all(tasks(&context));
    match select(pin!(done), pin!(record_pauses(&context))).await {
        Either::Left((ended, _)) => ended.into_iter().for_each(|ended| ended.expect("no panic")),
        Either::Right(_) => unreachable!("a record_pauses goes on"),
    }
    // Some still hold what they forgot to release; from here on it may be free.
    context.record("", 0, What::ProcessEnds { who: context.assignment.number });
    let lost = context.drops.left_over(context.assignment.torture.slack).await;
    assert!(lost.is_none(), "{lost:?}");
    context.locks.close().await;
}

/// Opens the backend, which may be too busy for a newcomer for a while; none when the run is over.
async fn connect<F: Future<Output = Result<Locks>>>(
    assignment: &Assignment,
    open: impl Fn(String) -> F,
) -> Option<Locks> {
    while SystemClock.now() < assignment.end {
        match open(assignment.torture.url.clone()).await {
            Ok(locks) => return Some(locks),
            Err(error) => assert!(error.is_temporary(), "the backend is there: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// Starts the tasks of one process.
pub(super) fn tasks(context: &Arc<ProcessContext>) -> Vec<tokio::task::JoinHandle<()>> {
    let start = |task| {
        let context = context.clone();
        tokio::spawn(async move { work(&context, context.chance(task)).await })
    };
    (0..context.assignment.torture.tasks).map(start).collect()
}
