//! Hosting mutex workflows: in a worker of their own, or in one's own worker.

use std::time::Duration;

use temporalio_client::Client;
use temporalio_sdk::{Runtime, Worker, WorkerOptions, WorkflowRegistrationError};

use crate::activities::MutexActivities;
use crate::workflow::MutexWorkflow;
use crate::{Error, Result};

/// The task queue of mutex workflows, unless another is named.
pub const DEFAULT_TASK_QUEUE: &str = "latchwork";

/// How long a task waits for a worker that has died before another gets it.
const STICKY: Duration = Duration::from_secs(2);

/// The options of a worker that runs mutexes and nothing else. Add one's own workflows and activities, or
/// [`register`] the mutex with one's own options instead.
///
/// # Errors
/// When a workflow of the same name is registered already.
pub fn worker_options(task_queue: &str) -> Result<WorkerOptions, WorkflowRegistrationError> {
    Ok(WorkerOptions::new(task_queue)
        .register_workflow::<MutexWorkflow>()?
        .register_activities(MutexActivities)
        .sticky_queue_schedule_to_start_timeout(STICKY)
        .build())
}

/// Lets a worker run mutexes beside its own workflows: the mutex workflow, and the activities that it and
/// those who lock it need.
///
/// # Errors
/// When a workflow of the same name is registered already.
pub fn register(options: &mut WorkerOptions) -> Result<(), WorkflowRegistrationError> {
    options.register_workflow::<MutexWorkflow>()?;
    options.register_activities(MutexActivities);
    Ok(())
}

/// Lets a worker run workflows that lock by [`Mutex`](crate::Mutex), where another worker runs the mutexes.
pub fn register_caller(options: &mut WorkerOptions) {
    options.register_activities(MutexActivities);
}

/// Runs mutexes on a task queue until `stop` ends; what is under way is finished then.
///
/// It takes the calling thread's runtime. The future is not `Send`: await it in `block_on`, in a `LocalSet`,
/// or in a thread of its own.
///
/// # Errors
/// When the namespace or the server is not there, or the worker cannot go on.
pub async fn run_worker(
    client: Client,
    task_queue: &str,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let failed =
        |error: &dyn std::fmt::Display| Error::refused("running the worker", error.to_string());
    let options = worker_options(task_queue).map_err(|error| failed(&error))?;
    let runtime = Runtime::from_current_tokio(temporalio_sdk::runtime::RuntimeOptions::default())
        .map_err(|error| failed(&error))?;
    let mut worker = Worker::new(&runtime, client, options).map_err(|error| failed(&error))?;
    let shut_down = worker.shutdown_handle();
    let running = std::pin::pin!(worker.run());
    let stop = std::pin::pin!(stop);
    let ended = match futures_util::future::select(running, stop).await {
        futures_util::future::Either::Left((ended, _)) => ended,
        futures_util::future::Either::Right(((), running)) => {
            shut_down();
            running.await
        }
    };
    ended.map_err(|error| failed(&error))
}
