//! Actions that are made of closures and of other actions.

use std::future::{Future, ready};
use std::marker::PhantomData;

use super::{Action, ActionContext, ActionResult};
use crate::{ActionPolicy, AnyGate, BoxError, State};

/// The action of a closure. Inside a builder, where the state's type is known already,
/// [`StateMachineBuilder::action_fn`](crate::StateMachineBuilder::action_fn) needs fewer words.
pub fn action_fn<S, F, Fut>(name: impl AsRef<str>, action: F) -> ActionFn<S, F>
where
    S: State,
    F: Fn(ActionContext<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<ActionResult<S>, BoxError>> + Send + 'static,
{
    ActionFn { name: name.as_ref().to_owned(), action, state: PhantomData }
}

/// An action that is a closure; made by [`action_fn`].
pub struct ActionFn<S, F> {
    name: String,
    action: F,
    state: PhantomData<fn(S)>,
}

impl<S, F, Fut> Action<S> for ActionFn<S, F>
where
    S: State,
    F: Fn(ActionContext<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<ActionResult<S>, BoxError>> + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn execute(
        &self,
        at: ActionContext<S>,
    ) -> impl Future<Output = Result<ActionResult<S>, BoxError>> + Send {
        (self.action)(at)
    }
}

/// An action behind a gate; made by [`Action::behind`].
pub struct Gated<S: State, A> {
    pub(super) gate: AnyGate<S>,
    pub(super) action: A,
}

impl<S: State, A: Action<S>> Action<S> for Gated<S, A> {
    fn name(&self) -> &str {
        self.action.name()
    }

    fn execute(
        &self,
        at: ActionContext<S>,
    ) -> impl Future<Output = Result<ActionResult<S>, BoxError>> + Send {
        self.action.execute(at)
    }

    fn execute_now(&self, at: &ActionContext<S>) -> Option<Result<ActionResult<S>, BoxError>> {
        self.action.execute_now(at)
    }

    fn gate(&self) -> Option<AnyGate<S>> {
        Some(self.gate.clone())
    }

    fn policy(&self) -> ActionPolicy {
        self.action.policy()
    }
}

/// An action with a policy; made by [`Action::with_policy`].
pub struct WithPolicy<A> {
    pub(super) policy: ActionPolicy,
    pub(super) action: A,
}

impl<S: State, A: Action<S>> Action<S> for WithPolicy<A> {
    fn name(&self) -> &str {
        self.action.name()
    }

    fn execute(
        &self,
        at: ActionContext<S>,
    ) -> impl Future<Output = Result<ActionResult<S>, BoxError>> + Send {
        self.action.execute(at)
    }

    fn execute_now(&self, at: &ActionContext<S>) -> Option<Result<ActionResult<S>, BoxError>> {
        self.action.execute_now(at)
    }

    fn gate(&self) -> Option<AnyGate<S>> {
        self.action.gate()
    }

    fn policy(&self) -> ActionPolicy {
        self.policy.clone()
    }
}

/// The ready action for the common case: merges the delta into the state, as [`State::with`] says.
///
/// Without it, or an action of yours that returns a new state, a transition changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeDelta;

impl<S: State> Action<S> for MergeDelta {
    fn name(&self) -> &str {
        "merge_delta"
    }

    fn execute(
        &self,
        at: ActionContext<S>,
    ) -> impl Future<Output = Result<ActionResult<S>, BoxError>> + Send {
        ready(Ok(ActionResult::proceed_with(at.state().with(at.delta()))))
    }

    fn execute_now(&self, at: &ActionContext<S>) -> Option<Result<ActionResult<S>, BoxError>> {
        Some(Ok(ActionResult::proceed_with(at.state().with(at.delta()))))
    }
}
