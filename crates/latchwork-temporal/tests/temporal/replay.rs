//! Histories that earlier versions have left must be decided the same: a change of the rules that would not
//! do so is found here, before a cluster finds it.
//!
//! With `LATCHWORK_UPDATE=1` and a server the histories are recorded anew. A history that is in a release is
//! kept for ever; new ones get a new name.

use std::path::PathBuf;
use std::time::Duration;

use latchwork_temporal::{MutexWorkflow, workflow_id};
use libtest_mimic::{Failed, Trial};
use temporalio_client::{Client, WorkflowFetchHistoryOptions, WorkflowHistory};
use temporalio_common::UntypedWorkflow;
use temporalio_sdk::workflow_replayer::{WorkflowReplayer, WorkflowReplayerOptions};

use crate::caller::{LockingWorkflow, Plan, Work, host};
use crate::support::{client, config, eventually, fresh, open, server};
use crate::workflows;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("replay::histories_of_earlier_versions", || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            if std::env::var("LATCHWORK_UPDATE").is_ok_and(|it| it == "1") && server().is_some() {
                record().await;
            }
            replay().await
        })
    })]
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/temporal/histories")
}

async fn replay() -> Result<(), Failed> {
    let mut files: Vec<_> = std::fs::read_dir(directory())
        .expect("the histories are there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    assert!(files.len() >= 4, "the histories are there: {files:?}");
    let mut options = WorkflowReplayerOptions::new().build();
    options.register_workflow::<MutexWorkflow>().expect("registered once");
    options.register_workflow::<LockingWorkflow>().expect("registered once");
    let replayer = WorkflowReplayer::new(options).expect("a replayer");
    let mut differing = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).expect("it can be read");
        let history = WorkflowHistory::from_json(&bytes).expect("a history");
        if let Err(error) = replayer.replay_workflow(history).await {
            differing.push(format!("{}: {error}", file.display()));
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(Failed::from(differing.join("\n"))) }
}

/// The history of the newest run, as a file.
async fn save(client: &Client, id: &str, name: &str) {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    let history = handle.fetch_history(WorkflowFetchHistoryOptions::default());
    let json = history.to_json().await.expect("a history");
    let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let mut text = serde_json::to_string_pretty(&value).expect("JSON");
    text.push('\n');
    std::fs::create_dir_all(directory()).expect("a directory");
    std::fs::write(directory().join(format!("{name}.json")), text).expect("it can be written");
}

async fn record() {
    let mut config = config(&fresh("record"));
    config.idle_timeout = Duration::from_secs(2);
    let _host = host(&config);
    let client = client(&config).await;
    let (ours, theirs) = (open(&config).await, open(&config).await);
    let mutex = |key: &str| workflow_id(&format!("lock/{key}"));

    // Plain clients: a hand-over, a lease that runs out, a wait that ends, and the end of the mutex.
    let key = fresh("plain");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let (waiting, name) = (theirs.clone(), key.clone());
    let waiter = tokio::spawn(async move {
        let wait = Duration::from_secs(30);
        waiting.lock(&name).ttl(Duration::from_secs(3)).wait(wait).acquire().await
    });
    eventually("the other waits", async || {
        ours.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    guard.release().await.expect("held");
    let expired = waiter.await.expect("no panic").expect("its turn");
    let wait = Duration::from_millis(500);
    assert!(ours.lock(&key).wait(wait).try_acquire().await.expect("it answers").is_none());
    let last = ours.lock(&key).shared().wait(Duration::from_secs(30)).acquire().await;
    last.expect("the lease has run out").release().await.expect("held");
    drop(expired);
    let id = mutex(&key);
    eventually("it ends", async || !crate::clients::is_running(&client, &id).await).await;
    save(&client, &id, "plain-clients").await;

    // Workflows: one holds, one waits, one is terminated.
    let plan = Plan {
        resource: fresh("workflows"),
        task_queue: config.task_queue.clone(),
        work: Work::UntilTold,
        grace_ms: Some(1_000),
        idle_timeout_ms: Some(2_000),
        ..Plan::default()
    };
    let gone = workflows::start(&client, &config, plan.clone()).await;
    eventually("it holds", async || workflows::holds(&gone).await).await;
    let next = workflows::start(&client, &config, plan.clone()).await;
    eventually("the other waits", async || {
        ours.inspect(&plan.resource).await.expect("it answers").waiters.len() == 1
    })
    .await;
    // Long enough for a look at the holder.
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    let reason = temporalio_client::WorkflowTerminateOptions::builder().reason("recorded").build();
    gone.terminate(reason).await.expect("it is there");
    eventually("the other holds", async || workflows::holds(&next).await).await;
    workflows::finish(&next).await;
    assert_eq!(workflows::result(&next).await.error, None);
    save(&client, &next.info().workflow_id, "caller").await;
    let id = mutex(&plan.resource);
    eventually("it ends", async || !crate::clients::is_running(&client, &id).await).await;
    save(&client, &id, "workflows").await;

    // A wait of a workflow that ends, and a workflow that is cancelled.
    let guard = ours.lock(&plan.resource).acquire().await.expect("a free key");
    let late = Plan { wait_ms: Some(300), ..plan.clone() };
    let late = workflows::start(&client, &config, late).await;
    assert_eq!(workflows::result(&late).await.error.as_deref(), Some("lock_taken"));
    save(&client, &late.info().workflow_id, "caller-that-gave-up").await;
    guard.release().await.expect("held");

    // A run that continues one.
    let mut short = config.clone();
    short.operations_per_run = Some(6);
    short.idle_timeout = Duration::from_secs(2);
    let locks = open(&short).await;
    let key = fresh("continued");
    for _ in 0..5 {
        locks.lock(&key).acquire().await.expect("a free key").release().await.expect("held");
    }
    let id = mutex(&key);
    eventually("it ends", async || !crate::clients::is_running(&client, &id).await).await;
    save(&client, &id, "continued").await;
}
