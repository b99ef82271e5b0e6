//! How it moves: transitions under lock, with gates, actions, pause and resume.
//!
//! The promises are numbered F1 to F12; the crate `latchwork-contract` (feature `flow`) tests them
//! over any [`ContextStore`](store::ContextStore).

#![allow(dead_code, reason = "the machine that uses these parts comes with the next change")]

mod context;
mod error;
mod history;
mod id;
mod pause;
mod span;
mod state;
mod status;
pub mod store;
mod stores;
mod summary;
mod table;
mod wire;

pub use context::TransitionContext;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use history::{
    ActionExecution, ActionSkip, Execution, Failure, GateEvaluation, GateResult, Verdict,
};
pub use id::TransitionId;
pub use pause::{OnTimeout, Pause, PauseLock, PauseTimeout, Paused, Woken};
pub use state::{JsonDelta, JsonState, State};
pub use status::Status;
pub use store::{ContextStore, Contexts};
pub use stores::memory::InMemoryContextStore;
#[cfg(feature = "postgres")]
pub use stores::postgres::PostgresContextStore;
#[cfg(feature = "sqlite")]
pub use stores::sqlite::SqliteContextStore;
pub use summary::{ContextDetails, ContextSummary, WaitingFor};
pub use table::{TransitionTable, TransitionTableBuilder, TransitionTableData};
pub use wire::CONTEXT_FORMAT;
