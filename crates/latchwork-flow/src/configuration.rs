//! Which gates and actions a transition has.

use std::borrow::Cow;
use std::future::{Future, ready};
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{Action, ActionContext, ActionResult, AnyAction, AnyGate, BoxError, Gate, State};

/// The gates and actions of one transition, in order.
///
/// A step stands here by the name under which the machine has it, or in person. What a paused
/// transition still has to do is found again by name, so what stands here in person should be
/// registered with the machine too; a machine with a store insists on it.
pub struct Configuration<S: State> {
    pub(crate) gates: Vec<Step<AnyGate<S>>>,
    pub(crate) actions: Vec<Step<AnyAction<S>>>,
}

pub(crate) enum Step<T> {
    Named(Cow<'static, str>),
    Own(T),
}

impl<S: State> Configuration<S> {
    /// No gates, no actions.
    pub fn new() -> Self {
        Configuration { gates: Vec::new(), actions: Vec::new() }
    }

    /// Adds gates of the machine by name.
    #[must_use]
    pub fn gates<N: Into<Cow<'static, str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.gates.extend(names.into_iter().map(|name| Step::Named(name.into())));
        self
    }

    /// Adds actions of the machine by name.
    #[must_use]
    pub fn actions<N: Into<Cow<'static, str>>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.actions.extend(names.into_iter().map(|name| Step::Named(name.into())));
        self
    }

    /// Adds a gate in person.
    #[must_use]
    pub fn gate(mut self, gate: impl Gate<S>) -> Self {
        self.gates.push(Step::Own(AnyGate::new(gate)));
        self
    }

    /// Adds an action in person.
    #[must_use]
    pub fn action(mut self, action: impl Action<S>) -> Self {
        self.actions.push(Step::Own(AnyAction::new(action)));
        self
    }

    /// Adds a closure as an action in person.
    #[must_use]
    pub fn action_fn<F, Fut>(mut self, name: impl AsRef<str>, action: F) -> Self
    where
        F: Fn(ActionContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ActionResult<S>, BoxError>> + Send + 'static,
    {
        self.actions.push(Step::Own(AnyAction::from_fn(name, action)));
        self
    }
}

impl<S: State> Default for Configuration<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// Chooses the gates and actions of a transition by looking at it.
///
/// It is asked when the lock is held, so that what it looks up is still true when the actions run.
/// On resume it is not asked again: a transition ends with the actions that it began with. Any
/// closure of the right shape is one.
pub trait ConfigurationProvider<S: State>: Send + Sync + 'static {
    /// The gates and actions for this change of this state.
    ///
    /// # Errors
    /// Anything: the transition fails then.
    fn provide(
        &self,
        state: &S,
        delta: &S::Delta,
    ) -> impl Future<Output = Result<Configuration<S>, BoxError>> + Send;
}

impl<S, F> ConfigurationProvider<S> for F
where
    S: State,
    F: Fn(&S, &S::Delta) -> Configuration<S> + Send + Sync + 'static,
{
    fn provide(
        &self,
        state: &S,
        delta: &S::Delta,
    ) -> impl Future<Output = Result<Configuration<S>, BoxError>> + Send {
        ready(Ok(self(state, delta)))
    }
}

/// [`ConfigurationProvider`] in the form that can stand behind a pointer.
pub(crate) trait DynConfigurationProvider<S: State>: Send + Sync {
    fn provide<'a>(
        &'a self,
        state: &'a S,
        delta: &'a S::Delta,
    ) -> BoxFuture<'a, Result<Configuration<S>, BoxError>>;
}

impl<S: State, P: ConfigurationProvider<S>> DynConfigurationProvider<S> for P {
    fn provide<'a>(
        &'a self,
        state: &'a S,
        delta: &'a S::Delta,
    ) -> BoxFuture<'a, Result<Configuration<S>, BoxError>> {
        Box::pin(ConfigurationProvider::provide(self, state, delta))
    }
}

/// A configuration whose names are all found.
pub(crate) struct Script<S: State> {
    pub(crate) gates: Vec<AnyGate<S>>,
    pub(crate) actions: Vec<AnyAction<S>>,
}

impl<S: State> Script<S> {
    /// The names of its actions.
    pub(crate) fn names(&self) -> Arc<[Arc<str>]> {
        self.actions.iter().map(|action| action.name.clone()).collect()
    }
}
