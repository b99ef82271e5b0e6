//! An action without its type.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;

use super::{Action, ActionContext, ActionResult, action_fn};
use crate::{ActionPolicy, AnyGate, BoxError, State};

/// Any action, behind a pointer. Cloning is cheap.
pub struct AnyAction<S: State> {
    pub(crate) name: Arc<str>,
    pub(crate) gate: Option<AnyGate<S>>,
    pub(crate) policy: ActionPolicy,
    action: Arc<dyn DynAction<S>>,
}

impl<S: State> AnyAction<S> {
    /// Takes an action's type away.
    pub fn new(action: impl Action<S>) -> Self {
        AnyAction {
            name: action.name().into(),
            gate: action.gate(),
            policy: action.policy(),
            action: Arc::new(action),
        }
    }

    /// The action of a closure.
    pub fn from_fn<F, Fut>(name: impl AsRef<str>, action: F) -> Self
    where
        F: Fn(ActionContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ActionResult<S>, BoxError>> + Send + 'static,
    {
        AnyAction::new(action_fn(name, action))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins it. What did not have to wait puts its answer there; what waits is given back, and
    /// will wake the task that began it.
    #[inline]
    pub(crate) fn begin<'a>(
        &'a self,
        at: ActionContext<S>,
        task: &mut Context<'_>,
        answer: &mut Option<Answer<S>>,
    ) -> Option<BoxFuture<'a, Answer<S>>> {
        self.action.begin(at, task, answer)
    }
}

impl<S: State> Clone for AnyAction<S> {
    fn clone(&self) -> Self {
        let (name, gate, policy) = (self.name.clone(), self.gate.clone(), self.policy.clone());
        AnyAction { name, gate, policy, action: self.action.clone() }
    }
}

impl<S: State> fmt::Debug for AnyAction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyAction").field(&self.name).finish()
    }
}

/// What comes of an action.
pub(crate) type Answer<S> = Result<ActionResult<S>, BoxError>;

/// [`Action`] in the form that can stand behind a pointer.
trait DynAction<S: State>: Send + Sync {
    fn begin<'a>(
        &'a self,
        at: ActionContext<S>,
        task: &mut Context<'_>,
        answer: &mut Option<Answer<S>>,
    ) -> Option<BoxFuture<'a, Answer<S>>>;
}

impl<S: State, A: Action<S>> DynAction<S> for A {
    fn begin<'a>(
        &'a self,
        at: ActionContext<S>,
        task: &mut Context<'_>,
        answer: &mut Option<Answer<S>>,
    ) -> Option<BoxFuture<'a, Answer<S>>> {
        *answer = self.execute_now(&at);
        if answer.is_some() {
            return None;
        }
        // Looked at here, where its type is known: of a future that never waits, the compiler can
        // leave the box out.
        let mut work = Box::pin(self.execute(at));
        match work.as_mut().poll(task) {
            Poll::Ready(done) => {
                *answer = Some(done);
                None
            }
            Poll::Pending => Some(work),
        }
    }
}
