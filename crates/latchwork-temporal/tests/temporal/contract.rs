//! The promises L1 to L22: each case on a task queue and a worker of its own.

use std::time::Duration;

use futures::StreamExt;
use latchwork_contract::lock::{Suite, TestBackend, missing, suite as suite_of};
use latchwork_temporal::{MutexStatus, TemporalConfig, TemporalLockProvider};
use temporalio_client::{UntypedQuery, WorkflowListOptions, WorkflowQueryOptions};
use temporalio_common::UntypedWorkflow;
use temporalio_common::data_converters::RawValue;

use crate::support::{Host, MISSING, client, config, fresh, server, wait_for_worker};

pub(crate) fn suite() -> Suite {
    if server().is_none() {
        return missing("temporal", MISSING);
    }
    suite_of("temporal", async || {
        let config = config(&fresh("case"));
        let host = Host::start(&config);
        wait_for_worker(&config).await;
        let counted = config.clone();
        TestBackend::new(move || TemporalLockProvider::open(config.clone()))
            // A call takes tens of milliseconds, and some of them more on a busy machine.
            .unit(Duration::from_millis(2_500))
            .slowness(8)
            .stored(move || stored(counted.clone()))
            .keep(host)
    })
}

/// How many hold and wait in all mutexes of a task queue.
async fn stored(config: TemporalConfig) -> u64 {
    let client = client(&config).await;
    let query = format!("TaskQueue = '{}' AND ExecutionStatus = 'Running'", config.task_queue);
    let mut runs = client.list_workflows(query, WorkflowListOptions::default());
    let mut count = 0;
    while let Some(run) = runs.next().await {
        let handle = client.get_workflow_handle::<UntypedWorkflow>(run.expect("it lists").id());
        let status = handle.query(
            UntypedQuery::new("status"),
            RawValue::new(Vec::new()),
            WorkflowQueryOptions::default(),
        );
        let status = status.await.expect("it answers");
        let status: MutexStatus =
            serde_json::from_slice(&status.payloads[0].data).expect("a status");
        count += status.holders.len() + status.waiters.len();
    }
    count as u64
}
