//! Workflows that lock.

use std::time::Duration;

use latchwork_temporal::TemporalConfig;
use libtest_mimic::Trial;
use temporalio_client::{
    Client, WorkflowCancelOptions, WorkflowDescribeOptions, WorkflowFetchHistoryOptions,
    WorkflowGetResultOptions, WorkflowHandle, WorkflowQueryOptions, WorkflowSignalOptions,
    WorkflowStartOptions, WorkflowTerminateOptions,
};
use temporalio_common::UntypedWorkflow;
use temporalio_common::data_converters::RawValue;
use temporalio_common::protos::temporal::api::enums::v1::EventType;

use crate::caller::{LockingWorkflow, Plan, Report, Work, host};
use crate::support::{client, config, eventually, fresh, open, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("workflows::basic_acquisition_and_release", basic_acquisition_and_release),
        trial("workflows::contention_in_order", contention_in_order),
        trial("workflows::timeout_while_waiting", timeout_while_waiting),
        trial("workflows::cancellation_while_waiting", cancellation_while_waiting),
        trial("workflows::cancellation_while_holding", cancellation_while_holding),
        trial("workflows::an_error_in_the_closure_is_its_own", an_error_in_the_closure),
        trial("workflows::a_panic_in_the_closure_releases", a_panic_in_the_closure),
        trial("workflows::a_holder_that_is_terminated_frees_the_lock", holder_terminated),
        trial("workflows::a_holder_timeout_ends_the_closure", holder_timeout),
        trial("workflows::plain_clients_and_workflows_exclude_each_other", mixed),
        trial("workflows::idle_shutdown_between_two_grants", idle_shutdown),
        trial("workflows::bad_options_are_refused", bad_options),
        trial("workflows::a_missing_worker_is_named", missing_worker),
        trial("workflows::a_foreign_workflow_is_named", foreign_workflow),
        trial("workflows::a_hundred_callers_at_once_get_ready", a_crowd),
    ]
}

pub(crate) type Handle = WorkflowHandle<Client, LockingWorkflow>;

pub(crate) async fn start(client: &Client, config: &TemporalConfig, plan: Plan) -> Handle {
    let id = fresh("caller");
    let options = WorkflowStartOptions::new(&config.task_queue, &id).build();
    client.start_workflow(LockingWorkflow::run, plan, options).await.expect("it starts");
    client.get_workflow_handle(id)
}

pub(crate) async fn result(handle: &Handle) -> Report {
    handle.get_result(WorkflowGetResultOptions::default()).await.expect("it completes")
}

pub(crate) async fn holds(handle: &Handle) -> bool {
    let asked = handle.query(LockingWorkflow::holding, (), WorkflowQueryOptions::default());
    asked.await.unwrap_or(false)
}

pub(crate) async fn finish(handle: &Handle) {
    let told = handle.signal(LockingWorkflow::finish, (), WorkflowSignalOptions::default());
    told.await.expect("it is there");
}

fn plan(config: &TemporalConfig, work: Work) -> Plan {
    Plan { resource: fresh("repo"), task_queue: config.task_queue.clone(), work, ..Plan::default() }
}

async fn basic_acquisition_and_release() {
    let config = config(&fresh("basic"));
    let _host = host(&config);
    let client = client(&config).await;
    let plan = Plan { times: 3, ..plan(&config, Work::Nothing) };
    let report = result(&start(&client, &config, plan).await).await;
    assert_eq!((report.error, report.own), (None, None));
    assert_eq!(report.fences.len(), 3);
    assert!(report.fences.is_sorted_by(|a, b| a < b), "{:?}", report.fences);
}

async fn contention_in_order() {
    let config = config(&fresh("order"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = plan(&config, Work::Nap);
    let guard = locks.lock(&plan.resource).acquire().await.expect("a free key");
    let mut callers = Vec::new();
    for at in 1..=50 {
        callers.push(start(&client, &config, plan.clone()).await);
        eventually("it stands in the queue", async || {
            locks.inspect(&plan.resource).await.expect("it answers").waiters.len() == at
        })
        .await;
    }
    let first = guard.fence().get();
    guard.release().await.expect("held");
    let mut fences = vec![first];
    let mut spans = Vec::new();
    for caller in &callers {
        let report = result(caller).await;
        assert_eq!(report.error, None);
        fences.extend(report.fences);
        spans.extend(report.held);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "in the order of their arrival: {fences:?}");
    assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "two at once: {spans:?}");
}

async fn timeout_while_waiting() {
    let config = config(&fresh("timeout"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = Plan { wait_ms: Some(500), ..plan(&config, Work::Nothing) };
    let guard = locks.lock(&plan.resource).acquire().await.expect("a free key");
    let report = result(&start(&client, &config, plan.clone()).await).await;
    assert_eq!(report.error.as_deref(), Some("lock_taken"), "{report:?}");
    assert!(report.fences.is_empty(), "{report:?}");
    let found = locks.inspect(&plan.resource).await.expect("it answers");
    assert_eq!(found.waiters, [], "it has left the queue");
    guard.release().await.expect("held");
    let free = locks.lock(&plan.resource).try_acquire().await.expect("it answers");
    assert!(free.is_some(), "nothing was left behind");
}

async fn cancellation_while_waiting() {
    let config = config(&fresh("cancel"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = plan(&config, Work::Nothing);
    let guard = locks.lock(&plan.resource).acquire().await.expect("a free key");
    let caller = start(&client, &config, plan.clone()).await;
    eventually("it stands in the queue", async || {
        locks.inspect(&plan.resource).await.expect("it answers").waiters.len() == 1
    })
    .await;
    caller.cancel(WorkflowCancelOptions::default()).await.expect("it is there");
    let report = result(&caller).await;
    assert_eq!(report.error.as_deref(), Some("lock_cancelled"), "{report:?}");
    let found = locks.inspect(&plan.resource).await.expect("it answers");
    assert_eq!(found.waiters, [], "it has left the queue");
    guard.release().await.expect("held");
}

async fn cancellation_while_holding() {
    let config = config(&fresh("cancel"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = plan(&config, Work::UntilTold);
    let caller = start(&client, &config, plan.clone()).await;
    eventually("it holds", async || holds(&caller).await).await;
    assert!(locks.lock(&plan.resource).try_acquire().await.expect("it answers").is_none());
    caller.cancel(WorkflowCancelOptions::default()).await.expect("it is there");
    let report = result(&caller).await;
    assert_eq!(report.own.as_deref(), Some("cancelled while it held"), "{report:?}");
    let free = locks.lock(&plan.resource).try_acquire().await.expect("it answers");
    assert!(free.is_some(), "it was released before the workflow ended");
}

async fn an_error_in_the_closure() {
    let config = config(&fresh("fail"));
    let _host = host(&config);
    let client = client(&config).await;
    let plan = plan(&config, Work::Fail);
    let report = result(&start(&client, &config, plan.clone()).await).await;
    assert_eq!(report.error, None, "{report:?}");
    assert_eq!(report.own.as_deref(), Some("the work went wrong"));
    let locks = open(&config).await;
    assert!(locks.lock(&plan.resource).try_acquire().await.expect("it answers").is_some());
}

async fn a_panic_in_the_closure() {
    let config = config(&fresh("panic"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let bad = plan(&config, Work::Panic);
    let caller = start(&client, &config, bad.clone()).await;
    // It was held, and is released before the panic goes on.
    let signalled = EventType::ExternalWorkflowExecutionSignaled as i32;
    eventually("the release was sent", async || {
        let history = caller.fetch_history(WorkflowFetchHistoryOptions::default());
        let events = history.into_events().await.expect("a history");
        events.iter().any(|event| event.event_type == signalled)
    })
    .await;
    let wait = Duration::from_secs(10);
    let guard = locks.lock(&bad.resource).wait(wait).acquire().await.expect("it is free");
    assert!(guard.previous_fence().is_some(), "it was held before");
    guard.release().await.expect("held");
    // The worker serves others.
    let report = result(&start(&client, &config, plan(&config, Work::Nap)).await).await;
    assert_eq!((report.error, report.fences.len()), (None, 1));
    let options = WorkflowTerminateOptions::builder().reason("its work panics").build();
    caller.terminate(options).await.expect("it is there, and tried again and again");
}

async fn holder_terminated() {
    let config = config(&fresh("gone"));
    let _host = host(&config);
    let client = client(&config).await;
    let holder = Plan {
        grace_ms: Some(1_500),
        holder_timeout_ms: Some(600_000),
        ..plan(&config, Work::UntilTold)
    };
    let caller = start(&client, &config, holder.clone()).await;
    eventually("it holds", async || holds(&caller).await).await;
    let waiter = start(&client, &config, Plan { work: Work::Nap, ..holder.clone() }).await;
    let options = WorkflowTerminateOptions::builder().reason("an operator").build();
    caller.terminate(options).await.expect("it is there");
    let report = result(&waiter).await;
    assert_eq!((&report.error, report.fences.len()), (&None, 1));
    // Not before its grace is over, by the server's clock.
    let found = caller.describe(WorkflowDescribeOptions::default()).await.expect("it is known");
    let ended = found.close_time().expect("it has ended");
    let ended = ended.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let granted = Duration::from_micros(report.held[0].0);
    assert!(granted >= ended + Duration::from_millis(1_500), "{granted:?} after {ended:?}");
}

async fn holder_timeout() {
    let config = config(&fresh("late"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = Plan { holder_timeout_ms: Some(3_000), ..plan(&config, Work::UntilTold) };
    let caller = start(&client, &config, plan.clone()).await;
    eventually("it holds", async || holds(&caller).await).await;
    let report = result(&caller).await;
    assert_eq!(report.error.as_deref(), Some("lock_lost"), "{report:?}");
    let wait = Duration::from_secs(20);
    let guard = locks.lock(&plan.resource).wait(wait).acquire().await.expect("it is free");
    guard.release().await.expect("held");
}

async fn mixed() {
    let config = config(&fresh("mixed"));
    let _host = host(&config);
    let client = client(&config).await;
    let locks = open(&config).await;
    let plan = Plan { times: 4, ..plan(&config, Work::Nap) };
    // The one who starts the mutex decides after how many operations it continues as new.
    let mut short = config.clone();
    short.operations_per_run = Some(8);
    let guard = open(&short).await.lock(&plan.resource).acquire().await.expect("a free key");
    guard.release().await.expect("held");
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(start(&client, &config, plan.clone()).await);
    }
    let mut fences = Vec::new();
    let mut spans = Vec::new();
    for _ in 0..6 {
        let wait = Duration::from_secs(60);
        let guard = locks.lock(&plan.resource).wait(wait).acquire().await.expect("its turn");
        let now = || u64::try_from(locks.clock().wall().timestamp_micros()).expect("after 1970");
        let began = now();
        fences.push(guard.fence().get());
        tokio::time::sleep(Duration::from_millis(20)).await;
        // One machine, one clock.
        spans.push((began, now()));
        guard.release().await.expect("held");
    }
    for caller in &callers {
        let report = result(caller).await;
        assert_eq!((&report.error, report.fences.len()), (&None, 4), "{report:?}");
        fences.extend(report.fences);
        spans.extend(report.held);
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 6 + 16, "every grant has a fence of its own");
    spans.sort_unstable();
    assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "two at once: {spans:?}");
}

async fn idle_shutdown() {
    let config = config(&fresh("idle"));
    let _host = host(&config);
    let client = client(&config).await;
    let plan = Plan { idle_timeout_ms: Some(1_000), ..plan(&config, Work::Nothing) };
    let first = result(&start(&client, &config, plan.clone()).await).await;
    let id = latchwork_temporal::workflow_id(&format!("lock/{}", plan.resource));
    eventually("the mutex ends", async || !crate::clients::is_running(&client, &id).await).await;
    let second = result(&start(&client, &config, plan).await).await;
    assert_eq!((&first.error, &second.error), (&None, &None));
    assert!(second.fences[0] > first.fences[0], "{first:?} {second:?}");
}

async fn bad_options() {
    let config = config(&fresh("bad"));
    let _host = host(&config);
    let client = client(&config).await;
    for resource in [String::new(), "x".repeat(513), "a\nb".to_owned()] {
        let plan = Plan { resource, ..plan(&config, Work::Nothing) };
        let report = result(&start(&client, &config, plan).await).await;
        assert_eq!(report.error.as_deref(), Some("invalid_argument"), "{report:?}");
    }
    let plan = Plan { holder_timeout_ms: Some(0), ..plan(&config, Work::Nothing) };
    let report = result(&start(&client, &config, plan).await).await;
    assert_eq!(report.error.as_deref(), Some("invalid_argument"), "{report:?}");
}

async fn missing_worker() {
    let config = config(&fresh("lonely"));
    let _host = host(&config);
    let client = client(&config).await;
    let plan = Plan {
        task_queue: fresh("nobody"),
        ready_timeout_ms: Some(4_000),
        ..plan(&config, Work::Nothing)
    };
    let report = result(&start(&client, &config, plan.clone()).await).await;
    assert_eq!(report.error.as_deref(), Some("temporal_no_worker"), "{report:?}");
    let told = report.message.expect("a message");
    assert!(told.contains(&plan.task_queue), "{told}");
}

async fn foreign_workflow() {
    let config = config(&fresh("foreign"));
    let _host = host(&config);
    let client = client(&config).await;
    let plan = plan(&config, Work::Nothing);
    let id = latchwork_temporal::workflow_id(&format!("lock/{}", plan.resource));
    let options = WorkflowStartOptions::new(fresh("elsewhere"), &id).build();
    let foreign = UntypedWorkflow::new("somebody.elses");
    let started = client.start_workflow(foreign, RawValue::new(Vec::new()), options);
    started.await.expect("it starts");
    let report = result(&start(&client, &config, plan).await).await;
    assert_eq!(report.error.as_deref(), Some("temporal_foreign_workflow"), "{report:?}");
    assert!(report.message.expect("a message").contains("somebody.elses"));
}

/// More than a worker has slots for, each with a mutex of its own on that same worker.
async fn a_crowd() {
    let config = config(&fresh("crowd"));
    let _host = host(&config);
    let client = client(&config).await;
    let mut callers = Vec::new();
    for _ in 0..110 {
        let plan = Plan { ready_timeout_ms: Some(60_000), ..plan(&config, Work::Nothing) };
        callers.push(start(&client, &config, plan).await);
    }
    for caller in &callers {
        let report = result(caller).await;
        assert_eq!((&report.error, report.fences.len()), (&None, 1), "{report:?}");
    }
}
