//! Going on with a transition, in this process or another (F7).

use std::future::Future;
use std::sync::Arc;

use serde_json::json;

use super::{Phase, RunScope, StateWorker, emit};
use crate::error::Chain;
use crate::store::Due;
use crate::{BoxError, ErrorKind, EventKind, OnTimeout, Result, State, Status, TransitionContext};

/// What has become of an entity since its transition was last at it.
#[derive(Clone, Debug)]
pub enum Reloaded<S> {
    /// What the transition was to do has been done; this is the entity now.
    Done(S),
    /// It has not; this is the entity now.
    GoOn(S),
}

impl<S: State> StateWorker<S> {
    /// Goes on after a pause or a crash: claims the stored revision, then holds the lock again, then
    /// notes what woke it.
    pub(super) async fn continue_run<F, Fut>(&mut self, reload: Option<&F>) -> Result<()>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        self.claim().await?;
        if let Err(error) = self.check_loader() {
            return Err(self.abandon_run(error).await);
        }
        let kind = EventKind::TransitionStarting { resumed: true };
        emit(&self.machine, &self.context, &mut self.events, kind);
        if self.handle_cancellation().await? {
            return Ok(());
        }
        let reacquires = reload.is_some() || self.has_entity();
        let continuity = match self.restore_lock(reacquires).await {
            Ok(continuity) => continuity,
            Err(error) => return Err(self.abandon_run(error).await),
        };
        if self.timed_out().await? || !self.catch_up(continuity, reload).await? {
            return Ok(());
        }
        let woken = self.woken_by();
        if let Some(Due::Signal(signal)) = self.due() {
            self.used_signal = Some(signal.sequence);
        }
        let context = self.context_mut();
        if context.status == Status::Paused {
            context.woken = Some(Box::new(woken));
        }
        context.status = Status::Running;
        context.paused = None;
        self.phase = match self.context.plan {
            Some(_) => Phase::Actions,
            None => Phase::Gates, // a call was dropped while it asked them
        };
        // Before anything is done: the lease that was stored is dead now, and so is the signal.
        self.checkpoint().await
    }

    /// Ends a pause that has lasted too long, if its policy is to end then.
    async fn timed_out(&mut self) -> Result<bool> {
        let timeout = self.context.paused().and_then(|paused| paused.timeout);
        let (Some(Due::Timeout), Some(timeout)) = (self.due(), timeout) else { return Ok(false) };
        match timeout.then {
            OnTimeout::Resume => Ok(false),
            OnTimeout::Stop => {
                let why = json!({"pause_timed_out": timeout.at});
                self.finish(Status::Stopped, Some(why)).await?;
                Ok(true)
            }
            OnTimeout::Fail => {
                let (id, at) = (self.context.id, timeout.at);
                Err(self.fail(ErrorKind::PauseTimedOut { id, at }.into()).await)
            }
        }
    }

    /// Executes what is left, also when the lock was lost meanwhile: the recovery of seed 000 as one
    /// call.
    ///
    /// `reload` looks up what has become of the entity. It is asked before anything is done; if the
    /// lock turns out to be lost, a new one is taken and it is asked again under it, since somebody
    /// else may have been in between. [`Reloaded::Done`] completes the transition without another
    /// action; [`Reloaded::GoOn`] asks the gates about the reloaded state, and goes on with it if they
    /// allow that. Where the lock was held all the time, it goes on with the state that it has.
    ///
    /// Cancel safety: as for [`execute`](Self::execute).
    ///
    /// # Errors
    /// As for [`execute`](Self::execute), and
    /// [`ProviderFailed`](ErrorKind::ProviderFailed) when `reload` fails: nothing is changed then.
    pub async fn execute_or_reacquire<F, Fut>(
        &mut self,
        reload: F,
    ) -> Result<Arc<TransitionContext<S>>>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        let _call = self.calls.begin();
        if let Reloaded::Done(state) = self.reload(&reload).await? {
            return self.already_done(state).await;
        }
        let mut run = RunScope::new(self);
        match run.run_to_end(Some(&reload)).await {
            // Lost while it ran: once more, under a new lock.
            Err(error) if error.is_lock_loss() => run.run_to_end(Some(&reload)).await?,
            answer => answer?,
        }
        Ok(run.end().context.clone())
    }

    pub(super) async fn reload<F, Fut>(&self, reload: &F) -> Result<Reloaded<S>>
    where
        F: Fn(Arc<TransitionContext<S>>) -> Fut,
        Fut: Future<Output = Result<Reloaded<S>, BoxError>>,
    {
        let reloaded = self.in_time("reload", reload(self.context.clone())).await;
        let (reason, source) = match reloaded {
            Ok(Ok(reloaded)) => return Ok(reloaded),
            Ok(Err(error)) => (Chain(&*error).to_string(), Some(error)),
            Err(late) => (late, None),
        };
        let (machine, what, panicked) = (self.machine.name.to_string(), "state", false);
        Err(ErrorKind::ProviderFailed { machine, what, reason, panicked, source }.into())
    }

    pub(super) async fn already_done(&mut self, state: S) -> Result<Arc<TransitionContext<S>>> {
        self.claim().await?;
        self.forget_lock().await;
        self.context_mut().state = Some(state);
        self.finish(Status::Completed, Some(json!({"already_done": true}))).await?;
        Ok(self.context.clone())
    }
}
