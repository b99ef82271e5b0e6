//! Who moves shared state, together: programs, people and AI agents.
//!
//! An **order** is a contract for work; its **items** are what agents lease, submit and have reviewed.
//! Every change of a state is one step: checked against a transition table, written with its event in
//! the same transaction. This crate is being built; so far it has the states, the two tables, actors,
//! events, and the hash chain of the audit trail.

mod actor;
pub mod audit;
mod error;
mod event;
mod id;
mod names;
mod order_type;
pub mod query;
mod retry;
mod settle;
mod state;
mod tables;

pub use actor::{Actor, ActorType, MAX_ACTOR_ID, Provenance};
pub use audit::{EventHash, Seal};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventType};
pub use id::{EventId, ItemId, OrderId};
pub use order_type::{
    Concurrency, DynamicOrderType, OrderType, OrderTypes, PlannedItem, RegisteredType, TypeError,
    TypeSettings, Violation,
};
pub use retry::RetryPolicy;
pub use settle::{FailurePolicy, ItemCounts, next_order_state};
pub use state::{ItemState, OrderState};
pub use tables::{ItemMove, OrderMove, TransitionTables};
