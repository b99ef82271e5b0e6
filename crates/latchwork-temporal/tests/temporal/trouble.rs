//! What goes wrong: workers and servers that are killed, signals that come twice, late or in another version,
//! and a mutex that ends while somebody wants it.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use latchwork_lock::Locks;
use latchwork_temporal::{MutexStatus, TemporalConfig, TemporalLockProvider, workflow_id};
use libtest_mimic::Trial;
use temporalio_client::grpc::WorkflowService;
use temporalio_client::tonic::Request;
use temporalio_client::{
    Client, NamespacedClient, UntypedQuery, UntypedSignal, WorkflowDescribeOptions,
    WorkflowFetchHistoryOptions, WorkflowQueryOptions, WorkflowSignalOptions,
};
use temporalio_common::UntypedWorkflow;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::common::v1::{
    Payload, Payloads, TimeSkippingConfig, WorkflowExecution, WorkflowType,
};
use temporalio_common::protos::temporal::api::enums::v1::EventType;
use temporalio_common::protos::temporal::api::taskqueue::v1::TaskQueue;
use temporalio_common::protos::temporal::api::workflowservice::v1::{
    ResetWorkflowExecutionRequest, StartWorkflowExecutionRequest,
};

use crate::caller::{LockingWorkflow, Plan, Work, host};
use crate::clients::is_running;
use crate::support::{Host, client, config, config_at, eventually, fresh, open, open_ready, trial};
use crate::workflows;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("trouble::a_worker_that_is_killed_loses_nothing", worker_killed),
        trial("trouble::a_server_that_is_killed_loses_nothing", server_killed),
        trial("trouble::a_hundred_clients_wait_on_an_untuned_server", a_hundred_clients),
        trial("trouble::a_release_may_overtake_its_acquire", release_overtakes),
        trial("trouble::the_same_signal_twice_is_done_once", twice),
        trial("trouble::signals_of_other_versions_change_nothing", other_versions),
        trial("trouble::an_acquire_that_races_the_shutdown_is_granted", races_the_shutdown),
        trial("trouble::a_mutex_ends_after_ten_minutes", ten_minutes),
        trial("trouble::a_holder_that_is_reset_confirms", holder_reset),
    ]
}

/// The variable by which this program is a worker instead of a test.
const WORKER: &str = "LATCHWORK_TEMPORAL_TEST_WORKER";

/// Runs mutexes and callers until it is killed, if this process was started for that.
pub(crate) fn be_a_worker() {
    if let Ok(task_queue) = std::env::var(WORKER) {
        let _host = host(&config(&task_queue));
        loop {
            std::thread::park();
        }
    }
}

/// A process that is killed in the end.
struct Process(Child);

impl Process {
    fn worker(config: &TemporalConfig) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.env(WORKER, &config.task_queue).stdout(Stdio::null());
        Process(command.spawn().expect("it starts"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn worker_killed() {
    let config = config(&fresh("killed"));
    let mut worker = Process::worker(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = Plan {
        resource: fresh("k"),
        task_queue: config.task_queue.clone(),
        work: Work::UntilTold,
        ..Plan::default()
    };
    let holder = workflows::start(&client, &config, plan.clone()).await;
    eventually("it holds", async || workflows::holds(&holder).await).await;
    let waiter = workflows::start(&client, &config, Plan { work: Work::Nap, ..plan.clone() }).await;
    eventually("the other waits", async || {
        locks.inspect(&plan.resource).await.expect("it answers").waiters.len() == 1
    })
    .await;
    worker.kill();
    let _worker = Process::worker(&config);
    workflows::finish(&holder).await;
    let first = workflows::result(&holder).await;
    let second = workflows::result(&waiter).await;
    assert_eq!((&first.error, &second.error), (&None, &None));
    assert!(second.fences[0] > first.fences[0]);
    assert!(first.held[0].1 <= second.held[0].0, "two at once: {first:?} {second:?}");
}

/// A server of one's own, on a file.
struct Server {
    process: Process,
    address: String,
    port: u16,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let directory = tempfile::tempdir().expect("a directory");
        let process = Self::run(port, &directory);
        Server { process, address: format!("127.0.0.1:{port}"), port, directory }
    }

    fn run(port: u16, directory: &tempfile::TempDir) -> Process {
        let program = std::env::var("LATCHWORK_TEST_TEMPORAL_BIN").expect("its program is named");
        let mut command = Command::new(program);
        command.args(["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level"]);
        command.args(["never", "--port", &port.to_string(), "--db-filename"]);
        command.arg(directory.path().join("data.db"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Process(command.spawn().expect("it starts"))
    }

    fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = Self::run(self.port, &self.directory);
    }
}

/// Locks on a server that has just been started, with its settings as they come.
async fn open_soon(config: &TemporalConfig) -> Locks {
    let mut opened = None;
    eventually("the server answers", async || {
        opened = TemporalLockProvider::open(config.clone()).await.ok();
        opened.is_some()
    })
    .await;
    Locks::new(opened.expect("the condition held"))
}

async fn a_hundred_clients() {
    let server = Server::start();
    let config = config_at(&server.address, &fresh("many"));
    let locks = open_soon(&config).await;
    let _host = Host::start(&config);
    let key = fresh("k");
    let wait = Duration::from_secs(110);
    let guard = locks.lock(&key).wait(wait).acquire().await.expect("a free key");
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(open(&config).await);
    }
    let tasks: Vec<_> = (0..100)
        .map(|at| {
            let (locks, key) = (processes[at % 4].clone(), key.clone());
            tokio::spawn(async move {
                let guard = locks.lock(&key).wait(wait).acquire().await.expect("its turn comes");
                let fence = guard.fence();
                guard.release().await.expect("held");
                fence
            })
        })
        .collect();
    eventually("all wait", async || {
        locks.inspect(&key).await.is_ok_and(|found| found.waiters.len() == 100)
    })
    .await;
    guard.release().await.expect("held");
    let mut fences = std::collections::BTreeSet::new();
    for task in tasks {
        assert!(fences.insert(task.await.expect("no panic")), "a fence of its own for each");
    }
    assert_eq!(fences.len(), 100);
}

async fn server_killed() {
    let mut server = Server::start();
    let config = config_at(&server.address, &fresh("server"));
    let locks = open_soon(&config).await;
    let _host = Host::start(&config);
    let key = fresh("k");
    let ttl = Duration::from_secs(600);
    let wait = Duration::from_secs(60);
    let guard = locks.lock(&key).ttl(ttl).wait(wait).acquire().await.expect("a free key");
    let (waiting, name) = (locks.clone(), key.clone());
    let waiter = tokio::spawn(async move { waiting.lock(&name).wait(wait).acquire().await });
    eventually("the other waits", async || {
        locks.inspect(&key).await.is_ok_and(|found| found.waiters.len() == 1)
    })
    .await;
    server.kill_and_restart();
    eventually("the holder is still there", async || {
        locks.inspect(&key).await.is_ok_and(|found| {
            found.holders.first().is_some_and(|holder| holder.fence == guard.fence())
        })
    })
    .await;
    let fence = guard.fence();
    guard.release().await.expect("held");
    let next = waiter.await.expect("no panic").expect("its turn comes");
    assert!(next.fence() > fence);
    next.release().await.expect("held");
}

/// A signal to a mutex as a program in any language would send it.
async fn signal(client: &Client, id: &str, text: &str) {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    let metadata = [("encoding".to_owned(), b"json/plain".to_vec())].into();
    let data = text.as_bytes().to_vec();
    let payload = Payload { metadata, data, ..Payload::default() };
    let sent = handle.signal(
        UntypedSignal::new("latchwork.mutex.apply"),
        RawValue::new(vec![payload]),
        WorkflowSignalOptions::default(),
    );
    sent.await.expect("it is there");
}

async fn status(client: &Client, id: &str) -> MutexStatus {
    let handle = client.get_workflow_handle::<UntypedWorkflow>(id);
    let asked = handle.query(
        UntypedQuery::new("status"),
        RawValue::new(Vec::new()),
        WorkflowQueryOptions::default(),
    );
    let answer = asked.await.expect("it answers");
    serde_json::from_slice(&answer.payloads[0].data).expect("a status")
}

fn acquire(operation: &str, lease: &str) -> String {
    format!(
        r#"{{"version":2,"operations":[{{"id":"{operation}","kind":"acquire","lease":"{lease}",
        "process":"raw","ttl_us":60000000,"wait":"forever"}}]}}"#
    )
}

fn release(operation: &str, lease: &str) -> String {
    format!(
        r#"{{"version":2,"operations":[{{"id":"{operation}","kind":"release","lease":"{lease}"}}]}}"#
    )
}

/// A mutex that runs and is free.
async fn free_mutex() -> (TemporalConfig, Host, Client, String) {
    let config = config(&fresh("raw"));
    let host = Host::start(&config);
    let key = fresh("k");
    open_ready(&config)
        .await
        .lock(&key)
        .acquire()
        .await
        .expect("free")
        .release()
        .await
        .expect("held");
    let client = client(&config).await;
    (config, host, client, workflow_id(&format!("lock/{key}")))
}

async fn release_overtakes() {
    let (_config, _host, client, id) = free_mutex().await;
    signal(&client, &id, &release("a1", "b1")).await;
    signal(&client, &id, &acquire("a2", "b1")).await;
    let found = status(&client, &id).await;
    assert!(found.holders.is_empty() && found.waiters.is_empty(), "{found:?}");
    // Another request is not affected.
    signal(&client, &id, &acquire("a3", "b2")).await;
    assert_eq!(status(&client, &id).await.holders.len(), 1);
}

async fn twice() {
    let (_config, _host, client, id) = free_mutex().await;
    for lease in ["b1", "b2"] {
        for _ in 0..2 {
            signal(&client, &id, &acquire(&format!("a{lease}"), lease)).await;
        }
        // A retry of the whole request has another id, and the same lease.
        signal(&client, &id, &acquire(&format!("aa{lease}"), lease)).await;
    }
    let found = status(&client, &id).await;
    assert_eq!((found.holders.len(), found.waiters.len()), (1, 1), "{found:?}");
    for _ in 0..2 {
        signal(&client, &id, &release("c1", "b1")).await;
    }
    let after = status(&client, &id).await;
    assert_eq!((after.holders.len(), after.waiters.len()), (1, 0), "{after:?}");
    assert_eq!(after.last_fence, found.last_fence + 1);
}

async fn other_versions() {
    let (config, _host, client, id) = free_mutex().await;
    signal(&client, &id, &acquire("a1", "b1").replace("\"version\":2", "\"version\":1")).await;
    signal(&client, &id, "this is no JSON").await;
    signal(&client, &id, r#"{"version":2,"operations":[{"id":"a2","kind":"teleport"}]}"#).await;
    signal(&client, &id, r#"{"version":7,"operations":[{"id":"a3","new":true}]}"#).await;
    signal(&client, &id, r#"{"version":2,"operations":"many"}"#).await;
    let found = status(&client, &id).await;
    assert!(found.holders.is_empty() && found.waiters.is_empty(), "{found:?}");
    // Nothing is stuck.
    let key = found.resource.strip_prefix("lock/").expect("the usual prefix").to_owned();
    let guard = open(&config).await.lock(key).acquire().await.expect("a free key");
    guard.release().await.expect("held");
}

async fn races_the_shutdown() {
    let mut config = config(&fresh("race"));
    config.idle_timeout = Duration::from_millis(300);
    let _host = Host::start(&config);
    let locks = open_ready(&config).await;
    let tasks = (0..6).map(|task| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let key = fresh("k");
            let mut fences = Vec::new();
            for round in 0..10_u64 {
                let wait = Duration::from_secs(30);
                let guard = locks.lock(&key).wait(wait).acquire().await.expect("it is granted");
                fences.push(guard.fence());
                guard.release().await.expect("held");
                // Around the time at which the mutex ends.
                tokio::time::sleep(Duration::from_millis(270 + 10 * ((round + task) % 8))).await;
            }
            fences
        })
    });
    let mut granted = 0;
    for task in futures::future::join_all(tasks).await {
        let fences = task.expect("no panic");
        assert!(fences.is_sorted_by(|a, b| a < b), "over shutdowns too: {fences:?}");
        granted += fences.len();
    }
    assert_eq!(granted, 60);
}

async fn ten_minutes() {
    let config = config(&fresh("skip"));
    let _host = Host::start(&config);
    let mut client = client(&config).await;
    let resource = format!("lock/{}", fresh("k"));
    let id = workflow_id(&resource);
    let input = format!(
        r#"{{"version":2,"resource":"{resource}","idle_timeout_ms":{}}}"#,
        latchwork_temporal::DEFAULT_IDLE_TIMEOUT.as_millis()
    );
    let metadata = [("encoding".to_owned(), b"json/plain".to_vec())].into();
    let payload = Payload { metadata, data: input.into_bytes(), ..Payload::default() };
    let request = StartWorkflowExecutionRequest {
        namespace: client.namespace(),
        workflow_id: id.clone(),
        workflow_type: Some(WorkflowType { name: latchwork_temporal::WORKFLOW_TYPE.to_owned() }),
        task_queue: Some(TaskQueue { name: config.task_queue.clone(), ..TaskQueue::default() }),
        input: Some(Payloads { payloads: vec![payload] }),
        request_id: fresh("request"),
        time_skipping_config: Some(TimeSkippingConfig {
            enabled: true,
            ..TimeSkippingConfig::default()
        }),
        ..StartWorkflowExecutionRequest::default()
    };
    let started = WorkflowService::start_workflow_execution(&mut client, Request::new(request));
    started.await.expect("it starts");
    eventually("the mutex ends", async || !is_running(&client, &id).await).await;
    let handle = client.get_workflow_handle::<UntypedWorkflow>(&id);
    let found = handle.describe(WorkflowDescribeOptions::default()).await.expect("it is known");
    let ended = found.close_time().expect("it has ended");
    let lasted = ended.duration_since(found.start_time().expect("it began")).expect("later");
    let idle = latchwork_temporal::DEFAULT_IDLE_TIMEOUT;
    assert!(lasted >= idle && lasted < idle + Duration::from_secs(30), "{lasted:?}");
}

async fn holder_reset() {
    let config = config(&fresh("reset"));
    let _host = host(&config);
    let mut client = client(&config).await;
    let plan = Plan {
        resource: fresh("k"),
        task_queue: config.task_queue.clone(),
        work: Work::UntilTold,
        grace_ms: Some(20_000),
        ..Plan::default()
    };
    let holder = workflows::start(&client, &config, plan.clone()).await;
    eventually("it holds", async || workflows::holds(&holder).await).await;
    let waiter = workflows::start(&client, &config, Plan { work: Work::Nap, ..plan.clone() }).await;
    let id = workflow_id(&format!("lock/{}", plan.resource));
    eventually("the other waits", async || status(&client, &id).await.waiters.len() == 1).await;
    // To its last task: the new run has the grant in its history.
    let history = holder.fetch_history(WorkflowFetchHistoryOptions::default());
    let events = history.into_events().await.expect("a history");
    let completed = EventType::WorkflowTaskCompleted as i32;
    let last = events.iter().rfind(|event| event.event_type == completed).expect("a task");
    let request = ResetWorkflowExecutionRequest {
        namespace: client.namespace(),
        workflow_execution: Some(WorkflowExecution {
            workflow_id: holder.info().workflow_id.clone(),
            run_id: String::new(),
        }),
        reason: "an operator".to_owned(),
        workflow_task_finish_event_id: last.event_id,
        request_id: fresh("request"),
        ..ResetWorkflowExecutionRequest::default()
    };
    let reset = WorkflowService::reset_workflow_execution(&mut client, Request::new(request));
    let run_id = reset.await.expect("it is reset").into_inner().run_id;
    eventually("the new run has confirmed", async || {
        let found = status(&client, &id).await;
        found.holders.first().is_some_and(|it| it.run_id.as_deref() == Some(&*run_id))
    })
    .await;
    workflows::finish(&holder).await;
    let handle = client.get_workflow_handle::<LockingWorkflow>(&holder.info().workflow_id);
    let first = workflows::result(&handle).await;
    let second = workflows::result(&waiter).await;
    assert_eq!((&first.error, &second.error), (&None, &None));
    assert!(second.fences[0] > first.fences[0]);
}
