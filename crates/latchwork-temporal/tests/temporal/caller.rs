//! A workflow that locks, and does under the lock what its input says.
#![allow(unreachable_pub, missing_docs, reason = "the macros want public methods and types")]

use std::time::Duration;

use latchwork_temporal::{
    Error, HasMutexInbox, Mutex, MutexInbox, MutexOptions, MutexReply, REPLY_SIGNAL,
    TemporalConfig, register,
};
use serde::{Deserialize, Serialize};
use temporalio_client::Client;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    Runtime, SyncWorkflowContext, Worker, WorkerOptions, WorkflowContext, WorkflowContextView,
    WorkflowResult,
};

use crate::support::Host;

/// What a caller is to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    pub resource: String,
    pub task_queue: String,
    pub work: Work,
    pub wait_ms: Option<u64>,
    pub holder_timeout_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub idle_timeout_ms: Option<u64>,
    pub ready_timeout_ms: Option<u64>,
    /// How often to lock, one after the other.
    pub times: u32,
}

/// What it does under the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Nothing.
    #[default]
    Nothing,
    /// A short timer.
    Nap,
    /// It waits for the signal `finish`, or for its cancellation.
    UntilTold,
    /// It returns an error of its own.
    Fail,
    /// It panics once it holds.
    Panic,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub fences: Vec<u64>,
    /// The code of the lock's error.
    pub error: Option<String>,
    pub message: Option<String>,
    /// The error of the closure.
    pub own: Option<String>,
    /// When the lock was held, in microseconds of the server's time.
    pub held: Vec<(u64, u64)>,
}

#[workflow]
#[derive(Default)]
pub struct LockingWorkflow {
    inbox: MutexInbox,
    finish: bool,
    holding: bool,
}

#[workflow_methods]
impl LockingWorkflow {
    #[run]
    pub async fn run(ctx: &mut WorkflowContext<Self>, plan: Plan) -> WorkflowResult<Report> {
        let mut report = Report::default();
        match lock(ctx, &plan, &mut report).await {
            Ok(()) => {}
            Err(error) => {
                report.error = Some(error.code().to_owned());
                report.message = Some(error.to_string());
            }
        }
        Ok(report)
    }

    #[signal(name = REPLY_SIGNAL)]
    pub fn mutex_reply(&mut self, _ctx: &mut SyncWorkflowContext<Self>, reply: MutexReply) {
        self.inbox.deliver(reply);
    }

    #[signal]
    pub fn finish(&mut self, _ctx: &mut SyncWorkflowContext<Self>) {
        self.finish = true;
    }

    #[query]
    pub fn holding(&self, _ctx: &WorkflowContextView) -> bool {
        self.holding
    }
}

impl HasMutexInbox for LockingWorkflow {
    fn mutex_inbox(&self) -> &MutexInbox {
        &self.inbox
    }
}

fn micros(ctx: &WorkflowContext<LockingWorkflow>) -> u64 {
    let time = ctx.workflow_time().expect("a task has a time");
    let span = time.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    u64::try_from(span.as_micros()).expect("not that far")
}

async fn lock(
    ctx: &WorkflowContext<LockingWorkflow>,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Error> {
    let mut options = MutexOptions::resource(&plan.resource).task_queue(&plan.task_queue);
    if let Some(wait) = plan.wait_ms {
        options = options.wait(Duration::from_millis(wait));
    }
    if let Some(timeout) = plan.holder_timeout_ms {
        options = options.holder_timeout(Duration::from_millis(timeout));
    }
    if let Some(grace) = plan.grace_ms {
        options = options.holder_grace(Duration::from_millis(grace));
    }
    if let Some(timeout) = plan.ready_timeout_ms {
        options = options.ready_timeout(Duration::from_millis(timeout));
    }
    options = options.idle_timeout(Duration::from_millis(plan.idle_timeout_ms.unwrap_or(90_000)));
    let mutex = Mutex::new(ctx, options).await?;
    for _ in 0..plan.times.max(1) {
        let work = plan.work;
        let done = mutex.on_acquire(ctx, async |held| {
            ctx.state_mut(|workflow| workflow.holding = true);
            let began = micros(ctx);
            let result = match work {
                Work::Nothing => Ok(()),
                Work::Nap => {
                    ctx.timer(Duration::from_millis(50)).await;
                    Ok(())
                }
                Work::UntilTold => {
                    let told = ctx.wait_condition(|workflow| workflow.finish).await;
                    told.map_err(|_| "cancelled while it held".to_owned())
                }
                Work::Fail => Err("the work went wrong".to_owned()),
                Work::Panic => panic!("the work panicked"),
            };
            ctx.state_mut(|workflow| workflow.holding = false);
            (held.fence(), began, micros(ctx), result)
        });
        let (fence, began, ended, result) = done.await?;
        report.fences.push(fence);
        report.held.push((began, ended));
        report.own = result.err();
    }
    Ok(())
}

/// A worker that runs callers and mutexes.
pub(crate) fn host(config: &TemporalConfig) -> Host {
    let config = config.clone();
    Host::run(async move |stop| {
        let client = config.connect().await.expect("the server is there");
        let mut worker = worker(client, &config.task_queue);
        let shut_down = worker.shutdown_handle();
        let running = std::pin::pin!(worker.run());
        let ended = match futures::future::select(running, stop).await {
            futures::future::Either::Left((ended, _)) => ended,
            futures::future::Either::Right((_, running)) => {
                shut_down();
                running.await
            }
        };
        ended.expect("the worker runs until it is stopped");
    })
}

fn worker(client: Client, task_queue: &str) -> Worker {
    let runtime = Runtime::from_current_tokio(Default::default()).expect("a runtime");
    let mut options = WorkerOptions::new(task_queue)
        .sticky_queue_schedule_to_start_timeout(Duration::from_secs(2))
        .build();
    register(&mut options).expect("registered once");
    options.register_workflow::<LockingWorkflow>().expect("registered once");
    Worker::new(&runtime, client, options).expect("a worker")
}
