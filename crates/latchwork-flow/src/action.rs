//! Does it.

mod adapters;
mod any;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::Moment;
use latchwork_lock::{Fence, Held};
use serde_json::Value;

pub use adapters::{ActionFn, Gated, MergeDelta, WithPolicy, action_fn};
pub(crate) use any::Answer;
pub use any::AnyAction;

use crate::heartbeat::RunHeartbeat;
use crate::{
    ActionPolicy, AnyGate, BoxError, Execution, Gate, Pause, State, TransitionContext, Woken,
};

/// One step of a transition.
///
/// Actions run one after the other, each on the state that the one before has left. One that was
/// interrupted by a crash is run again, with the same [`idempotency_key`](ActionContext::idempotency_key):
/// send it along with whatever has effects elsewhere.
///
/// Small ones are closures: [`StateMachineBuilder::action_fn`](crate::StateMachineBuilder::action_fn).
///
/// ```
/// use latchwork_flow::{Action, ActionContext, ActionResult, BoxError, JsonState};
/// # async fn charge(_: &str) -> Result<(), BoxError> { Ok(()) }
///
/// struct Charge;
///
/// impl Action<JsonState> for Charge {
///     fn name(&self) -> &str {
///         "charge"
///     }
///     async fn execute(&self, at: ActionContext<JsonState>) -> Result<ActionResult<JsonState>, BoxError> {
///         charge(&at.idempotency_key()).await?;
///         Ok(ActionResult::proceed())
///     }
/// }
/// ```
pub trait Action<S: State>: Send + Sync + 'static {
    /// Names it in stored contexts: a paused transition finds its actions again by name. Two actions
    /// of one machine have different names, and a name keeps its meaning.
    fn name(&self) -> &str;

    /// Does it.
    ///
    /// # Errors
    /// Anything: the transition fails then, and its lock is released.
    fn execute(
        &self,
        at: ActionContext<S>,
    ) -> impl Future<Output = Result<ActionResult<S>, BoxError>> + Send;

    /// The same for actions that need not wait, which spares a boxed future. None, the default,
    /// means "do it properly".
    fn execute_now(&self, at: &ActionContext<S>) -> Option<Result<ActionResult<S>, BoxError>> {
        let _ = at;
        None
    }

    /// How long it may take, whether it is tried again, and what a loss does to it. By default as the
    /// machine says, once, and dropped.
    fn policy(&self) -> ActionPolicy {
        ActionPolicy::default()
    }

    /// The same action with another policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use latchwork_flow::{Action, ActionPolicy, ActionResult, JsonState, Retry, action_fn};
    ///
    /// let charge = action_fn::<JsonState, _, _>("charge", |_| async { Ok(ActionResult::proceed()) });
    /// let charge = charge.with_policy(ActionPolicy {
    ///     time_limit: Some(Duration::from_secs(20)),
    ///     retry: Retry::times(3),
    ///     ..ActionPolicy::default()
    /// });
    /// ```
    fn with_policy(self, policy: ActionPolicy) -> WithPolicy<Self>
    where
        Self: Sized,
    {
        WithPolicy { policy, action: self }
    }

    /// A gate right before this action: unless it allows, this action alone is skipped.
    fn gate(&self) -> Option<AnyGate<S>> {
        None
    }

    /// The same action behind a gate.
    fn behind(self, gate: impl Gate<S>) -> Gated<S, Self>
    where
        Self: Sized,
    {
        Gated { gate: AnyGate::new(gate), action: self }
    }
}

/// What an action sees.
pub struct ActionContext<S: State> {
    pub(crate) transition: Arc<TransitionContext<S>>,
    pub(crate) index: usize,
    pub(crate) lease: Option<Arc<Held>>,
    pub(crate) attempt: u32,
    /// When it is dropped.
    pub(crate) limit: Moment,
    pub(crate) heartbeat: Option<Arc<RunHeartbeat>>,
}

impl<S: State> ActionContext<S> {
    /// The state as the action before has left it.
    pub fn state(&self) -> &S {
        match &self.transition.state {
            Some(state) => state,
            None => unreachable!("no action runs before the state is loaded"),
        }
    }

    /// The change that is wanted.
    pub fn delta(&self) -> &S::Delta {
        &self.transition.delta
    }

    /// All that is known of the transition, with the history of its gates and actions.
    pub fn transition(&self) -> &TransitionContext<S> {
        &self.transition
    }

    /// The action's place, from zero.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The same whenever this action of this transition is run: let the service that you call use it to
    /// recognise what it has done already.
    pub fn idempotency_key(&self) -> String {
        self.transition.idempotency_key(self.index)
    }

    /// The fence of the lock, to be sent with each write; none without a lock.
    pub fn fence(&self) -> Option<Fence> {
        self.lease.as_ref().map(|lease| lease.fence())
    }

    /// Which attempt at this action this is, from 1: processes that died with it, and failures that
    /// its [retry policy](ActionPolicy::retry) has made up for. One that asked to be
    /// [repeated](ActionResult::retry_after) begins with 1 again.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the transition is still this process's: its lock can be trusted, its run-lease is not
    /// another's, and nobody has called it off.
    pub fn is_held(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.is_held())
            && self.heartbeat.as_ref().is_none_or(|heartbeat| heartbeat.loss().is_none())
    }

    /// How long the action may still take: until its time limit, or the end of a lock that nobody
    /// renews. None without either.
    pub fn remaining(&self) -> Option<Duration> {
        let lock = self.lease.as_ref().map(|lease| lease.remaining());
        let now = self.transition.machine.clock.now();
        let limit = Some(self.limit).filter(|at| *at != Moment::NEVER).map(|at| at.since(now));
        lock.into_iter().chain(limit).min()
    }

    /// Ends when the transition is no longer this process's. An action whose policy is to
    /// [finish](ActionPolicy::on_loss) can wait for it beside its work; others are dropped then.
    ///
    /// Cancel safe: it only looks.
    pub async fn lost(&self) {
        let lock = async {
            match &self.lease {
                Some(lease) => lease.lost().await,
                None => std::future::pending().await,
            }
        };
        let run = async {
            match &self.heartbeat {
                Some(heartbeat) => drop(heartbeat.lost().await),
                None => std::future::pending().await,
            }
        };
        futures::future::select(std::pin::pin!(lock), std::pin::pin!(run)).await;
    }

    /// What ended the last pause, with a signal's payload.
    pub fn woken(&self) -> Option<&Woken> {
        self.transition.woken()
    }
}

impl<S: State> Clone for ActionContext<S> {
    fn clone(&self) -> Self {
        ActionContext {
            transition: self.transition.clone(),
            index: self.index,
            lease: self.lease.clone(),
            attempt: self.attempt,
            limit: self.limit,
            heartbeat: self.heartbeat.clone(),
        }
    }
}

/// What an action answers: how to go on, and what has become of the state.
pub struct ActionResult<S> {
    pub(crate) execution: Execution,
    pub(crate) state: Option<S>,
    // Behind pointers, since most have neither and all are handed about.
    pub(crate) metadata: Option<Box<Value>>,
    pub(crate) pause: Option<Box<Pause>>,
}

impl<S> ActionResult<S> {
    fn new(execution: Execution) -> Self {
        ActionResult { execution, state: None, metadata: None, pause: None }
    }

    /// Go on with the next action; the state is as it was.
    pub fn proceed() -> Self {
        Self::new(Execution::Continue)
    }

    /// Go on with the next action, on this state.
    pub fn proceed_with(state: S) -> Self {
        Self::proceed().state(state)
    }

    /// Go on later with the next action. The lock stays held.
    pub fn pause(pause: Pause) -> Self {
        let execution = if pause.repeat { Execution::Repeat } else { Execution::Pause };
        ActionResult { pause: Some(Box::new(pause)), ..Self::new(execution) }
    }

    /// Run this action again after this long, as often as it asks for it; the lock stays held. Needs
    /// a [`FlowRunner`](crate::FlowRunner), or somebody who resumes it. With a signal, or to renew the
    /// lock: [`Pause::repeat`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use latchwork_flow::{ActionResult, JsonState};
    /// # let is_paid = false;
    ///
    /// let answer: ActionResult<JsonState> = match is_paid {
    ///     true => ActionResult::proceed(),
    ///     false => ActionResult::retry_after(Duration::from_secs(60)),
    /// };
    /// ```
    pub fn retry_after(span: Duration) -> Self {
        Self::pause(Pause::new().wake_after(span).repeat())
    }

    /// End the transition here. The lock is released.
    pub fn stop() -> Self {
        Self::new(Execution::Stop)
    }

    /// The state has become this.
    #[must_use]
    pub fn state(self, state: S) -> Self {
        ActionResult { state: Some(state), ..self }
    }

    /// Says something about it: a reason, a job's number, what is wrong.
    #[must_use]
    pub fn metadata(self, metadata: impl Into<Value>) -> Self {
        ActionResult { metadata: Some(Box::new(metadata.into())), ..self }
    }

    /// How the transition goes on.
    pub fn execution(&self) -> Execution {
        self.execution
    }
}
