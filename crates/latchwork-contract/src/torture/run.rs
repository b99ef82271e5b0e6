//! The supervisor.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, Locks, PageRequest, Result, SystemClock};

use super::faults;
use super::judge::{Report, judge};
use super::pauses::record_pauses;
use super::process_context::{Assignment, ProcessContext};
use super::queues::record_queues;
use super::settings::Torture;
use super::worker::{by_address, tasks};
use super::workers::Workers;
use crate::history::What;

/// How long a lease that was offered to a waiter may stay unclaimed (L5).
const CLAIM: Duration = Duration::from_secs(2);

/// How long the waiters of a process that was killed may be believed to live.
const BELIEF: Duration = Duration::from_secs(10);

/// Runs it with worker processes, which are this test program once more: see
/// [`worker`](super::worker()).
///
/// # Panics
/// When the histories show what the promises forbid. The message has the seed, the violations
/// and the directory with the histories, which is kept then.
pub fn run(torture: Torture) -> Report {
    run_with(torture, by_address)
}

/// The same for a provider of your own: `open` opens its locks, in each of the processes. It is given
/// the place that [`Torture::at`] was told, in which they meet. Each worker must open them in the same
/// way, by [`worker_with`](super::worker_with).
///
/// # Panics
/// As [`run`].
pub fn run_with<F: Future<Output = Result<Locks>>>(
    torture: Torture,
    open: impl Fn(String) -> F,
) -> Report {
    let assignment = prepare(torture);
    let runtime = runtime(1);
    let connecting = open(assignment.torture.url.clone());
    let locks = runtime.block_on(connecting).expect("the backend is there");
    let context =
        Arc::new(ProcessContext::open(assignment, &locks).expect("the directory is there"));
    let watcher = {
        let context = context.clone();
        runtime.spawn(async move { record_queues(&context).await })
    };
    let mut workers = Workers::start(&context);
    faults::make(&context, &mut workers, &mut context.chance(0), &runtime);
    let mut troubles =
        workers.finish(context.now().after(context.assignment.torture.longest_end()));
    runtime.block_on(watcher).expect("no panic");
    troubles.extend(runtime.block_on(left_over(&context, BELIEF)));
    let report = judge(&context, troubles);
    assert!(report.dead_waiters > 0, "nobody was killed while it waited: {report:?}");
    report
}

/// Runs it with tasks of this process only, for locks that no other process can see: with dropped
/// futures, breaks, and leases that run out.
///
/// # Panics
/// As [`run`].
pub fn run_here(locks: &Locks, torture: Torture) -> Report {
    let tasks_in_all = torture.tasks * torture.processes;
    let assignment = prepare(Torture { tasks: tasks_in_all, ..torture });
    let context =
        Arc::new(ProcessContext::open(assignment, locks).expect("the directory is there"));
    let runtime = runtime(2);
    let mut troubles = runtime.block_on(all_tasks(&context));
    troubles.extend(runtime.block_on(left_over(&context, Duration::from_secs(2))));
    troubles.extend(runtime.block_on(context.drops.left_over(context.assignment.torture.slack)));
    context.record("", 0, What::ProcessEnds { who: 0 });
    judge(&context, troubles)
}

/// Runs every duty of a run in tasks; tells what went wrong with them.
async fn all_tasks(context: &Arc<ProcessContext>) -> Vec<String> {
    let (seen, broken, still) = (context.clone(), context.clone(), context.clone());
    let record_pauses = tokio::spawn(async move { record_pauses(&still).await });
    let mut all = tasks(context);
    all.push(tokio::spawn(async move { record_queues(&seen).await }));
    all.push(tokio::spawn(async move {
        faults::make_here(&broken, broken.chance(u32::MAX)).await;
    }));
    let torture = &context.assignment.torture;
    let patience = torture.duration + torture.longest_end();
    let ended = tokio::time::timeout(patience, join_all(all)).await;
    record_pauses.abort();
    match ended {
        Ok(ended) => ended.into_iter().filter_map(|end| Some(end.err()?.to_string())).collect(),
        Err(_) => vec!["a task did not come to its end".to_owned()],
    }
}

fn prepare(torture: Torture) -> Assignment {
    let directory = directory(&torture);
    let end = SystemClock.now().after(torture.duration);
    Assignment { torture, directory, number: 0, end }
}

fn directory(torture: &Torture) -> PathBuf {
    // Several runs of one process are apart, too: those with one seed, by their turn.
    static TURNS: AtomicU32 = AtomicU32::new(0);
    let (seed, process) = (torture.seed, std::process::id());
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    let name = format!("latchwork-torture-{seed:016x}-{process}-{turn}");
    let directory = torture.directory.join(name);
    std::fs::create_dir_all(&directory).expect("a temporary directory can be made");
    directory
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// What is still held or waited for when every lease must have run out, and so much later.
async fn left_over(context: &ProcessContext, later: Duration) -> Option<String> {
    let torture = &context.assignment.torture;
    // The renewal behind a holder's back goes on for two units.
    let longest = torture.longest_ttl() + torture.unit * 2 + CLAIM + later;
    let deadline: Moment = context.now().after(longest);
    loop {
        let page = match context.locks.list("", PageRequest::default()).await {
            Ok(page) if page.keys.is_empty() => return None,
            page => page,
        };
        if context.now() >= deadline {
            return Some(format!("{longest:?} after the end there is still: {page:#?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
