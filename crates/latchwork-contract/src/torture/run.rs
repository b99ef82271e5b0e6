//! The supervisor.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::provider::Moment;
use latchwork_lock::{Clock, Locks, PageRequest, SystemClock};

use super::children::Crew;
use super::faults;
use super::judge::{Report, judge};
use super::pulse::pulse;
use super::settings::Torture;
use super::stage::{Part, Stage};
use super::watch::watch;
use super::worker::tasks;
use crate::history::What;

/// How long a lease that was offered to a waiter may stay unclaimed (L5).
const CLAIM: Duration = Duration::from_secs(2);

/// How long the waiters of a process that was killed may be believed to live.
const BELIEF: Duration = Duration::from_secs(10);

/// Runs it with worker processes, which are this test program in its test `worker`.
///
/// # Panics
/// When the histories show what the promises forbid. The message has the seed, the violations
/// and the directory with the histories, which is kept then.
pub fn run(torture: Torture) -> Report {
    let part = prepare(torture);
    let runtime = runtime(1);
    let connecting = Locks::connect(&part.torture.url);
    let locks = runtime.block_on(connecting).expect("the backend is there");
    let stage = Arc::new(Stage::open(part, &locks).expect("the directory is there"));
    let watcher = {
        let stage = stage.clone();
        runtime.spawn(async move { watch(&stage).await })
    };
    let mut crew = Crew::start(&stage);
    faults::make(&stage, &mut crew, &mut stage.chance(0), &runtime);
    let mut troubles = crew.finish(stage.now().after(stage.part.torture.longest_end()));
    runtime.block_on(watcher).expect("no panic");
    troubles.extend(runtime.block_on(left_over(&stage, BELIEF)));
    let report = judge(&stage, troubles);
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
    let part = prepare(Torture { tasks: tasks_in_all, ..torture });
    let stage = Arc::new(Stage::open(part, locks).expect("the directory is there"));
    let runtime = runtime(2);
    let mut troubles = runtime.block_on(all_tasks(&stage));
    troubles.extend(runtime.block_on(left_over(&stage, Duration::from_secs(2))));
    troubles.extend(runtime.block_on(stage.drops.left_over(stage.part.torture.slack)));
    stage.record("", 0, What::ProcessEnds { who: 0 });
    judge(&stage, troubles)
}

/// Runs every duty of a run in tasks; tells what went wrong with them.
async fn all_tasks(stage: &Arc<Stage>) -> Vec<String> {
    let (seen, broken, still) = (stage.clone(), stage.clone(), stage.clone());
    let pulse = tokio::spawn(async move { pulse(&still).await });
    let mut all = tasks(stage);
    all.push(tokio::spawn(async move { watch(&seen).await }));
    all.push(tokio::spawn(async move {
        faults::make_here(&broken, broken.chance(u32::MAX)).await;
    }));
    let torture = &stage.part.torture;
    let patience = torture.duration + torture.longest_end();
    let ended = tokio::time::timeout(patience, join_all(all)).await;
    pulse.abort();
    match ended {
        Ok(ended) => ended.into_iter().filter_map(|end| Some(end.err()?.to_string())).collect(),
        Err(_) => vec!["a task did not come to its end".to_owned()],
    }
}

fn prepare(torture: Torture) -> Part {
    let directory = directory(&torture);
    let end = SystemClock.now().after(torture.duration);
    Part { torture, directory, number: 0, end }
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
async fn left_over(stage: &Stage, later: Duration) -> Option<String> {
    let torture = &stage.part.torture;
    // The renewal behind a holder's back goes on for two units.
    let longest = torture.longest_ttl() + torture.unit * 2 + CLAIM + later;
    let deadline: Moment = stage.now().after(longest);
    loop {
        let page = match stage.locks.list("", PageRequest::default()).await {
            Ok(page) if page.keys.is_empty() => return None,
            page => page,
        };
        if stage.now() >= deadline {
            return Some(format!("{longest:?} after the end there is still: {page:#?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
