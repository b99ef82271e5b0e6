//! May it happen?

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{BoxError, GateResult, State, TransitionTable};

/// May it happen? Asked before any action of a transition, or right before one action.
///
/// A gate looks and changes nothing: it may be asked any number of times, and a dry run asks it too.
/// Small ones are closures: [`StateMachineBuilder::gate_fn`](crate::StateMachineBuilder::gate_fn).
///
/// ```
/// use latchwork_flow::{BoxError, Gate, GateContext, GateResult, JsonState};
///
/// struct OnlyDrafts;
///
/// impl Gate<JsonState> for OnlyDrafts {
///     fn name(&self) -> &str {
///         "only_drafts"
///     }
///     async fn evaluate(&self, at: GateContext<'_, JsonState>) -> Result<GateResult, BoxError> {
///         let status = at.state.get("status").and_then(|status| status.as_str());
///         Ok(match status {
///             Some("draft") => GateResult::Allow,
///             Some("published") => GateResult::skip("it is published already"),
///             _ => GateResult::deny("only drafts can be published"),
///         })
///     }
/// }
/// ```
pub trait Gate<S: State>: Send + Sync + 'static {
    /// Names it in history, events and messages.
    fn name(&self) -> &str;

    /// Whether this may become that.
    ///
    /// # Errors
    /// Anything: the transition fails then.
    fn evaluate(
        &self,
        at: GateContext<'_, S>,
    ) -> impl Future<Output = Result<GateResult, BoxError>> + Send;

    /// The same for gates that need not wait, which spares a boxed future. None, the default, means
    /// "ask properly".
    fn evaluate_now(&self, at: GateContext<'_, S>) -> Option<Result<GateResult, BoxError>> {
        let _ = at;
        None
    }
}

/// What a gate sees.
pub struct GateContext<'a, S: State> {
    /// The state as it is.
    pub state: &'a S,
    /// The change that is wanted.
    pub delta: &'a S::Delta,
}

impl<S: State> GateContext<'_, S> {
    /// The state as the change would leave it, by its own merge.
    pub fn outcome(&self) -> S {
        self.state.with(self.delta)
    }
}

impl<S: State> Clone for GateContext<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: State> Copy for GateContext<'_, S> {}

/// Any gate, behind a pointer. Cloning is cheap.
pub struct AnyGate<S: State> {
    pub(crate) name: Arc<str>,
    gate: Arc<dyn DynGate<S>>,
}

impl<S: State> AnyGate<S> {
    /// Takes a gate's type away.
    pub fn new(gate: impl Gate<S>) -> Self {
        AnyGate { name: gate.name().into(), gate: Arc::new(gate) }
    }

    /// The gate of a closure.
    pub fn from_fn(
        name: impl AsRef<str>,
        gate: impl Fn(&S, &S::Delta) -> GateResult + Send + Sync + 'static,
    ) -> Self {
        let name = name.as_ref();
        AnyGate { name: name.into(), gate: Arc::new(GateFn { name: name.to_owned(), gate }) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn evaluate_now(
        &self,
        at: GateContext<'_, S>,
    ) -> Option<Result<GateResult, BoxError>> {
        self.gate.evaluate_now(at)
    }

    pub(crate) fn evaluate<'a>(
        &'a self,
        at: GateContext<'a, S>,
    ) -> BoxFuture<'a, Result<GateResult, BoxError>> {
        self.gate.evaluate(at)
    }
}

impl<S: State> Clone for AnyGate<S> {
    fn clone(&self) -> Self {
        AnyGate { name: self.name.clone(), gate: self.gate.clone() }
    }
}

impl<S: State> fmt::Debug for AnyGate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyGate").field(&self.name).finish()
    }
}

/// [`Gate`] in the form that can stand behind a pointer.
trait DynGate<S: State>: Send + Sync {
    fn evaluate_now(&self, at: GateContext<'_, S>) -> Option<Result<GateResult, BoxError>>;
    fn evaluate<'a>(
        &'a self,
        at: GateContext<'a, S>,
    ) -> BoxFuture<'a, Result<GateResult, BoxError>>;
}

impl<S: State, G: Gate<S>> DynGate<S> for G {
    fn evaluate_now(&self, at: GateContext<'_, S>) -> Option<Result<GateResult, BoxError>> {
        Gate::evaluate_now(self, at)
    }
    fn evaluate<'a>(
        &'a self,
        at: GateContext<'a, S>,
    ) -> BoxFuture<'a, Result<GateResult, BoxError>> {
        Box::pin(Gate::evaluate(self, at))
    }
}

/// A gate that is a closure.
struct GateFn<F> {
    name: String,
    gate: F,
}

impl<S, F> Gate<S> for GateFn<F>
where
    S: State,
    F: Fn(&S, &S::Delta) -> GateResult + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn evaluate(
        &self,
        at: GateContext<'_, S>,
    ) -> impl Future<Output = Result<GateResult, BoxError>> + Send {
        ready(Ok((self.gate)(at.state, at.delta)))
    }

    fn evaluate_now(&self, at: GateContext<'_, S>) -> Option<Result<GateResult, BoxError>> {
        Some(Ok((self.gate)(at.state, at.delta)))
    }
}

/// The gate of a [`TransitionTable`]: denies a move that the table does not have, and says which it
/// has. A state that is where the delta would bring it has been moved already.
///
/// It asks [`State::status`] and [`State::target`]; a delta without a target moves nothing and is
/// let through.
#[derive(Clone, Debug)]
pub struct LegalMove {
    table: Arc<TransitionTable<String>>,
}

impl LegalMove {
    /// The gate of this table.
    pub fn new(table: TransitionTable<String>) -> Self {
        LegalMove { table: Arc::new(table) }
    }
}

impl<S: State> Gate<S> for LegalMove {
    fn name(&self) -> &str {
        "legal_move"
    }

    fn evaluate(
        &self,
        at: GateContext<'_, S>,
    ) -> impl Future<Output = Result<GateResult, BoxError>> + Send {
        let answer = Gate::evaluate_now(self, at);
        ready(answer.unwrap_or(Ok(GateResult::Allow)))
    }

    fn evaluate_now(&self, at: GateContext<'_, S>) -> Option<Result<GateResult, BoxError>> {
        let Some(to) = S::target(at.delta) else { return Some(Ok(GateResult::Allow)) };
        let Some(from) = at.state.status() else {
            return Some(Ok(GateResult::deny("the state does not say where it stands")));
        };
        let (from, to) = (from.into_owned(), to.into_owned());
        Some(Ok(match self.table.check(&from, &to) {
            Ok(()) => GateResult::Allow,
            Err(_) if from == to => GateResult::skip(format!("it is {to} already")),
            Err(error) => GateResult::deny(error.to_string()),
        }))
    }
}
