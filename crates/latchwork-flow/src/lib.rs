//! How it moves: transitions under lock, with gates, actions, pause and resume.
//!
//! A [`StateMachine`] is built once, of gates that decide and actions that do. A transition is an
//! entity and a delta, the wanted change; its worker takes the entity's lock, loads its state, asks the
//! gates, runs the actions one by one, saves the state, and releases the lock, unless an action pauses:
//! then the lock stays held until the transition is resumed, hours later and in another process if
//! need be.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> latchwork_flow::Result<()> {
//! use latchwork_flow::{ActionResult, BoxError, Contexts, EntityKey, GateResult, JsonState, Loaded};
//! use latchwork_flow::{MergeDelta, Pause, SaveRequest, StateMachine};
//! use latchwork_lock::Locks;
//! use serde_json::json;
//!
//! async fn find(id: String) -> Result<Option<Loaded<JsonState>>, BoxError> {
//!     // SELECT state, version, last_transition FROM orders WHERE id = $1
//!     Ok(Some(Loaded::new(JsonState::new(json!({"id": id, "status": "draft"}))?).version(7)))
//! }
//!
//! async fn update(order: SaveRequest<JsonState>) -> Result<(), BoxError> {
//!     // One transaction: the FenceGate with `order.fence`, then UPDATE … WHERE id = $1 AND version = $2.
//!     println!("{} under fence {}", order.entity, order.fence);
//!     Ok(())
//! }
//!
//! let contexts = Contexts::connect("memory:").await?;
//! let publish = StateMachine::<JsonState>::builder("publish")
//!     .locks(Locks::connect("memory:").await?, EntityKey::new())
//!     .load(find) // under the lock, before any gate
//!     .save(update) // after the last action, with the fence
//!     .store(contexts.clone())
//!     .gate_fn("is_draft", |order, _| {
//!         GateResult::allow_if(order.get("status") == Some(&json!("draft")), "not a draft")
//!     })
//!     .action_fn("ask", |_| async {
//!         Ok(ActionResult::pause(Pause::new().on_signal("approved")))
//!     })
//!     .action_fn("thank", |at| async move {
//!         println!("{:?}, once: {}", at.woken(), at.idempotency_key());
//!         Ok(ActionResult::proceed())
//!     })
//!     .action(MergeDelta)
//!     .build()?;
//!
//! let delta = JsonState::delta(json!({"status": "published"}))?;
//! let paused = publish.run_of("ORD-1", delta).await?;
//! assert!(paused.is_paused() && paused.lock_state().is_locked());
//!
//! contexts.signal(paused.id(), "approved", json!({"by": "ana"})).await?;
//! let done = publish.resume(paused.id()).await?.execute().await?;
//! assert_eq!(done.state().and_then(|order| order.get("status")), Some(&json!("published")));
//! # Ok(()) }
//! ```
//!
//! Of two who want to publish a draft, the second finds it published. A transition of a state that the
//! caller has read [is possible, too](StateMachine::transition), and says what it cannot promise.
//!
//! With a [store](ContextStore) every action is saved when it has finished, and is not run again
//! after a crash. One that was interrupted is run again, with the same idempotency key: what it does
//! elsewhere happens at least once, and the service that it calls can recognise the repetition.
//!
//! The promises are numbered F1 to F16; the crate `latchwork-contract` (feature `flow`) tests them
//! over any [`ContextStore`].

mod action;
mod builder;
mod configuration;
mod context;
mod entity;
mod error;
mod event;
mod field_path;
mod forecast;
mod gate;
mod heartbeat;
mod history;
mod id;
mod lock_key;
mod machine;
mod migrate;
mod observers;
mod pause;
mod policy;
pub mod prelude;
mod runner;
mod serde_millis;
mod shape;
mod state;
mod status;
pub mod store;
mod stores;
mod summary;
mod table;
mod wire;
mod worker;

pub use action::{
    Action, ActionContext, ActionFn, ActionResult, AnyAction, Gated, MergeDelta, WithPolicy,
    action_fn,
};
pub use builder::StateMachineBuilder;
/// The crate of the dates in contexts, pauses and events.
pub use chrono;
pub use configuration::{Configuration, ConfigurationProvider};
pub use context::TransitionContext;
pub use entity::{EntityChanged, Loaded, SaveRequest};
pub use error::{BoxError, Error, ErrorKind, Result};
pub use event::{Event, EventKind, EventRecord};
pub use forecast::{ActionForecast, Forecast, GateForecast};
pub use gate::{AnyGate, Gate, GateContext, LegalMove};
pub use history::{
    ActionExecution, ActionSkip, Execution, Failure, GateEvaluation, GateResult, GateVerdict,
};
pub use id::TransitionId;
pub use lock_key::{DEFAULT_KEY_PREFIX, EntityKey, LockKeyProvider, SnapshotKey, TransitionKey};
pub use machine::StateMachine;
pub use migrate::OlderContext;
#[cfg(feature = "metrics")]
pub use observers::MetricsObserver;
pub use observers::{ChannelObserver, Observer, TracingObserver};
pub use pause::{OnTimeout, Pause, PauseLock, PauseTimeout, Paused, Woken};
pub use policy::{ActionPolicy, Retry};
pub use runner::{FlowRunner, RunnerHandle};
pub use state::{JsonDelta, JsonState, State, Stored};
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
