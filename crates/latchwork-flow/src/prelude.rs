//! What most programs with flows need: `use latchwork_flow::prelude::*`.
//!
//! Neither `Error` nor `Result` is in it, so that it can stand beside the prelude of the locks and
//! that of any other crate.

#[doc(no_inline)]
pub use crate::{
    Action, ActionContext, ActionPolicy, ActionResult, BoxError, Contexts, EntityChanged,
    EntityKey, FlowRunner, Gate, GateContext, GateResult, JsonState, Loaded, MergeDelta, OnTimeout,
    Pause, Reloaded, Retry, SaveRequest, State, StateMachine, Status, TransitionContext,
    TransitionId, TransitionTable, Woken, action_fn,
};
