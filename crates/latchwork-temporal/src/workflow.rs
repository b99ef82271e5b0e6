//! The mutex as a workflow: one loop around the pure [state](crate::state).
//!
//! Signals change the state at once, in the order of the history. The loop tells workflows what became of
//! their requests, looks after holders while somebody waits, sleeps until something is due, ends when
//! nobody has used the mutex for a while, and continues as new before its history gets long.
//!
//! A timer costs two events of history, a signal one and a task three. So the loop keeps one timer and
//! starts another only if something is due before it: an uncontended lock starts none.
#![allow(missing_docs, reason = "the macros make constants of the methods")]

use std::time::{Duration, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::{FusedFuture, LocalBoxFuture};
use temporalio_common::data_converters::RawValue;
use temporalio_common::search_attributes::SearchAttributeKey;
use temporalio_common::{SignalDefinition, UntypedWorkflow};
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ContinueAsNewOptions, LocalActivityOptions, SyncWorkflowContext, TimerOptions,
    WaitConditionOptions, WorkflowCancellationToken, WorkflowContext, WorkflowContextView,
    WorkflowResult, WorkflowSignalError, workflows::join_all, workflows::select,
};

use crate::activities::{Beginning, MutexActivities, PreviousRun};
use crate::messages::{
    APPLY_SIGNAL, Batch, Id, MutexInput, MutexReply, MutexResult, MutexStatus, Operation,
    OperationKind, REPLY_SIGNAL, RESOURCE_ATTRIBUTE, StatusAnswer, StatusRequest, WORKFLOW_TYPE,
    keyword,
};
use crate::state::{Message, State, micros};

/// After how many operations a run continues as new, if the server does not suggest it before.
const OPERATIONS_PER_RUN: u64 = 2_000;

/// How long the look at the server may take. Without it the fence starts from the time only.
const LOOK_BACK: Duration = Duration::from_secs(5);

/// The workflow that is the mutex of one resource. Register it with a worker by
/// [`register`](crate::register), or let [`run_worker`](crate::run_worker) host it.
#[workflow]
pub struct MutexWorkflow {
    input: MutexInput,
    state: State,
    /// What came before the first fence was known.
    early: Option<Vec<Batch>>,
    /// Changes so far, to see whether there was one.
    changes: u64,
    /// Operations in this run.
    operations: u64,
    draining: bool,
}

#[workflow_methods]
impl MutexWorkflow {
    /// The state that the run starts with.
    #[init]
    pub fn new(ctx: &WorkflowContextView, mut input: MutexInput) -> Self {
        let started = ctx.start_time().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let started = started.map_or(0, micros);
        let carried = input.carried.take();
        let early = if carried.is_some() { None } else { Some(Vec::new()) };
        let state = carried.map_or_else(|| State::new(started, started), |state| *state);
        MutexWorkflow { input, state, early, changes: 0, operations: 0, draining: false }
    }

    /// Runs until nobody has needed the mutex for its idle timeout.
    #[run(name = WORKFLOW_TYPE)]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<MutexResult> {
        let ctx = &*ctx;
        if ctx.state(|mutex| mutex.early.is_some()) {
            let found = look_back(ctx).await;
            if found.has_attribute {
                const RESOURCE: SearchAttributeKey<String> =
                    SearchAttributeKey::<String>::keyword(RESOURCE_ATTRIBUTE);
                let resource = ctx.state(|mutex| keyword(&mutex.input.resource));
                // The runs that continue this one keep it.
                ctx.upsert_search_attributes([RESOURCE.value_set(resource)]);
            }
            let now = now(ctx);
            ctx.state_mut(|mutex| mutex.open(found.last_fence, now));
        }
        let idle_timeout =
            micros(Duration::from_millis(ctx.state(|mutex| mutex.input.idle_timeout_ms)));
        let mut timer = Timer::default();
        loop {
            let now = now(ctx);
            let messages = ctx.state_mut(|mutex| {
                mutex.state.settle(now);
                let mut messages = mutex.state.take_messages();
                messages.extend(mutex.state.take_probes(now));
                messages
            });
            if !messages.is_empty() {
                deliver(ctx, messages).await;
                continue;
            }
            if ctx.state(|mutex| mutex.state.is_over(idle_timeout, now)) {
                timer.stop();
                return Ok(MutexResult { last_fence: ctx.state(|mutex| mutex.state.last_fence()) });
            }
            if ctx.continue_as_new_suggested() || ctx.state(|mutex| mutex.is_long()) {
                ctx.state_mut(|mutex| mutex.draining = true);
                timer.stop();
                let next = ctx.state(|mutex| mutex.next_input());
                ctx.continue_as_new(next, ContinueAsNewOptions::default())?;
            }
            ctx.set_current_details(ctx.state(|mutex| mutex.state.summary()));
            let due = ctx.state(|mutex| mutex.state.next_wake(idle_timeout));
            timer.set(ctx, due, now);
            let seen = ctx.state(|mutex| mutex.changes);
            // A mutex that is cancelled goes on as long as somebody needs it: its holders would
            // lose it, and they did not ask for that. An operator who means it terminates it.
            let changed = ctx.wait_condition_with_options(
                move |mutex: &Self| mutex.changes != seen,
                detached_wait(),
            );
            let mut changed = std::pin::pin!(changed);
            let mut fired = std::pin::pin!(timer.fired());
            select! {
                _ = changed => {}
                () = fired => {}
            }
        }
    }

    /// Operations of clients and workflows.
    #[signal(name = APPLY_SIGNAL)]
    pub fn apply(&mut self, ctx: &mut SyncWorkflowContext<Self>, input: RawValue) {
        // Read by hand: a signal that cannot be read must not make the task fail again and again.
        let Some(batch) = input.payloads.first().and_then(|payload| read_batch(&payload.data))
        else {
            return;
        };
        self.changes += 1;
        self.operations += batch.operations.len() as u64;
        match &mut self.early {
            Some(early) => early.push(batch),
            None => self.state.apply(batch, time(ctx.workflow_time())),
        }
    }

    /// What clients ask for.
    #[query(name = "latchwork.mutex.answer")]
    pub fn answer(&self, _ctx: &WorkflowContextView, request: StatusRequest) -> StatusAnswer {
        self.state.answer(&request, self.draining)
    }

    /// Who holds and who waits, for people and tools.
    #[query]
    pub fn status(&self, _ctx: &WorkflowContextView) -> MutexStatus {
        let now = latchwork_lock::SystemClock::shared().wall().timestamp_micros();
        self.state.status(&self.input.resource, u64::try_from(now).unwrap_or(0))
    }
}

impl MutexWorkflow {
    /// The fence of earlier runs is known, where it can be: what has come so far is decided now.
    fn open(&mut self, last_fence: u64, now: u64) {
        let floor = self.state.last_fence().max(last_fence);
        self.state = State::new(floor, now);
        for batch in self.early.take().unwrap_or_default() {
            self.state.apply(batch, now);
        }
    }

    /// Whether its history is long enough to begin a new one.
    fn is_long(&self) -> bool {
        self.operations >= self.input.operations_per_run.unwrap_or(OPERATIONS_PER_RUN)
            && !self.state.has_messages()
    }

    /// What the next run goes on with.
    fn next_input(&self) -> MutexInput {
        MutexInput { carried: Some(Box::new(self.state.clone())), ..self.input.clone() }
    }
}

/// A batch in any version: of one that is not ours the ids are enough, to say so.
fn read_batch(data: &[u8]) -> Option<Batch> {
    if let Ok(batch) = serde_json::from_slice::<Batch>(data) {
        return Some(batch);
    }
    let value: serde_json::Value = serde_json::from_slice(data).ok()?;
    let version = value.get("version")?.as_u64()?;
    let operations = value.get("operations")?.as_array()?.iter();
    let operations = operations.filter_map(|operation| {
        let id: Id = serde_json::from_value(operation.get("id")?.clone()).ok()?;
        Some(Operation { id, kind: OperationKind::Unknown })
    });
    Some(Batch {
        version: u32::try_from(version).unwrap_or(u32::MAX),
        operations: operations.collect(),
    })
}

/// The highest fence of the run before this one, which has ended, and what the server has.
///
/// For the fence the time alone would do, as long as the server's clock never goes back; this is for where it
/// did.
async fn look_back(ctx: &WorkflowContext<MutexWorkflow>) -> Beginning {
    let options = LocalActivityOptions::builder()
        .schedule_to_close_timeout(LOOK_BACK)
        .cancellation_token(WorkflowCancellationToken::new())
        .build();
    let before =
        PreviousRun { workflow_id: ctx.workflow_id().to_owned(), run_id: ctx.run_id().to_owned() };
    let found = ctx.execute_local_activity(MutexActivities::begin, before, options).await;
    found.unwrap_or_default()
}

/// Sends messages to workflows, all at once, and notes which of them are gone.
async fn deliver(ctx: &WorkflowContext<MutexWorkflow>, messages: Vec<Message>) {
    let sent = messages.into_iter().map(|mut message| {
        if let crate::messages::ReplyKind::Confirm { mutex } = &mut message.reply.kind {
            ctx.workflow_id().clone_into(mutex);
        }
        let workflow = ctx.external_workflow(message.workflow_id.clone(), message.run_id.clone());
        let options = temporalio_sdk::SignalWorkflowOptions::builder()
            .cancellation_token(WorkflowCancellationToken::new())
            .build();
        async move {
            let result = workflow.signal(ReplySignal, message.reply.clone(), options).await;
            (message, result)
        }
    });
    let sent = join_all(sent).await;
    let now = now(ctx);
    ctx.state_mut(|mutex| {
        mutex.changes += 1;
        for (message, result) in sent {
            match result {
                Err(WorkflowSignalError::NotFound(_)) => mutex.state.undelivered(&message, now),
                // Whatever else is wrong is not known to be final, and the holder's timeout ends it.
                Ok(()) | Err(_) => mutex.state.delivered(&message),
            }
        }
    });
}

fn now<W>(ctx: &WorkflowContext<W>) -> u64 {
    time(ctx.workflow_time())
}

/// The server's time in microseconds.
pub(crate) fn time(time: Option<std::time::SystemTime>) -> u64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, micros)
}

/// A wait that outlives the cancellation of its workflow.
pub(crate) fn detached_wait() -> WaitConditionOptions {
    WaitConditionOptions::builder().cancellation_token(WorkflowCancellationToken::new()).build()
}

/// The signal to a workflow that has asked.
struct ReplySignal;

impl SignalDefinition for ReplySignal {
    type Workflow = UntypedWorkflow;
    type Input = MutexReply;

    fn name(&self) -> &str {
        REPLY_SIGNAL
    }
}

/// The one timer of the loop.
#[derive(Default)]
struct Timer<'a> {
    running: Option<RunningTimer<'a>>,
}

struct RunningTimer<'a> {
    due: u64,
    token: WorkflowCancellationToken,
    fired: LocalBoxFuture<'a, ()>,
}

impl<'a> Timer<'a> {
    /// Makes sure that it fires at this time, or before.
    fn set(&mut self, ctx: &'a WorkflowContext<MutexWorkflow>, due: u64, now: u64) {
        if due == u64::MAX || self.running.as_ref().is_some_and(|timer| timer.due <= due) {
            return;
        }
        self.stop();
        let token = WorkflowCancellationToken::new();
        // A timer counts in milliseconds, and one that fires too early would only be set again.
        let span = Duration::from_millis(due.saturating_sub(now).div_ceil(1_000).max(1));
        let options = TimerOptions::builder(span).cancellation_token(token.clone()).build();
        let fired = ctx.timer(options).map(|_| ()).boxed_local();
        self.running = Some(RunningTimer { due, token, fired });
    }

    /// Cancels it.
    fn stop(&mut self) {
        if let Some(timer) = self.running.take() {
            timer.token.cancel();
        }
    }

    /// Ends when it has fired; never, where there is none.
    fn fired(&mut self) -> impl FusedFuture<Output = ()> + '_ {
        async {
            match &mut self.running {
                Some(timer) => (&mut timer.fired).await,
                None => std::future::pending().await,
            }
            self.running = None;
        }
        .fuse()
    }
}
