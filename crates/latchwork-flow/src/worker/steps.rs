//! Gates and actions, one by one.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;

use super::lock::within;
use super::supervise::Ended;
use super::{Phase, StateWorker, Steps, emit};
use crate::action::Answer;
use crate::context::Plan;
use crate::error::{Chain, panic_text};
use crate::{
    ActionContext, ActionResult, ActionSkip, AnyAction, AnyGate, BoxError, Error, ErrorKind,
    EventKind, Execution, GateContext, GateEvaluation, GateResult, Pause, Result, State, Status,
};

impl<S: State> StateWorker<S> {
    /// The beginning of a transition: lock, then configuration.
    pub(super) async fn start(&mut self) -> Result<()> {
        if self.context.revision > 0 {
            self.claim().await?; // it was submitted
        }
        if let Err(error) = self.check_loader() {
            return Err(self.abandon_run(error).await);
        }
        let resumed = EventKind::TransitionStarting { resumed: false };
        emit(&self.machine, &self.context, &mut self.events, resumed);
        if self.cancelled.is_some() && self.handle_cancellation().await? {
            return Ok(());
        }
        match self.take_lock().await {
            Ok(true) => {}
            Ok(false) => return self.finish(Status::Skipped, None).await,
            Err(error) if self.context.revision > 0 && error.is_temporary() => {
                return Err(self.abandon_run(error).await); // it stays submitted
            }
            Err(error) => return Err(self.fail(error).await),
        }
        match self.load_entity().await {
            Ok(()) => {}
            Err(error) if self.guard.is_none() => return Err(error), // the lock was lost meanwhile
            Err(error) if self.context.revision > 0 && error.is_temporary() => {
                return Err(self.abandon_run(error).await);
            }
            Err(error) => return Err(self.fail(error).await),
        }
        let steps = match &self.machine.provider {
            None => Steps::All,
            Some(_) => match self.configured().await {
                Ok(script) => Steps::Own(script),
                Err(error) => return Err(self.fail(error).await),
            },
        };
        self.context_mut().status = Status::Running;
        self.steps = Some(steps);
        self.phase = Phase::Gates;
        Ok(())
    }

    /// Asks all gates of the transition, unless they have been. A denial ends it at once; a skip only
    /// counts when nobody after it denies.
    pub(super) async fn pass_gates(&mut self) -> Result<GateResult> {
        if self.phase == Phase::Actions {
            return Ok(GateResult::Allow);
        }
        let Some(steps) = &self.steps else { return Err(self.no_steps().await) };
        let script = steps.of(&self.machine).clone();
        if let Some(result) = self.evaluate_gates(&script.gates).await? {
            return Ok(result);
        }
        self.phase = Phase::Actions;
        // Only now: who finds a plan in a context need not ask the gates again.
        self.context_mut().plan = Some(match &self.machine.provider {
            None => Plan::All,
            Some(_) => Plan::Chosen { names: script.names(), first: 0 },
        });
        if script.actions.is_empty() {
            self.finish(Status::Completed, None).await?;
        } else if self.machine.store.is_some() {
            self.checkpoint().await?;
        }
        Ok(GateResult::Allow)
    }

    /// Asks gates of the transition. An answer is that of the one that has ended it.
    pub(super) async fn evaluate_gates(
        &mut self,
        gates: &[AnyGate<S>],
    ) -> Result<Option<GateResult>> {
        let mut skip = None;
        for gate in gates {
            let result = match self.evaluate_gate(gate, None).await {
                Ok(result) => result,
                Err(error) => return Err(self.fail(error).await),
            };
            match result {
                GateResult::Allow => {}
                GateResult::Deny(_) => {
                    let why = json!({"denied_by": &*gate.name, "message": result.message()});
                    self.finish(Status::Stopped, Some(why)).await?;
                    return Ok(Some(result));
                }
                GateResult::SkipIdempotent(_) => {
                    skip.get_or_insert((gate.name.clone(), result));
                }
            }
        }
        let Some((gate, result)) = skip else { return Ok(None) };
        let why = json!({"skipped_by": &*gate, "message": result.message()});
        self.finish(Status::Completed, Some(why)).await?;
        Ok(Some(result))
    }

    async fn evaluate_gate(
        &mut self,
        gate: &AnyGate<S>,
        action: Option<&Arc<str>>,
    ) -> Result<GateResult> {
        let before = action.map(|name| &**name);
        let asking = EventKind::GateEvaluating { gate: &gate.name, action: before };
        emit(&self.machine, &self.context, &mut self.events, asking);
        let scope = self.scope();
        let at = GateContext { state: self.context.need_state()?, delta: &self.context.delta };
        let now = || match &scope {
            Some(scope) => scope.call(|| gate.evaluate_now(at)),
            None => gate.evaluate_now(at),
        };
        let answer = match catch_unwind(AssertUnwindSafe(now)) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                let evaluating = within(scope.as_ref(), async { gate.evaluate(at).await });
                let asked = AssertUnwindSafe(evaluating).catch_unwind();
                self.in_time(gate.name.clone(), asked)
                    .await
                    .unwrap_or_else(|late| Ok(Err(late.into())))
            }
            Err(panic) => Err(panic),
        };
        let (reason, panicked, source) = match answer {
            Ok(Ok(result)) => {
                // Not before what came before: another thread may know an older tick.
                let now = self.machine.now().max(self.context.updated_at);
                let context = self.context_mut();
                context.updated_at = now;
                context.gates.push(GateEvaluation {
                    gate: gate.name.clone(),
                    action: action.cloned(),
                    verdict: result.verdict(),
                    message: result.message().map(str::to_owned),
                    at: now,
                });
                let kind =
                    EventKind::GateEvaluated { gate: &gate.name, action: before, result: &result };
                emit(&self.machine, &self.context, &mut self.events, kind);
                return Ok(result);
            }
            Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
            Err(panic) => (panic_text(&*panic), true, None),
        };
        let gate = gate.name.to_string();
        Err(ErrorKind::GateFailed { gate, reason, panicked, source }.into())
    }

    /// One action, or its skipping.
    pub(super) async fn step(&mut self) -> Result<()> {
        self.check_lock().await?;
        self.context.need_state()?;
        let index = self.context.next;
        let first = self.context.plan.as_ref().map_or(0, Plan::first);
        let Some(steps) = &self.steps else { return Err(self.no_steps().await) };
        let actions = &steps.of(&self.machine).actions;
        let Some(action) = actions.get(index - first) else {
            return self.complete().await;
        };
        let (planned, last) = (actions.len(), index - first + 1 == actions.len());
        if action.gate.is_some()
            && let Some(done) = self.check_action_gate(&action.clone(), last).await
        {
            return done;
        }
        let scope = self.scope();
        // Borrowed and not counted: whatever is counted costs, and this is done for each action.
        let Some(steps) = &self.steps else { return Ok(()) };
        let action = &steps.of(&self.machine).actions[index - first];
        let began = EventKind::ActionExecuting { action: &action.name, index };
        emit(&self.machine, &self.context, &mut self.events, began);
        let started_at = self.machine.now().max(self.context.updated_at);
        let result = match self.run_action(action, index, scope.as_ref()).await {
            Ended::Done(Ok(result)) => result,
            Ended::Done(Err(error)) => return Err(self.fail(error).await),
            Ended::Lost(error) if error.is_lock_loss() => {
                // It has outlasted its lock, and may do so each time.
                if let Some(run) = &mut self.run {
                    run.counts = true;
                }
                return Err(self.fail_lock_lost(error).await);
            }
            Ended::Lost(error) => return Err(self.abandon_run(error).await),
            Ended::Cancelled(reason) => return self.cancel_with(&reason).await,
            Ended::Leaving => {
                self.hand_back().await;
                return Ok(());
            }
        };
        let ended_at = self.machine.now().max(started_at);
        let context = Arc::make_mut(&mut self.context);
        let (execution, pause) = context.note(action, result, planned, started_at, ended_at);
        let took = match self.machine.observers.is_empty() {
            true => Duration::ZERO, // nobody will see it
            false => (ended_at - started_at).to_std().unwrap_or_default(),
        };
        let kind = EventKind::ActionExecuted { action: &action.name, index, execution, took };
        emit(&self.machine, &self.context, &mut self.events, kind);
        self.after_step(execution, pause, last).await
    }

    /// Goes on as an action wants.
    async fn after_step(
        &mut self,
        execution: Execution,
        pause: Option<Box<Pause>>,
        last: bool,
    ) -> Result<()> {
        match execution {
            Execution::Continue if last => self.complete().await,
            Execution::Continue if self.machine.store.is_none() => Ok(()),
            Execution::Continue => self.checkpoint().await,
            Execution::Stop => self.finish(Status::Stopped, None).await,
            Execution::Pause | Execution::Repeat => {
                self.pause(pause.map(|pause| *pause).unwrap_or_default()).await
            }
        }
    }

    /// Ends a run that does not know what to do: else it would go on doing nothing.
    async fn no_steps(&mut self) -> Error {
        self.abandon_run(Error::corrupt_context("it does not say which actions are left")).await
    }

    /// Asks an action's gate. Unless it allows, the answer is how the step ended.
    async fn check_action_gate(&mut self, action: &AnyAction<S>, last: bool) -> Option<Result<()>> {
        let gate = action.gate.as_ref()?;
        match self.evaluate_gate(gate, Some(&action.name)).await {
            Ok(GateResult::Allow) => None,
            Ok(result) => Some(self.skip(action, gate, &result, last).await),
            Err(error) => Some(Err(self.fail(error).await)),
        }
    }

    async fn skip(
        &mut self,
        action: &AnyAction<S>,
        gate: &AnyGate<S>,
        result: &GateResult,
        last: bool,
    ) -> Result<()> {
        let context = self.context_mut();
        let index = context.next;
        context.next += 1;
        context.skips.push(ActionSkip {
            action: action.name.clone(),
            index,
            gate: gate.name.clone(),
            verdict: result.verdict(),
            message: result.message().map(str::to_owned),
            at: context.updated_at,
        });
        let kind = EventKind::ActionSkipped { action: &action.name, index, result };
        emit(&self.machine, &self.context, &mut self.events, kind);
        if last { self.complete().await } else { Ok(()) }
    }

    /// Ends it as cancelled, if its claim said so.
    pub(super) async fn handle_cancellation(&mut self) -> Result<bool> {
        let Some(reason) = self.cancelled.take() else { return Ok(false) };
        self.forget_lock().await;
        self.cancel_with(&reason).await?;
        Ok(true)
    }

    /// Ends it as called off.
    pub(super) async fn cancel_with(&mut self, reason: &str) -> Result<()> {
        self.finish(Status::Cancelled, Some(json!({"cancelled": reason}))).await
    }
}

/// An action on its way.
pub(super) enum Started<'a, S: State> {
    Done(Result<ActionResult<S>>),
    Waits(Working<'a, S>),
}

/// An action that waits.
pub(super) struct Working<'a, S: State> {
    action: &'a AnyAction<S>,
    index: usize,
    /// There until it has ended.
    work: Option<BoxFuture<'a, Answer<S>>>,
    /// Whether it was looked at just now, by this very task.
    looked: bool,
}

impl<S: State> AnyAction<S> {
    /// Begins the action, and ends it if it need not wait. A panic is an error too (F4).
    ///
    /// Ready at once: there is a future only because an action must know which task to wake.
    #[inline]
    pub(super) fn start(
        &self,
        at: ActionContext<S>,
        index: usize,
    ) -> impl Future<Output = Started<'_, S>> {
        let mut at = Some(at);
        poll_fn(move |task| {
            let Some(at) = at.take() else { return Poll::Pending }; // it is polled once
            let mut answer = None;
            let begun = catch_unwind(AssertUnwindSafe(|| self.begin(at, task, &mut answer)));
            Poll::Ready(match (begun, answer) {
                (Err(panic), _) => Started::Done(Err(self.panicked(index, &*panic))),
                (Ok(_), Some(Ok(result))) => Started::Done(Ok(result)),
                (Ok(_), Some(Err(error))) => Started::Done(Err(self.failed(index, error))),
                (Ok(work), None) => {
                    Started::Waits(Working { action: self, index, work, looked: true })
                }
            })
        })
    }

    #[cold]
    fn failed(&self, index: usize, error: BoxError) -> Error {
        let (action, reason) = (self.name.to_string(), Chain(&*error).to_string());
        let (panicked, source) = (false, Some(error));
        ErrorKind::ActionFailed { action, index, reason, panicked, source }.into()
    }

    #[cold]
    fn panicked(&self, index: usize, panic: &(dyn Any + Send)) -> Error {
        let (action, reason) = (self.name.to_string(), panic_text(panic));
        let (panicked, source) = (true, None);
        ErrorKind::ActionFailed { action, index, reason, panicked, source }.into()
    }
}

impl<S: State> Future for Working<'_, S> {
    type Output = Result<ActionResult<S>>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.looked) {
            return Poll::Pending;
        }
        let (action, index) = (self.action, self.index);
        let look = || {
            let Some(work) = &mut self.work else { return Poll::Pending };
            let answer = work.as_mut().poll(task);
            if answer.is_ready() {
                self.work = None; // here, since its end may panic too
            }
            answer
        };
        match catch_unwind(AssertUnwindSafe(look)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(result))) => Poll::Ready(Ok(result)),
            Ok(Poll::Ready(Err(error))) => Poll::Ready(Err(action.failed(index, error))),
            Err(panic) => Poll::Ready(Err(action.panicked(index, &*panic))),
        }
    }
}

/// That a conflict is another's success.
pub(super) fn not_ours<S: State>(worker: &StateWorker<S>) -> Error {
    let (id, expected) = (worker.context.id, worker.context.revision);
    ErrorKind::ContextConflict { id, expected, found: None }.into()
}
