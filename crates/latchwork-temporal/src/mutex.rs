//! The lock as workflows use it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use latchwork_lock::{DEFAULT_PREFIX, Key, Mode, Owner};
use temporalio_sdk::workflows::select;
use temporalio_sdk::{
    LocalActivityOptions, SignalWorkflowOptions, TimerOptions, WorkflowCancellationToken,
    WorkflowContext, WorkflowSignalError,
};

use crate::activities::{MutexActivities, SendAnswer, SendRequest};
use crate::client::DEFAULT_IDLE_TIMEOUT;
use crate::messages::{
    Acquire, Batch, Caller, Id, MutexReply, Operation, OperationKind, Outcome, Patience, ReplyKind,
    VERSION, workflow_id,
};
use crate::state::micros;
use crate::worker::DEFAULT_TASK_QUEUE;
use crate::workflow::{MutexWorkflow, detached_wait, time};
use crate::{Error, ErrorKind, Result};

/// How to lock a resource.
///
/// ```
/// # use latchwork_temporal::MutexOptions;
/// use std::time::Duration;
///
/// let options = MutexOptions::resource("repo:42")
///     .task_queue("locks")
///     .wait(Duration::from_secs(60))
///     .holder_timeout(Duration::from_secs(900));
/// ```
#[derive(Clone, Debug)]
pub struct MutexOptions {
    resource: String,
    prefix: String,
    task_queue: String,
    mode: Mode,
    owner: Option<String>,
    note: Option<String>,
    wait: Option<Duration>,
    holder_timeout: Duration,
    holder_grace: Duration,
    idle_timeout: Duration,
    ready_timeout: Duration,
}

impl MutexOptions {
    /// Locks this resource exclusively, and waits for it as long as it takes.
    pub fn resource(name: impl Into<String>) -> Self {
        MutexOptions {
            resource: name.into(),
            prefix: DEFAULT_PREFIX.to_owned(),
            task_queue: DEFAULT_TASK_QUEUE.to_owned(),
            mode: Mode::Exclusive,
            owner: None,
            note: None,
            wait: None,
            holder_timeout: Duration::from_secs(300),
            holder_grace: Duration::from_secs(10),
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            ready_timeout: Duration::from_secs(10),
        }
    }

    /// Shares the lock with others who share it.
    #[must_use]
    pub fn shared(self) -> Self {
        MutexOptions { mode: Mode::Shared, ..self }
    }

    /// The task queue of the workers that run mutexes; `latchwork` unless told.
    #[must_use]
    pub fn task_queue(self, task_queue: impl Into<String>) -> Self {
        MutexOptions { task_queue: task_queue.into(), ..self }
    }

    /// What stands before the name, for locks that are apart from others; that of
    /// [`Locks`](latchwork_lock::Locks) unless told, so that plain programs and workflows exclude each
    /// other.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        MutexOptions { prefix: prefix.into(), ..self }
    }

    /// How long to wait for the lock. Without it as long as it takes.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        MutexOptions { wait: Some(wait), ..self }
    }

    /// How long the lock may be held; then it is another's turn, and the closure is dropped. Five minutes
    /// unless told.
    #[must_use]
    pub fn holder_timeout(self, holder_timeout: Duration) -> Self {
        MutexOptions { holder_timeout, ..self }
    }

    /// How long the lock stays taken after its holder has ended without releasing it, since its activities
    /// may still run; ten seconds unless told, and zero is allowed. It counts from when the mutex found out,
    /// which it does while somebody waits.
    #[must_use]
    pub fn holder_grace(self, holder_grace: Duration) -> Self {
        MutexOptions { holder_grace, ..self }
    }

    /// How long a mutex stays although nobody uses it; ten minutes unless told. The one who starts it
    /// decides.
    #[must_use]
    pub fn idle_timeout(self, idle_timeout: Duration) -> Self {
        MutexOptions { idle_timeout, ..self }
    }

    /// How long [`Mutex::new`] waits for the mutex to answer; ten seconds unless told.
    #[must_use]
    pub fn ready_timeout(self, ready_timeout: Duration) -> Self {
        MutexOptions { ready_timeout, ..self }
    }

    /// Names an owner. A request of the owner who holds the lock takes it over (L7).
    #[must_use]
    pub fn owner(self, owner: impl Into<String>) -> Self {
        MutexOptions { owner: Some(owner.into()), ..self }
    }

    /// What is shown of the holder beside its workflow's id.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        MutexOptions { note: Some(note.into()), ..self }
    }

    /// The name with its prefix.
    fn check(&self) -> Result<String> {
        let invalid = |name: &str, error: latchwork_lock::Error| {
            use latchwork_lock::ErrorKind as Kind;
            Error::invalid(
                name,
                match error.kind() {
                    Kind::InvalidKey { reason, .. } | Kind::InvalidArgument { reason, .. } => {
                        reason.clone()
                    }
                    _ => error.to_string(),
                },
            )
        };
        Key::new(&self.resource).map_err(|error| invalid("resource", error))?;
        if self.prefix.len() > latchwork_lock::MAX_PREFIX_BYTES {
            return Err(Error::invalid("prefix", "it is too long"));
        }
        for (name, text) in [("owner", &self.owner), ("note", &self.note)] {
            if let Some(text) = text {
                Owner::new(text).map_err(|error| invalid(name, error))?;
            }
        }
        if self.task_queue.is_empty() {
            return Err(Error::invalid("task_queue", "it is empty"));
        }
        for (name, span) in [
            ("holder_timeout", self.holder_timeout),
            ("idle_timeout", self.idle_timeout),
            ("ready_timeout", self.ready_timeout),
        ] {
            if span < Duration::from_millis(100) || span > latchwork_lock::MAX_TTL {
                let reason = format!("{span:?} is not between 100 ms and a year");
                return Err(Error::invalid(name, reason));
            }
        }
        Ok(format!("{}{}", self.prefix, self.resource))
    }
}

/// Where a workflow gets the answers of mutexes. It has one in its state, and a signal that fills it:
///
/// ```
/// use latchwork_temporal::{HasMutexInbox, MutexInbox, MutexReply, REPLY_SIGNAL};
/// use temporalio_macros::{workflow, workflow_methods};
/// use temporalio_sdk::{SyncWorkflowContext, WorkflowContext, WorkflowResult};
///
/// #[workflow]
/// #[derive(Default)]
/// pub struct Deploy {
///     inbox: MutexInbox,
/// }
///
/// #[workflow_methods]
/// impl Deploy {
///     #[run]
///     pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<()> {
///         // Mutex::new(ctx, …).await?.on_acquire(ctx, …).await?
///         Ok(())
///     }
///
///     #[signal(name = REPLY_SIGNAL)]
///     pub fn mutex_reply(&mut self, _ctx: &mut SyncWorkflowContext<Self>, reply: MutexReply) {
///         self.inbox.deliver(reply);
///     }
/// }
///
/// impl HasMutexInbox for Deploy {
///     fn mutex_inbox(&self) -> &MutexInbox {
///         &self.inbox
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct MutexInbox {
    replies: RefCell<HashMap<Id, VecDeque<ReplyKind>>>,
}

/// A workflow that locks.
pub trait HasMutexInbox: 'static {
    /// Its inbox.
    fn mutex_inbox(&self) -> &MutexInbox;
}

impl MutexInbox {
    /// Takes what a mutex has sent.
    pub fn deliver(&mut self, reply: MutexReply) {
        // Of requests that were given up nothing is kept.
        if let Some(replies) = self.replies.get_mut().get_mut(&reply.lease) {
            replies.push_back(reply.kind);
        }
    }

    fn open(&self, lease: Id) {
        self.replies.borrow_mut().insert(lease, VecDeque::new());
    }

    fn close(&self, lease: Id) {
        self.replies.borrow_mut().remove(&lease);
    }

    fn has_reply(&self, lease: Id) -> bool {
        self.replies.borrow().get(&lease).is_some_and(|replies| !replies.is_empty())
    }

    fn next(&self, lease: Id) -> Option<ReplyKind> {
        self.replies.borrow_mut().get_mut(&lease)?.pop_front()
    }
}

/// The lock of one resource, for workflows.
///
/// The workflow has a [`MutexInbox`], and its worker has the activities of this crate
/// ([`register_caller`](crate::register_caller)).
#[derive(Clone, Debug)]
pub struct Mutex {
    options: MutexOptions,
    resource: String,
}

/// What a closure knows of the lock that it runs under.
#[derive(Clone, Debug)]
pub struct HeldMutex {
    fence: u64,
    previous_fence: Option<u64>,
    ends: WorkflowCancellationToken,
}

impl HeldMutex {
    /// The number to send with each write: every grant has a higher one.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The fence of the grant before, where the mutex still knows it.
    pub fn previous_fence(&self) -> Option<u64> {
        self.previous_fence
    }

    /// Ends with the lock, and with the workflow's cancellation: give it to the activities of the critical
    /// section, so that they are cancelled when the lock is lost.
    pub fn cancellation_token(&self) -> WorkflowCancellationToken {
        self.ends.clone()
    }
}

/// How the wait for a grant ended.
enum Waited {
    Ready,
    Granted { fence: u64, previous_fence: Option<u64>, expires_us: u64 },
    TooLong,
    Cancelled,
    Lost,
    Refused,
}

impl Mutex {
    /// Checks the options, starts the mutex where there is none, and waits until it answers. What is wrong
    /// is said here, and not when the lock is wanted: no worker on the task queue, a foreign workflow
    /// under the id of the mutex, an unreachable server.
    ///
    /// # Errors
    /// [`InvalidOption`](ErrorKind::InvalidOption), [`NoWorker`](ErrorKind::NoWorker),
    /// [`ForeignWorkflow`](ErrorKind::ForeignWorkflow), [`Unreachable`](ErrorKind::Unreachable) and the like.
    pub async fn new<W: HasMutexInbox>(
        ctx: &WorkflowContext<W>,
        options: MutexOptions,
    ) -> Result<Self> {
        let resource = options.check()?;
        let mutex = Mutex { options, resource };
        mutex.ready(ctx).await?;
        Ok(mutex)
    }

    /// Waits until the mutex answers. It does so by a signal, as for a grant: a local activity that waited for
    /// it would keep a slot of the worker, and where a hundred callers wait for mutexes of the same worker, those
    /// need slots too.
    async fn ready<W: HasMutexInbox>(&self, ctx: &WorkflowContext<W>) -> Result<()> {
        let lease = new_id(ctx);
        ctx.state(|workflow| workflow.mutex_inbox().open(lease));
        let ready = self.greeted(ctx, lease).await;
        ctx.state(|workflow| workflow.mutex_inbox().close(lease));
        ready
    }

    async fn greeted<W: HasMutexInbox>(&self, ctx: &WorkflowContext<W>, lease: Id) -> Result<()> {
        let kind = OperationKind::Hello { lease, workflow: self.caller(ctx) };
        let operation = Operation { id: new_id(ctx), kind };
        let began = time(ctx.workflow_time());
        let limit = self.options.ready_timeout;
        let mut part = FIRST_PART;
        loop {
            let spent = Duration::from_micros(time(ctx.workflow_time()).saturating_sub(began));
            let left = limit.saturating_sub(spent).max(Duration::from_millis(1));
            let sent = match self.send(ctx, operation.clone(), false, left.min(LONGEST_PART)).await
            {
                Err(error) if !error.is_temporary() => return Err(error),
                sent => sent.map(|_| ()),
            };
            match self.answer(ctx, lease, part.min(left)).await {
                Waited::Ready => return Ok(()),
                Waited::Cancelled => {
                    return Err(ErrorKind::Cancelled { resource: self.resource.clone() }.into());
                }
                _ => {}
            }
            // Why it does not: what is certain is said now, and the rest when the time is over.
            let asked = match sent {
                Ok(()) => self.send(ctx, operation.clone(), true, ASK).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(Some(Outcome::Ready)) => return Ok(()),
                Ok(_) => return Err(ErrorKind::Unsupported {}.into()),
                Err(error) if left <= part || !error.is_temporary() => return Err(error),
                Err(_) => part = (part * 2).min(LONGEST_PART),
            }
        }
    }

    /// Waits for the answer to a greeting.
    async fn answer<W: HasMutexInbox>(
        &self,
        ctx: &WorkflowContext<W>,
        lease: Id,
        span: Duration,
    ) -> Waited {
        let token = WorkflowCancellationToken::new();
        let mut timed_out = std::pin::pin!(pause(ctx, Some(span), &token).fuse());
        let mut cancelled = std::pin::pin!(ctx.cancelled());
        let replied = ctx.wait_condition_with_options(
            move |workflow: &W| workflow.mutex_inbox().has_reply(lease),
            detached_wait(),
        );
        let mut replied = std::pin::pin!(replied);
        let waited = select! {
            _ = replied => Waited::Ready,
            _ = cancelled => Waited::Cancelled,
            () = timed_out => Waited::TooLong,
        };
        token.cancel();
        waited
    }

    /// How a mutex reaches this workflow.
    fn caller<W>(&self, ctx: &WorkflowContext<W>) -> Caller {
        Caller {
            workflow_id: ctx.workflow_id().to_owned(),
            run_id: ctx.run_id().to_owned(),
            grace_us: micros(self.options.holder_grace),
        }
    }

    /// Waits for the lock, runs the closure under it, and releases it when the closure returns or panics. The
    /// release is awaited before this returns.
    ///
    /// A workflow that is cancelled while it waits leaves the queue. One that is cancelled under the lock has its
    /// timers and activities end in the closure, which decides what is left to do and then returns.
    ///
    /// When the lock is lost meanwhile (its holder timeout has passed, or an operator broke it), the closure's
    /// future is dropped at its next await.
    ///
    /// Not cancel safe: a future of this that is dropped halfway, as the loser of a `select!` is, leaves its
    /// request or its lock behind, until the holder timeout ends it. To give up a wait, use
    /// [`MutexOptions::wait`].
    ///
    /// # Errors
    /// Only what is wrong with the lock: [`Taken`](ErrorKind::Taken), [`Lost`](ErrorKind::Lost),
    /// [`Cancelled`](ErrorKind::Cancelled), [`Unreachable`](ErrorKind::Unreachable). What the closure returns
    /// is the closure's own.
    ///
    /// # Panics
    /// With the closure's own panic, after the release.
    pub async fn on_acquire<W, T, F>(
        &self,
        ctx: &WorkflowContext<W>,
        work: impl FnOnce(HeldMutex) -> F,
    ) -> Result<T>
    where
        W: HasMutexInbox,
        F: Future<Output = T>,
    {
        let lease = new_id(ctx);
        ctx.state(|workflow| workflow.mutex_inbox().open(lease));
        let result = self.locked(ctx, lease, work).await;
        ctx.state(|workflow| workflow.mutex_inbox().close(lease));
        match result {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(error),
        }
    }

    async fn locked<W, T, F>(
        &self,
        ctx: &WorkflowContext<W>,
        lease: Id,
        work: impl FnOnce(HeldMutex) -> F,
    ) -> Result<std::thread::Result<T>>
    where
        W: HasMutexInbox,
        F: Future<Output = T>,
    {
        let began = time(ctx.workflow_time());
        let acquire = OperationKind::Acquire(Acquire {
            lease,
            mode: self.options.mode,
            owner: self.options.owner.clone(),
            process: ctx.workflow_id().to_owned(),
            note: self.options.note.clone(),
            ttl_us: micros(self.options.holder_timeout),
            wait: match self.options.wait {
                // The mutex gives up after the workflow has.
                Some(wait) => Patience::ForMicros(micros(wait.saturating_add(SLACK))),
                None => Patience::Forever,
            },
            again: false,
            workflow: Some(self.caller(ctx)),
        });
        let operation = Operation { id: new_id(ctx), kind: acquire.clone() };
        let limit = self.options.ready_timeout;
        if let Err(error) = self.send(ctx, operation, false, limit).await {
            // It may have arrived all the same.
            self.release(ctx, lease).await;
            return Err(error);
        }
        let resource = self.resource.clone();
        let waited = self.wait(ctx, lease, acquire).await;
        let Waited::Granted { fence, previous_fence, expires_us } = waited else {
            self.release(ctx, lease).await;
            let span = time(ctx.workflow_time()).saturating_sub(began);
            return Err(match waited {
                Waited::Cancelled => ErrorKind::Cancelled { resource }.into(),
                _ => ErrorKind::Taken { resource, waited: Duration::from_micros(span) }.into(),
            });
        };
        let ends = ctx.cancellation_token().child_token();
        let held = HeldMutex { fence, previous_fence, ends: ends.clone() };
        // The closure itself may panic, too, before it gives a future.
        let timer = WorkflowCancellationToken::new();
        let done = {
            let work = AssertUnwindSafe(async move { work(held).await }).catch_unwind().fuse();
            let mut work = std::pin::pin!(work);
            let mut lost = std::pin::pin!(self.lost(ctx, lease, expires_us, timer.clone()).fuse());
            select! {
                done = work => Some(done),
                () = lost => None,
            }
        };
        timer.cancel();
        ends.cancel_with_reason("the lock has ended");
        self.release(ctx, lease).await;
        done.ok_or_else(|| ErrorKind::Lost { resource, fence }.into())
    }

    /// Ends when the request was granted, or is given up.
    ///
    /// A request that waits long is sent again now and then: a mutex that knows it does nothing, and one that
    /// was terminated and started anew has forgotten it.
    async fn wait<W: HasMutexInbox>(
        &self,
        ctx: &WorkflowContext<W>,
        lease: Id,
        acquire: OperationKind,
    ) -> Waited {
        let token = WorkflowCancellationToken::new();
        let span = self.options.wait;
        let mut timed_out = std::pin::pin!(pause(ctx, span, &token).fuse());
        let remind = span.is_none_or(|span| span > REMIND).then_some(REMIND);
        let mut due = Box::pin(pause(ctx, remind, &token).fuse());
        let mut cancelled = std::pin::pin!(ctx.cancelled());
        let waited = loop {
            let replied = ctx.wait_condition_with_options(
                move |workflow: &W| workflow.mutex_inbox().has_reply(lease),
                detached_wait(),
            );
            let mut replied = std::pin::pin!(replied);
            select! {
                _ = replied => {}
                _ = cancelled => break Waited::Cancelled,
                () = timed_out => break Waited::TooLong,
                () = due => {
                    let operation = Operation { id: new_id(ctx), kind: acquire.clone() };
                    // What fails now is tried again the next time.
                    let limit = self.options.ready_timeout;
                    let _ = self.send(ctx, operation, false, limit).await;
                    due = Box::pin(pause(ctx, remind, &token).fuse());
                }
            }
            match ctx.state(|workflow| workflow.mutex_inbox().next(lease)) {
                Some(ReplyKind::Granted { fence, previous_fence, expires_us }) => {
                    break Waited::Granted { fence, previous_fence, expires_us };
                }
                Some(ReplyKind::Lost) => break Waited::Lost,
                Some(ReplyKind::Refused) => break Waited::Refused,
                Some(_) | None => {}
            }
        };
        token.cancel();
        waited
    }

    /// Ends when the lock has; meanwhile it answers the mutex.
    async fn lost<W: HasMutexInbox>(
        &self,
        ctx: &WorkflowContext<W>,
        lease: Id,
        expires_us: u64,
        timer: WorkflowCancellationToken,
    ) {
        let left = Duration::from_micros(expires_us.saturating_sub(time(ctx.workflow_time())));
        // A server's timers may be late, and so may the worker be.
        let left = left.saturating_sub(latchwork_lock::provider::trust_margin(left));
        let left = left.max(Duration::from_millis(1));
        let options = TimerOptions::builder(left).cancellation_token(timer).build();
        let mut expired = std::pin::pin!(ctx.timer(options));
        loop {
            let replied = ctx.wait_condition_with_options(
                move |workflow: &W| workflow.mutex_inbox().has_reply(lease),
                detached_wait(),
            );
            let mut replied = std::pin::pin!(replied);
            select! {
                _ = replied => {}
                _ = expired => return,
            }
            match ctx.state(|workflow| workflow.mutex_inbox().next(lease)) {
                Some(ReplyKind::Lost) => return,
                Some(ReplyKind::Confirm { .. }) => {
                    let run_id = ctx.run_id().to_owned();
                    let kind = OperationKind::Confirm { lease, run_id };
                    let _ = self.signal(ctx, Operation { id: new_id(ctx), kind }).await;
                }
                Some(_) | None => {}
            }
        }
    }

    /// Ends the lease, or leaves the queue. A mutex that is not there has nothing to end.
    async fn release<W>(&self, ctx: &WorkflowContext<W>, lease: Id) {
        let operation = Operation { id: new_id(ctx), kind: OperationKind::Release { lease } };
        if let Err(error) = self.signal(ctx, operation).await
            && !matches!(error, WorkflowSignalError::NotFound(_))
        {
            tracing::warn!(
                resource = self.resource,
                %error,
                "a release could not be sent; the holder timeout ends the lock"
            );
        }
    }

    /// By the workflow's id and never by a run's, since the mutex continues as new.
    async fn signal<W>(
        &self,
        ctx: &WorkflowContext<W>,
        operation: Operation,
    ) -> Result<(), WorkflowSignalError> {
        let batch = Batch { version: VERSION, operations: vec![operation] };
        let mutex = ctx.external_workflow(workflow_id(&self.resource), None);
        let options = SignalWorkflowOptions::builder()
            .cancellation_token(WorkflowCancellationToken::new())
            .build();
        mutex.signal(ApplySignal, batch, options).await
    }

    /// Has the worker send an operation by a signal that also starts the mutex.
    async fn send<W>(
        &self,
        ctx: &WorkflowContext<W>,
        operation: Operation,
        answer: bool,
        limit: Duration,
    ) -> Result<Option<Outcome>> {
        let request = SendRequest {
            resource: self.resource.clone(),
            task_queue: self.options.task_queue.clone(),
            idle_timeout_ms: micros(self.options.idle_timeout) / 1_000,
            operation,
            answer,
            limit_ms: micros(limit) / 1_000,
        };
        let options = LocalActivityOptions::builder()
            .start_to_close_timeout(limit.saturating_add(SLACK))
            .schedule_to_close_timeout(limit.saturating_add(SLACK) * 2)
            .cancellation_token(WorkflowCancellationToken::new())
            .build();
        match ctx.execute_local_activity(MutexActivities::send, request, options).await {
            Ok(SendAnswer::Sent(outcome)) => Ok(outcome),
            Ok(SendAnswer::Failed(kind)) => Err(kind.into()),
            Err(error) => Err(Error::unreachable("signalling", error.to_string())),
        }
    }
}

/// Ends after a span; never without one.
async fn pause<W>(
    ctx: &WorkflowContext<W>,
    span: Option<Duration>,
    token: &WorkflowCancellationToken,
) {
    match span {
        Some(span) => {
            let options = TimerOptions::builder(span).cancellation_token(token.clone()).build();
            ctx.timer(options).await;
        }
        None => std::future::pending().await,
    }
}

/// How long a mutex may take to answer before its caller looks for the reason; it is doubled from time to time.
const FIRST_PART: Duration = Duration::from_secs(2);
const LONGEST_PART: Duration = Duration::from_secs(8);

/// How long such a look waits for an answer of the mutex.
const ASK: Duration = Duration::from_millis(500);

/// How often a request that waits is sent again.
const REMIND: Duration = Duration::from_secs(600);

/// What the other side gets more of.
const SLACK: Duration = Duration::from_secs(5);

fn new_id<W>(ctx: &WorkflowContext<W>) -> Id {
    Id::of(ctx.uuid4().as_bytes())
}

/// The signal to a mutex.
struct ApplySignal;

impl temporalio_common::SignalDefinition for ApplySignal {
    type Workflow = <MutexWorkflow as temporalio_common::HasWorkflowDefinition>::Run;
    type Input = Batch;

    fn name(&self) -> &str {
        crate::messages::APPLY_SIGNAL
    }
}

impl fmt::Display for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)
    }
}
