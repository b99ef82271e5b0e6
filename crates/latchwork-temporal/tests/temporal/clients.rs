//! Plain programs.

use std::time::Duration;

use latchwork_lock::{ErrorKind, Locks};
use latchwork_temporal::{TemporalConfig, TemporalLockProvider, workflow_id};
use libtest_mimic::Trial;
use temporalio_client::WorkflowStartOptions;
use temporalio_common::UntypedWorkflow;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::Payload;
use temporalio_common::protos::temporal::api::enums::v1::EventType;
use temporalio_common::protos::temporal::api::history::v1::HistoryEvent;

use crate::support::{Host, client, config, eventually, fresh, open, open_ready, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("clients::lock_and_unlock", lock_and_unlock),
        trial("clients::a_missing_worker_is_named", a_missing_worker_is_named),
        trial("clients::a_missing_namespace_is_named", a_missing_namespace_is_named),
        trial("clients::a_foreign_workflow_is_named", a_foreign_workflow_is_named),
        trial("clients::a_missing_server_is_named", a_missing_server_is_named),
        trial("clients::an_idle_mutex_ends_and_its_fence_goes_on", idle_shutdown),
        trial("clients::a_fence_is_above_the_last_result", above_the_last_result),
        trial("clients::activity_restarts_the_idle_timer", activity_restarts_the_idle_timer),
        trial("clients::a_key_may_be_called_namespace", a_key_called_namespace),
        trial("clients::a_mutex_has_a_search_attribute", search_attribute),
        trial("clients::continue_as_new_under_load", continue_as_new_under_load),
    ]
}

async fn lock_and_unlock() {
    let config = config(&fresh("basic"));
    let _host = Host::start(&config);
    let locks = open_ready(&config).await;
    let key = fresh("repo");
    let first = locks.lock(&key).acquire().await.expect("a free key");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    let fence = first.fence();
    first.release().await.expect("held");
    let second = locks.lock(&key).acquire().await.expect("a free key");
    assert!(second.fence() > fence);
    second.release().await.expect("held");
}

async fn a_missing_worker_is_named() {
    let config = config(&fresh("nobody"));
    let locks = open(&config).await;
    let error = locks.lock(fresh("k")).acquire().await.expect_err("nobody runs it");
    assert!(error.is_temporary(), "{error}");
    let told = error.to_string();
    assert!(told.contains("no worker polls") && told.contains(&config.task_queue), "{told}");
    let provider = TemporalLockProvider::open(config.clone()).await.expect("the server is there");
    let error = provider.ready(&fresh("k"), Duration::from_secs(5)).await.expect_err("nobody");
    assert_eq!(error.code(), "temporal_no_worker", "{error}");
}

async fn a_missing_namespace_is_named() {
    let mut config = config(&fresh("q"));
    "no-such-namespace".clone_into(&mut config.namespace);
    let error = TemporalLockProvider::open(config).await.expect_err("there is none");
    assert!(matches!(error.kind(), ErrorKind::Backend { .. }), "{error}");
    assert!(error.to_string().contains("no-such-namespace"), "{error}");
}

async fn a_foreign_workflow_is_named() {
    let config = config(&fresh("foreign"));
    let _host = Host::start(&config);
    let key = fresh("k");
    let id = workflow_id(&format!("lock/{key}"));
    let options = WorkflowStartOptions::new(fresh("elsewhere"), &id).build();
    let client = client(&config).await;
    let started = client.start_workflow(
        UntypedWorkflow::new("somebody.elses"),
        RawValue::new(Vec::new()),
        options,
    );
    started.await.expect("it starts");
    let error = open(&config).await.lock(&key).acquire().await.expect_err("no mutex");
    assert!(error.to_string().contains("somebody.elses"), "{error}");
    assert_eq!(error.code(), "lock_backend", "{error}");
}

async fn a_missing_server_is_named() {
    // A port that nobody listens on: the one of a listener that is gone.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let opened = TemporalLockProvider::open(TemporalConfig::new(format!("http://{address}")));
    let error = opened.await.expect_err("nobody listens");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
}

async fn idle_shutdown() {
    let mut config = config(&fresh("idle"));
    config.idle_timeout = Duration::from_secs(1);
    let _host = Host::start(&config);
    let locks = open_ready(&config).await;
    let key = fresh("k");
    let first = locks.lock(&key).acquire().await.expect("a free key");
    let fence = first.fence();
    first.release().await.expect("held");
    let client = client(&config).await;
    let id = workflow_id(&format!("lock/{key}"));
    eventually("the mutex ends", async || !is_running(&client, &id).await).await;
    let second = locks.lock(&key).acquire().await.expect("a free key");
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    // It does not end under a holder.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(is_running(&client, &id).await);
    second.release().await.expect("held to the end");
    eventually("the mutex ends", async || !is_running(&client, &id).await).await;
    // Nothing is there, and nothing is started by looking.
    assert!(!locks.exists(&key).await.expect("it answers"));
    assert!(!is_running(&client, &id).await);
}

/// As after a server's clock has gone back: the time alone would give lower fences than the last run did.
async fn above_the_last_result() {
    let config = config(&fresh("clock"));
    let _host = Host::start(&config);
    let client = client(&config).await;
    let key = fresh("k");
    let id = workflow_id(&format!("lock/{key}"));
    let last_fence = 9_000_000_000_000_000_u64;
    let input = format!(
        r#"{{"version":2,"resource":"lock/{key}","idle_timeout_ms":100,"carried":{{"last_fence":{last_fence}}}}}"#
    );
    let metadata = [("encoding".to_owned(), b"json/plain".to_vec())].into();
    let payload = Payload { metadata, data: input.into_bytes(), ..Payload::default() };
    let options = WorkflowStartOptions::new(&config.task_queue, &id).build();
    let mutex = UntypedWorkflow::new(latchwork_temporal::WORKFLOW_TYPE);
    let started = client.start_workflow(mutex, RawValue::new(vec![payload]), options);
    started.await.expect("it starts");
    eventually("the server lists its end", async || {
        let query = format!("WorkflowId = '{id}' AND ExecutionStatus = 'Completed'");
        let options = temporalio_client::WorkflowListOptions::default();
        let mut runs = client.list_workflows(query, options);
        futures::StreamExt::next(&mut runs).await.is_some_and(|run| run.is_ok())
    })
    .await;
    let guard = open(&config).await.lock(&key).acquire().await.expect("a free key");
    assert!(guard.fence().get() > last_fence, "{}", guard.fence());
    guard.release().await.expect("held");
}

async fn activity_restarts_the_idle_timer() {
    let mut config = config(&fresh("restart"));
    config.idle_timeout = Duration::from_secs(4);
    let _host = Host::start(&config);
    let locks = open_ready(&config).await;
    let key = fresh("k");
    let lock = async || {
        locks.lock(&key).acquire().await.expect("a free key").release().await.expect("held");
    };
    lock().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    lock().await;
    let client = client(&config).await;
    let id = workflow_id(&format!("lock/{key}"));
    eventually("the mutex ends", async || !is_running(&client, &id).await).await;
    // By the server's clock: the idle time counts from the last signal of the run.
    let handle = client.get_workflow_handle::<UntypedWorkflow>(&id);
    let history = handle.fetch_history(temporalio_client::WorkflowFetchHistoryOptions::default());
    let events = history.into_events().await.expect("a history");
    let time = |event: &HistoryEvent| {
        let time = event.event_time.expect("every event has a time");
        Duration::new(
            u64::try_from(time.seconds).expect("after 1970"),
            u32::try_from(time.nanos).expect("a part of a second"),
        )
    };
    let signalled = EventType::WorkflowExecutionSignaled as i32;
    let last = events.iter().rfind(|event| event.event_type == signalled).expect("a signal");
    let idle = time(events.last().expect("it has ended")) - time(last);
    assert!(idle >= config.idle_timeout, "{idle:?} after its last use");
}

/// The server's message for a workflow that it does not have ends with the workflow's id.
async fn a_key_called_namespace() {
    let config = config(&fresh("named"));
    let _host = Host::start(&config);
    let locks = open_ready(&config).await;
    let key = fresh("Namespace namespace");
    assert!(!locks.exists(&key).await.expect("there is none"));
    assert!(locks.break_lock(&key).await.expect("there is none").is_empty());
    locks.lock(&key).acquire().await.expect("a free key").release().await.expect("held");
}

async fn search_attribute() {
    let config = config(&fresh("attribute"));
    let _host = Host::start(&config);
    let key = fresh("k");
    let locks = open_ready(&config).await;
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let client = client(&config).await;
    let query = format!("{} = 'lock/{key}'", latchwork_temporal::RESOURCE_ATTRIBUTE);
    eventually("the server lists it", async || {
        let options = temporalio_client::WorkflowListOptions::default();
        let mut runs = client.list_workflows(query.clone(), options);
        let first = futures::StreamExt::next(&mut runs).await;
        first
            .is_some_and(|run| run.is_ok_and(|run| run.id() == workflow_id(&format!("lock/{key}"))))
    })
    .await;
    guard.release().await.expect("held");
}

pub(crate) async fn is_running(client: &temporalio_client::Client, id: &str) -> bool {
    use temporalio_client::{WorkflowDescribeOptions, WorkflowExecutionStatus};

    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    let found = handle.describe(WorkflowDescribeOptions::default()).await.expect("it is known");
    found.status() == WorkflowExecutionStatus::Running
}

async fn continue_as_new_under_load() {
    let mut config = config(&fresh("long"));
    config.operations_per_run = Some(12);
    let _host = Host::start(&config);
    let clients = [open_ready(&config).await, open(&config).await];
    let key = fresh("k");
    let (tasks, turns) = (8, 6);
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let fences = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let running = (0..tasks).map(|at| {
        let (locks, key): (Locks, _) = (clients[at % 2].clone(), key.clone());
        let (inside, fences) = (inside.clone(), fences.clone());
        tokio::spawn(async move {
            use std::sync::atomic::Ordering;
            for _ in 0..turns {
                let wait = Duration::from_secs(90);
                let guard = locks.lock(&key).wait(wait).acquire().await.expect("its turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                fences.lock().expect("no panic").push(guard.fence());
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("held");
            }
        })
    });
    for task in futures::future::join_all(running).await {
        task.expect("no panic");
    }
    let fences = fences.lock().expect("no panic").clone();
    assert_eq!(fences.len(), tasks * turns);
    assert!(fences.is_sorted_by(|a, b| a < b), "fences grow over runs: {fences:?}");
    // It has continued: the run that is there now has not the whole history.
    let client = client(&config).await;
    let id = workflow_id(&format!("lock/{key}"));
    let handle = client.get_workflow_handle::<UntypedWorkflow>(&id);
    let history = handle.fetch_history(temporalio_client::WorkflowFetchHistoryOptions::default());
    let events = history.into_events().await.expect("a history");
    assert!(events.len() < 300, "{} events in one run", events.len());
}
