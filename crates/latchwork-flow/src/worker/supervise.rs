//! An action at work: bounded in time, dropped when its transition is lost, tried again where its
//! policy says so (F15, F16).

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use latchwork_lock::provider::Moment;
use latchwork_lock::{OnLoss, Scope};

use super::StateWorker;
use super::lock::within;
use super::steps::{Started, not_ours};
use crate::configuration::Script;
use crate::heartbeat::{Loss, RunHeartbeat, timed_out};
use crate::{ActionContext, ActionResult, AnyAction, Error, ErrorKind, Result, State};

/// How an action ended.
pub(super) enum Ended<S: State> {
    /// By itself, or by its time limit.
    Done(Result<ActionResult<S>>),
    /// The transition is no longer this process's.
    Lost(Error),
    /// Somebody called the transition off, and said why.
    Cancelled(String),
    /// The runner stops, and the action would have been tried again.
    Leaving,
}

impl<S: State> StateWorker<S> {
    /// Runs an action, again where its policy says so.
    pub(super) async fn run_action(
        &self,
        action: &AnyAction<S>,
        index: usize,
        scope: Option<&Scope>,
    ) -> Ended<S> {
        let before = self.run.as_ref().map_or(0, |run| run.attempt - 1);
        let mut failed = 0;
        loop {
            let ended = self.try_action(action, index, scope, before + failed + 1).await;
            let Ended::Done(Err(error)) = &ended else { return ended };
            failed += 1;
            let Some(wait) = action.policy.retry.after(failed, error) else { return ended };
            tracing::warn!(
                transition = %self.context.id, action = &*action.name, %error, ?wait,
                "an action failed, and is tried again"
            );
            if let Err(ended) = self.wait(wait).await {
                return ended;
            }
        }
    }

    async fn try_action(
        &self,
        action: &AnyAction<S>,
        index: usize,
        scope: Option<&Scope>,
        attempt: u32,
    ) -> Ended<S> {
        let limit = action.policy.time_limit.unwrap_or(self.machine.action_limit);
        // The last tick is near enough, and cheap for those who need not wait.
        let deadline = self.machine.clock.recent().after(limit);
        let heartbeat = self.run.as_ref().map(|run| &run.heartbeat);
        let lease = self.guard.as_ref().map(|guard| guard.share());
        let _step =
            heartbeat.map(|heartbeat| heartbeat.step(action.name.clone(), deadline, lease.clone()));
        let at = ActionContext {
            transition: self.context.clone(),
            index,
            lease,
            attempt,
            limit: deadline,
            heartbeat: heartbeat.cloned(),
        };
        match within(scope, action.start(at, index)).await {
            Started::Done(result) => Ended::Done(result),
            // Outside of a runtime there is nobody to tell the time.
            Started::Waits(work) if tokio::runtime::Handle::try_current().is_err() => {
                Ended::Done(within(scope, work).await)
            }
            Started::Waits(work) => {
                let work = pin!(within(scope, Watched { work, heartbeat }));
                let finishes = action.policy.on_loss == OnLoss::Finish;
                tokio::select! {
                    biased;
                    done = work => Ended::Done(done),
                    ended = self.lost(), if !finishes => ended,
                    () = self.deadline_passes(deadline) => {
                        Ended::Done(Err(timed_out(&action.name, index, limit)))
                    }
                }
            }
        }
    }

    /// Waits before the next attempt, unless there will be none.
    async fn wait(&self, span: Duration) -> Result<(), Ended<S>> {
        let clock = &self.machine.clock;
        let leaving = async {
            match &self.terms {
                Some(terms) => terms.leaving.wait().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = clock.sleep_until(clock.now().after(span)) => Ok(()),
            ended = self.lost() => Err(ended),
            () = leaving => Err(Ended::Leaving),
        }
    }

    /// Waits for a reason not to go on.
    async fn lost(&self) -> Ended<S> {
        let lock = async {
            match &self.guard {
                Some(guard) => guard.lost().await,
                None => pending().await,
            }
        };
        let run = async {
            match &self.run {
                Some(run) => run.heartbeat.lost().await,
                None => pending().await,
            }
        };
        tokio::select! {
            loss = run => match loss {
                Loss::Cancelled(request) => Ended::Cancelled(request.reason),
                Loss::Taken | Loss::Blocked => Ended::Lost(not_ours(self)),
            },
            () = lock => match &self.guard {
                Some(guard) => {
                    let error = latchwork_lock::Error::expired(guard.key(), guard.fence());
                    Ended::Lost(error.into())
                }
                None => Ended::Lost(not_ours(self)),
            },
        }
    }

    /// Runs a gate, a loader or another callback that is no action within the machine's time limit.
    ///
    /// # Errors
    /// What to tell when it took longer; it was dropped then.
    pub(super) async fn in_time<T>(
        &self,
        step: impl Into<Arc<str>>,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        let deadline = self.machine.clock.recent().after(self.machine.action_limit);
        if tokio::runtime::Handle::try_current().is_err() {
            return Ok(work.await);
        }
        let heartbeat = self.run.as_ref().map(|run| &run.heartbeat);
        let lease = self.guard.as_ref().map(|guard| guard.share());
        let _step = heartbeat.map(|heartbeat| heartbeat.step(step.into(), deadline, lease));
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.deadline_passes(deadline) => {
                Err(format!("it took longer than the limit of {:?}", self.machine.action_limit))
            }
        }
    }

    /// Asks the configuration provider, where the machine has one, within the time limit.
    pub(super) async fn configured(&self) -> Result<Arc<Script<S>>> {
        let (state, delta) = (self.context.need_state()?, &self.context.delta);
        let asked = self.machine.configured_for(state, delta);
        self.in_time("configuration", asked).await.unwrap_or_else(|reason| {
            let (machine, what) = (self.machine.name.to_string(), "configuration");
            let (panicked, source) = (false, None);
            Err(ErrorKind::ProviderFailed { machine, what, reason, panicked, source }.into())
        })
    }

    async fn deadline_passes(&self, deadline: Moment) {
        match deadline {
            Moment::NEVER => pending().await,
            deadline => self.machine.clock.sleep_until(deadline).await,
        }
    }
}

/// Tells the heartbeats whether an action computes or waits.
struct Watched<'a, F> {
    work: F,
    heartbeat: Option<&'a Arc<RunHeartbeat>>,
}

impl<F: Future + Unpin> Future for Watched<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        let Some(heartbeat) = self.heartbeat else { return Pin::new(&mut self.work).poll(task) };
        heartbeat.computes(true);
        let answer = Pin::new(&mut self.work).poll(task);
        heartbeat.computes(false);
        answer
    }
}
