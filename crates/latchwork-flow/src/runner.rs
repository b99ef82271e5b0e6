//! Who goes on with what is due (F8).

mod retries;
mod rounds;
mod task;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::store::MAX_ATTEMPTS;
use crate::{BoxError, Contexts, Error, Reloaded, Result, State, StateMachine, TransitionContext};

/// Goes on with the stored transitions of one machine: those that were submitted, those whose wake
/// time, signal or timeout has come, and those whose process has died. It also renews the locks of
/// pauses that ask for it, and gives back those of pauses that were called off.
///
/// Any number of them may run, in any number of processes: each context is claimed by one. What a
/// process was at when it died is taken over when its run-lease has ended, at the first action that
/// was not saved, under the lock with a higher fence; the dead process's late saves are refused.
///
/// A transition that was claimed too often without getting on is quarantined ([`max_attempts`]), and
/// of those with which a process has died it is at one at a time: see [`store`](crate::store). A
/// runner never claims what it is itself at, and leaves to others what it cannot read.
///
/// [`max_attempts`]: Self::max_attempts
///
/// It sleeps until the next context is due, and looks at every tick for what others have sent
/// meanwhile. When the store is away it tries again, ever more slowly.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_flow::{ActionResult, Contexts, FlowRunner, JsonState, MergeDelta, Pause};
/// use latchwork_flow::{StateMachine, Status};
/// use serde_json::json;
///
/// let contexts = Contexts::connect("memory:").await?;
/// let publish = StateMachine::<JsonState>::builder("publish")
///     .store(contexts.clone())
///     .action_fn("ask", |_| async { Ok(ActionResult::pause(Pause::new().on_signal("approved"))) })
///     .action(MergeDelta)
///     .build()?;
/// let runner = FlowRunner::new(&publish)?.start();
///
/// let order = JsonState::new(json!({"id": "ORD-1", "status": "draft"}))?;
/// let id = publish.submit(order, JsonState::delta(json!({"status": "published"}))?).await?;
/// contexts.signal(id, "approved", json!({"by": "Ada"})).await?;
/// while contexts.show(id).await?.status != Status::Completed {
///     runner.wake();
///     tokio::task::yield_now().await;
/// }
/// runner.stop().await?;
/// # Ok(()) }
/// ```
#[must_use = "a runner does nothing until it is run or started"]
pub struct FlowRunner<S: State> {
    machine: StateMachine<S>,
    contexts: Contexts,
    concurrency: usize,
    tick: Duration,
    retry: Duration,
    grace: Duration,
    max_attempts: u32,
    reload: Option<Reload<S>>,
    wake: Arc<Notify>,
}

/// What a runner wants of the workers that it starts.
pub(crate) struct RunTerms {
    /// Whether to end after the present action.
    pub(crate) leaving: Leaving,
    /// How long a run that could not go on is left alone: given back, it would be due at once.
    pub(crate) postpone: Option<Duration>,
}

/// That a runner stops.
#[derive(Clone, Default)]
pub(crate) struct Leaving(Arc<(AtomicBool, Notify)>);

impl Leaving {
    pub(crate) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify_waiters();
    }

    pub(crate) async fn wait(&self) {
        let told = self.0.1.notified();
        if !self.is_set() {
            told.await;
        }
    }
}

type Reload<S> = Arc<
    dyn Fn(Arc<TransitionContext<S>>) -> BoxFuture<'static, Result<Reloaded<S>, BoxError>>
        + Send
        + Sync,
>;

impl<S: State> FlowRunner<S> {
    /// A runner of a machine that has a store.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a machine without one.
    pub fn new(machine: &StateMachine<S>) -> Result<Self> {
        let contexts = machine.contexts().cloned().ok_or_else(|| {
            Error::invalid_argument(
                "machine",
                format!("{:?} has no store, so there is nothing to run", machine.name()),
            )
        })?;
        Ok(FlowRunner {
            machine: machine.clone(),
            contexts,
            concurrency: 16,
            tick: Duration::from_secs(1),
            retry: Duration::from_secs(1),
            grace: Duration::from_secs(30),
            max_attempts: MAX_ATTEMPTS,
            reload: None,
            wake: Arc::default(),
        })
    }

    /// So many transitions at a time; 16 unless told, at least one.
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most.max(1);
        self
    }

    /// How often to look for what other processes have sent; every second unless told.
    pub fn tick(mut self, span: Duration) -> Self {
        self.tick = span.max(Duration::from_millis(1));
        self
    }

    /// How long to leave a transition alone that could not go on, since its lock is taken or a
    /// backend away, or whose process has died more than once; a second unless told. It doubles with
    /// each try, up to a minute.
    pub fn retry(mut self, first: Duration) -> Self {
        self.retry = first.max(Duration::from_millis(1));
        self
    }

    /// How often a transition is claimed without getting on before it is
    /// [quarantined](crate::Status::Quarantined); 5 unless told, at least one.
    ///
    /// A claim is an attempt, since a process that dies can tell nothing afterwards; the count starts
    /// anew when an action completes, pauses or asks to be repeated. What is not the transition's
    /// fault is no attempt: a lock that somebody else has, a backend that is away, a graceful stop.
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.max_attempts = most.max(1);
        self
    }

    /// How long [stopping](Self::run_until) waits for actions that are running; 30 s unless told.
    pub fn grace(mut self, span: Duration) -> Self {
        self.grace = span;
        self
    }

    /// Looks up what has become of an entity whose transition was paused, so that it can go on also
    /// when its lock was lost meanwhile: see [`StateWorker::execute_or_reacquire`]. Without it such a
    /// transition stays paused until somebody resumes it by hand; the runner looks at it ever more
    /// seldom, and for that moment it is [busy](crate::ErrorKind::ContextBusy).
    ///
    /// [`StateWorker::execute_or_reacquire`]: crate::StateWorker::execute_or_reacquire
    pub fn reload<F, Fut>(mut self, reload: F) -> Self
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>> + Send + 'static,
    {
        self.reload = Some(Arc::new(move |context| Box::pin(reload(context))));
        self
    }

    /// Runs until `stop` is done. Then nothing new is begun; what is running ends after its present
    /// action and is left to other runners, who need not wait for it. An action that takes longer
    /// than the [grace](Self::grace) is dropped, and will be run again with the same idempotency key.
    ///
    /// Cancel safety: dropped midway, the actions that are running are dropped too, and other
    /// runners go on with them when their run-leases have ended.
    ///
    /// # Errors
    /// What the store reports if trying again will not help; all else is logged and tried again.
    pub async fn run_until(self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        rounds::run(self, stop).await
    }

    /// Runs in a task of its own, until the handle says stop or is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> RunnerHandle {
        let (stop, stopped) = oneshot::channel::<()>();
        let wake = self.wake.clone();
        let task = tokio::spawn(self.run_until(async {
            // Either a word or the end of the handle.
            let _ = stopped.await;
        }));
        RunnerHandle { stop: Some(stop), task, wake }
    }
}

impl<S: State> fmt::Debug for FlowRunner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowRunner")
            .field("machine", &self.machine.name())
            .field("store", &self.contexts.store_name())
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

/// A runner in a task of its own. Dropped, it asks the runner to stop, and does not wait for it.
#[must_use = "the runner stops when its handle is dropped"]
pub struct RunnerHandle {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
    wake: Arc<Notify>,
}

impl RunnerHandle {
    /// Claims what is due now, and not at the next tick: call it after a signal or a submit.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Whether it has ended by itself, for an error that will not pass.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops it as [`FlowRunner::run_until`] says, and waits for that.
    ///
    /// Cancel safe: it stops in any case.
    ///
    /// # Errors
    /// What ended it before.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        match self.task.await {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Ok(()), // the runtime is shutting down
            },
        }
    }
}

impl fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerHandle").field("finished", &self.is_finished()).finish()
    }
}
