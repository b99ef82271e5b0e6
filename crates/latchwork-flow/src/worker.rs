//! One transition on its way.

mod entity;
mod lock;
mod persist;
mod resume;
mod run;
mod steps;
mod supervise;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use latchwork_lock::{Guard, LockState, Refresh};
use serde_json::Value;

use crate::configuration::Script;
use crate::context::Plan;
use crate::error::Chain;
use crate::heartbeat::Calls;
use crate::machine::Machine;
use crate::runner::RunTerms;
use crate::store::Due;
use crate::{
    BoxError, Error, ErrorKind, EventKind, Failure, GateResult, PauseLock, Result, State, Status,
    TransitionContext,
};

pub use resume::Reloaded;
use run::Run;

use entity::NoReload;

/// One transition on its way: made by [`StateMachine::transition`](crate::StateMachine::transition)
/// and [`StateMachine::from_context`](crate::StateMachine::from_context).
///
/// [`execute`](Self::execute) does all of it. [`run_gates`](Self::run_gates),
/// [`run_actions`](Self::run_actions) and [`run_next_action`](Self::run_next_action) go step by step:
/// the first step takes the lock, each later one checks first that it is still held.
///
/// Cancel safety of all of them: dropped midway, the action that was running is dropped at its await,
/// the lock is released as by a drop of its guard, also when the worker is kept, and a store keeps the
/// context as it was after the last action that was saved; a runner goes on from there when the
/// run-lease has ended.
pub struct StateWorker<S: State> {
    machine: Arc<Machine<S>>,
    context: Arc<TransitionContext<S>>,
    steps: Option<Steps<S>>,
    guard: Option<Guard>,
    /// The right to save.
    run: Option<Box<Run>>,
    /// Whether somebody waits for it: only then its run-lease is kept alive.
    calls: Calls,
    phase: Phase,
    /// Whether a call was dropped midway, so that others may have taken the run-lease since.
    interrupted: bool,
    /// Why a claimed context was due.
    due: Option<Box<Due>>,
    /// Why a claimed context is to be called off.
    cancelled: Option<String>,
    used_signal: Option<u64>,
    events: u64,
    /// What its runner wants of it.
    terms: Option<Box<RunTerms>>,
}

/// Where a worker is in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no run: the next call begins one.
    Idle,
    /// The lock is held, and the gates are to be asked.
    Gates,
    /// The gates have allowed it, and actions are to be run.
    Actions,
    /// This worker has paused it: the next call resumes it.
    Paused,
    /// The lock ended under this worker, whose state may be stale since.
    LockLost,
}

/// Which gates and actions a run has.
enum Steps<S: State> {
    /// Those of its machine.
    All,
    Own(Arc<Script<S>>),
}

impl<S: State> Steps<S> {
    fn of<'a>(&'a self, machine: &'a Machine<S>) -> &'a Arc<Script<S>> {
        match self {
            Steps::All => &machine.all,
            Steps::Own(script) => script,
        }
    }
}

impl<S: State> StateWorker<S> {
    pub(crate) fn new(machine: Arc<Machine<S>>, context: Arc<TransitionContext<S>>) -> Self {
        StateWorker {
            machine,
            context,
            steps: None,
            guard: None,
            run: None,
            calls: Calls::default(),
            phase: Phase::Idle,
            interrupted: false,
            due: None,
            cancelled: None,
            used_signal: None,
            events: 0,
            terms: None,
        }
    }

    /// What a runner wants of it.
    pub(crate) fn set_terms(&mut self, terms: RunTerms) {
        self.terms = Some(Box::new(terms));
    }

    pub(crate) fn resumed(
        machine: Arc<Machine<S>>,
        mut context: TransitionContext<S>,
        script: Script<S>,
    ) -> Self {
        let (events, planned) = (context.events, context.plan.is_some());
        if planned {
            // The script has what is left, and the plan must begin there too.
            context.plan = Some(Plan::Chosen { names: script.names(), first: context.next });
        }
        let mut worker = Self::new(machine, Arc::new(context));
        worker.events = events;
        if planned {
            worker.steps = Some(Steps::Own(Arc::new(script)));
        }
        worker
    }

    /// Does all of it: takes the lock, asks the gates, runs the actions, and releases the lock unless
    /// an action paused. Of a paused transition, all that is left.
    ///
    /// The context says how it ended; a denial, a stop and a pause are no errors.
    ///
    /// # Errors
    /// Whatever a gate, an action or a provider failed with (the transition is then failed and its
    /// lock released), those of the lock ([`LockAcquisition`](latchwork_lock::ErrorKind::LockAcquisition),
    /// [`LockLost`](latchwork_lock::ErrorKind::LockLost),
    /// [`LockExpired`](latchwork_lock::ErrorKind::LockExpired)), those of the store, and
    /// [`TransitionOver`](ErrorKind::TransitionOver) for one that has ended.
    pub async fn execute(&mut self) -> Result<Arc<TransitionContext<S>>> {
        let mut run = RunScope::new(self);
        run.run_to_end(None::<&NoReload<S>>).await?;
        Ok(run.end().context.clone())
    }

    /// The first step only: takes the lock and asks the gates of the transition. Allowed, the lock
    /// stays held for the steps to come.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub async fn run_gates(&mut self) -> Result<GateResult> {
        let _call = self.calls.begin();
        let mut run = RunScope::new(self);
        run.begin(None::<&NoReload<S>>).await?;
        let answer = if run.is_going() {
            run.pass_gates().await?
        } else {
            GateResult::deny("the lock is taken, and the strategy is to skip then")
        };
        run.end();
        Ok(answer)
    }

    /// All actions that are left. Gates that were not asked yet are asked first: there is no way
    /// around them.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub async fn run_actions(&mut self) -> Result<Arc<TransitionContext<S>>> {
        self.execute().await
    }

    /// One action, or its skipping. Gates that were not asked yet are asked first.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub async fn run_next_action(&mut self) -> Result<Arc<TransitionContext<S>>> {
        let _call = self.calls.begin();
        let mut run = RunScope::new(self);
        run.begin(None::<&NoReload<S>>).await?;
        if run.is_going() {
            run.pass_gates().await?;
        }
        if run.is_going() {
            run.step().await?;
        }
        Ok(run.end().context.clone())
    }

    /// What is known of the transition now.
    pub fn context(&self) -> &TransitionContext<S> {
        &self.context
    }

    /// The same to keep.
    pub fn shared_context(&self) -> Arc<TransitionContext<S>> {
        self.context.clone()
    }

    /// The lock as it is held now, or kept over a pause.
    pub fn lock_state(&self) -> LockState {
        match &self.guard {
            Some(guard) => guard.state(),
            None => self.context.lock_state(),
        }
    }

    /// Why a claimed context was due.
    pub fn due(&self) -> Option<&Due> {
        self.due.as_deref()
    }

    /// Renews the lock with its whole ttl, also that of a paused transition.
    ///
    /// Cancel safe: the renewal has happened or it has not; a paused one's lease may be lost midway.
    ///
    /// # Errors
    /// [`LockExpired`](latchwork_lock::ErrorKind::LockExpired) or
    /// [`LockLost`](latchwork_lock::ErrorKind::LockLost) when it is no longer ours, those of the
    /// store, and [`InvalidArgument`](ErrorKind::InvalidArgument) when nothing is locked.
    pub async fn renew_lock(&mut self) -> Result<()> {
        if let Some(guard) = &self.guard {
            let force = Refresh { ttl: None, threshold: Some(std::time::Duration::ZERO) };
            return Ok(guard.refresh_with(force).await?);
        }
        if self.context.lease.is_none() {
            return Err(Error::invalid_argument("lock", "nothing is locked, so nothing to renew"));
        }
        self.claim().await?;
        self.renew_kept().await
    }

    /// Releases the lock by hand, also that of a paused transition; false when nothing was locked.
    /// A process that resumes it then finds it lost.
    ///
    /// Cancel safe: dropped midway, the release is queued.
    ///
    /// # Errors
    /// [`LockExpired`](latchwork_lock::ErrorKind::LockExpired) or
    /// [`LockLost`](latchwork_lock::ErrorKind::LockLost) when it was no longer ours, and those of the
    /// store.
    pub async fn release_lock(&mut self) -> Result<bool> {
        if let Some(guard) = self.guard.take() {
            let released = guard.release().await;
            self.emit_released(released.is_ok());
            return released.map(|()| true).map_err(Error::from);
        }
        if self.context.lease.is_none() {
            return Ok(false);
        }
        self.claim().await?;
        let released = self.drop_lease().await;
        self.save(None).await?;
        self.run = None;
        released.map(|()| true)
    }

    /// [`execute`](Self::execute) for a worker that nobody needs afterwards.
    pub(crate) async fn run(mut self) -> Result<Arc<TransitionContext<S>>> {
        self.run_to_end(None::<&NoReload<S>>).await?;
        Ok(self.context)
    }

    // ---- what all parts use ----

    async fn run_to_end<F, Fut>(&mut self, reload: Option<&F>) -> Result<()>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        let _call = self.calls.begin();
        self.begin(reload).await?;
        if self.is_going() {
            self.pass_gates().await?;
        }
        while self.is_going() {
            self.step().await?;
            if self.is_leaving() {
                self.hand_back().await;
            }
        }
        Ok(())
    }

    /// Whether there is something left to do in this run.
    fn is_going(&self) -> bool {
        matches!(self.phase, Phase::Gates | Phase::Actions)
            && self.context.status == Status::Running
    }

    fn context_mut(&mut self) -> &mut TransitionContext<S> {
        Arc::make_mut(&mut self.context)
    }

    /// Takes the lock and finds the script, if this run has not begun; else checks the lock.
    async fn begin<F, Fut>(&mut self, reload: Option<&F>) -> Result<()>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        match self.context.status {
            _ if matches!(self.phase, Phase::Gates | Phase::Actions) => self.check_lock().await,
            Status::Pending => self.start().await,
            Status::Running
                if self.phase == Phase::LockLost && reload.is_none() && !self.has_entity() =>
            {
                Err(self.stale("its lock ended while this worker was at it"))
            }
            Status::Running | Status::Paused => self.continue_run(reload).await,
            status => Err(ErrorKind::TransitionOver { id: self.context.id, status }.into()),
        }
    }

    /// Ends the transition: saved first, then told, then unlocked.
    async fn finish(&mut self, status: Status, metadata: Option<Value>) -> Result<()> {
        let lock_lost = self.guard.as_ref().is_some_and(|guard| !guard.is_held());
        let context = self.context_mut();
        context.status = status;
        context.paused = None;
        context.lock_lost = lock_lost && status == Status::Completed;
        if metadata.is_some() {
            context.metadata = metadata;
        }
        if self.run.is_some() {
            self.save(None).await?;
            self.run = None;
        }
        let metadata = self.context.metadata.as_ref();
        let kind = match status {
            Status::Completed => EventKind::TransitionCompleted,
            _ => EventKind::TransitionStopped { metadata },
        };
        emit(&self.machine, &self.context, &mut self.events, kind);
        self.unlock().await;
        self.phase = Phase::Idle;
        Ok(())
    }

    /// Ends the transition with an error, which is given back.
    async fn fail(&mut self, error: Error) -> Error {
        let failure = Failure { code: error.code().to_owned(), message: Chain(&error).to_string() };
        let context = self.context_mut();
        context.status = Status::Failed;
        context.paused = None;
        context.failure = Some(Box::new(failure));
        if let Err(unsaved) = self.save(None).await {
            tracing::error!(
                transition = %self.context.id, %unsaved,
                "a failed transition could not be saved; a runner may try it again"
            );
        }
        self.run = None;
        let kind = EventKind::TransitionFailed { error: &error };
        emit(&self.machine, &self.context, &mut self.events, kind);
        self.unlock().await;
        self.phase = Phase::Idle;
        error
    }

    /// Whether a runner that stops wants to leave between two actions.
    fn is_leaving(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.leaving.is_set()) && self.is_going()
    }

    /// Ends this run between two actions, so that another process can go on at once. The lock is kept
    /// for that one, as over a pause: else others could move the entity in between.
    async fn hand_back(&mut self) {
        self.terms = None;
        if let Err(error) = self.keep_lock(PauseLock::default()).await {
            tracing::warn!(transition = %self.context.id, %error, "the lock could not be kept");
        }
        if self.context.lease.is_some() && matches!(self.save(None).await, Ok(None)) {
            self.run = None;
        }
        if let Some(guard) = self.guard.take() {
            let released = guard.release().await; // it could not be kept
            self.emit_released(released.is_ok());
        }
        self.unclaim(None).await;
        self.phase = Phase::Idle;
    }

    /// Ends this run, not the transition: somebody else has it, or will.
    ///
    /// A transition that is half done keeps its lock until the ttl, unless its state is stale: the lock
    /// belongs to the transition, so that the next run takes it over, and a release would let others
    /// move the entity before that.
    async fn abandon_run(&mut self, error: Error) -> Error {
        let stale = error.is_lock_loss() || matches!(error.kind(), ErrorKind::EntityChanged { .. });
        // Not by the status alone: the save that would have ended it may be what failed.
        let begun = self.context.plan.is_some() && self.context.revision > 0;
        let half_done = begun && self.run.is_some() && self.context.status != Status::Paused;
        match self.guard.take() {
            Some(guard) if half_done && !stale => drop(guard.into_lease().await),
            Some(guard) => {
                let released = guard.release().await;
                self.emit_released(released.is_ok());
            }
            None => {}
        }
        self.unclaim(Some(&error)).await;
        self.phase = Phase::Idle;
        error
    }
}

/// A call of a worker. Dropped before it has [ended](Self::end), it gives the lock back, as the
/// worker's documentation says.
struct RunScope<'a, S: State> {
    worker: &'a mut StateWorker<S>,
    ended: bool,
}

impl<'a, S: State> RunScope<'a, S> {
    fn new(worker: &'a mut StateWorker<S>) -> Self {
        RunScope { worker, ended: false }
    }

    fn end(&mut self) -> &mut StateWorker<S> {
        self.ended = true;
        self.worker
    }
}

impl<S: State> Deref for RunScope<'_, S> {
    type Target = StateWorker<S>;

    fn deref(&self) -> &StateWorker<S> {
        self.worker
    }
}

impl<S: State> DerefMut for RunScope<'_, S> {
    fn deref_mut(&mut self) -> &mut StateWorker<S> {
        self.worker
    }
}

impl<S: State> Drop for RunScope<'_, S> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let worker = &mut *self.worker;
        worker.guard = None;
        if matches!(worker.phase, Phase::Gates | Phase::Actions) {
            worker.phase = Phase::Idle;
            worker.interrupted = true;
        }
    }
}

/// Tells the observers. Without any, an event is a number and nothing else.
fn emit<S: State>(
    machine: &Machine<S>,
    context: &TransitionContext<S>,
    events: &mut u64,
    kind: EventKind<'_>,
) {
    let sequence = *events;
    *events += 1;
    if !machine.observers.is_empty() {
        notify_observers(machine, context, sequence, kind);
    }
}

#[cold]
fn notify_observers<S: State>(
    machine: &Machine<S>,
    context: &TransitionContext<S>,
    sequence: u64,
    kind: EventKind<'_>,
) {
    let event = crate::Event {
        transition: context.id,
        machine: &context.machine.name,
        sequence,
        at: machine.clock.wall(),
        context,
        kind,
    };
    for observer in &machine.observers {
        let told =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observer.observe(&event)));
        if told.is_err() {
            tracing::error!(event = kind.name(), "an observer panicked; the transition goes on");
        }
    }
}

impl<S: State> fmt::Debug for StateWorker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateWorker")
            .field("context", &self.context)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
