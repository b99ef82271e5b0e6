//! Who moves shared state, together: programs, people and AI agents.
//!
//! An **order** is a contract for work; its **items** are what agents lease, submit and have reviewed.
//! Every change of a state is one step: checked against a transition table, written with its event in
//! the same transaction. Begin with [`WorkManager`].

mod actor;
pub mod audit;
mod error;
mod event;
mod id;
mod item;
mod lease;
mod manager;
mod names;
mod notify;
mod order;
mod order_type;
pub mod query;
mod retry;
mod settle;
mod state;
mod store;
mod stores;
mod tables;

pub use actor::{Actor, ActorType, MAX_ACTOR_ID, Provenance};
pub use audit::{EventHash, Seal};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventType};
pub use id::{EventId, ItemId, LeaseId, OrderId};
pub use item::Item;
pub use lease::{Heartbeat, Lease, LeaseInfo};
pub use manager::{
    Agent, Answer, Blocker, BlockerCode, BlockerGroup, CheckedOut, Checkout, EventNote, Failure,
    HeldBack, INCLUDED_EVENTS, INCLUDED_ITEMS, ItemDetails, ItemExplanation, ItemPage, ItemResult,
    LeasePage, ListedItem, ListedLease, ListedOrder, Maintenance, MaintenanceReport,
    MaintenanceSettings, Notice, OrderDetails, OrderExplanation, OrderPage, Sealed, StateCount,
    Submission, Submitted, Timeline, Verification, WorkClient, WorkManager, WorkManagerBuilder,
};
pub use order::{Order, Proposal, Proposed};
pub use order_type::{
    Concurrency, DynamicOrderType, OrderType, OrderTypes, PlannedItem, RegisteredType, TypeError,
    TypeSettings, Violation,
};
pub use retry::RetryPolicy;
pub use settle::{FailurePolicy, ItemCounts, next_order_state};
pub use state::{ItemState, OrderState};
pub use tables::{ItemMove, OrderMove, TransitionTables};
