//! How it moves: transitions under lock, with gates, actions, pause and resume.
//!
//! The promises are numbered F1 to F12; the crate `latchwork-contract` (feature `flow`) tests them
//! over any [`ContextStore`].

mod action;
mod builder;
mod configuration;
mod context;
mod error;
mod event;
mod forecast;
mod gate;
mod history;
mod id;
mod lock_key;
mod machine;
mod observers;
mod pause;
mod runner;
mod span;
mod state;
mod status;
pub mod store;
mod stores;
mod summary;
mod table;
mod wire;
mod worker;

pub use action::{
    Action, ActionContext, ActionFn, ActionResult, AnyAction, Behind, MergeDelta, action_fn,
};
pub use builder::StateMachineBuilder;
pub use configuration::{Configuration, ConfigurationProvider};
pub use context::TransitionContext;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use event::{Event, EventKind, EventRecord};
pub use forecast::{ActionForecast, Forecast, GateForecast};
pub use gate::{AnyGate, Gate, GateContext, LegalMove};
pub use history::{
    ActionExecution, ActionSkip, Execution, Failure, GateEvaluation, GateResult, Verdict,
};
pub use id::TransitionId;
pub use lock_key::{DEFAULT_KEY_PREFIX, EntityKey, LockKeyProvider, SnapshotKey, TransitionKey};
pub use machine::StateMachine;
#[cfg(feature = "metrics")]
pub use observers::MetricsObserver;
pub use observers::{ChannelObserver, Observer, TracingObserver};
pub use pause::{OnTimeout, Pause, PauseLock, PauseTimeout, Paused, Woken};
pub use runner::{FlowRunner, RunnerHandle};
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
pub use worker::{Reloaded, StateWorker};
