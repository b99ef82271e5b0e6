//! Who moves shared state, together: programs, people and AI agents.
//!
//! An **order** is a contract for work; its **items** are what agents lease, submit and have reviewed.
//! Every change of a state is one step: checked against a transition table, written with its event in
//! the same transaction.
#![cfg_attr(
    any(feature = "sqlite", feature = "postgres"),
    doc = "Begin with [`WorkManager`]; the features `sqlite` and `postgres` bring its databases."
)]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres")),
    allow(
        dead_code,
        unused_imports,
        irrefutable_let_patterns,
        unreachable_patterns,
        reason = "with one database, or none, some parts have nothing to choose between"
    )
)]

mod actor;
pub mod audit;
mod canonical;
mod diff;
mod error;
mod event;
mod id;
mod item;
mod lease;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod manager;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod metrics;
mod names;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod notify;
mod order;
mod order_type;
mod part;
pub mod query;
mod retry;
mod settle;
mod state;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod store;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod stores;
mod tables;

pub use actor::{Actor, ActorType, MAX_ACTOR_ID, Provenance};
pub use audit::{EventHash, Seal};
/// The crate of the dates in orders, items and events.
pub use chrono;
pub use diff::{Change, ChangeOp, Diff};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventType};
pub use id::{EventId, ItemId, LeaseId, OrderId};
pub use item::Item;
pub use lease::{Heartbeat, Lease, LeaseInfo};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use manager::{
    Agent, Answer, ApplyLease, ApplyWorker, Approval, ApprovalInfo, Approved, Blocker, BlockerCode,
    BlockerGroup, CheckedOut, Checkout, EventFilter, EventNote, EventPage, Failure, Finalize,
    HeldBack, INCLUDED_EVENTS, INCLUDED_ITEMS, ItemDetails, ItemExplanation, ItemPage, ItemResult,
    KeyedEffect, LeasePage, ListedItem, ListedLease, ListedOrder, ListenFrom, Listener,
    ListenerPosition, Maintenance, MaintenanceReport, MaintenanceSettings, Notice, OrderDetails,
    OrderExplanation, OrderPage, Preview, Receipt, ReceiptEvent, Rejection, ResultEdit,
    ReviewError, ReviewStatus, SealNotices, Sealed, StateCount, Submission, Submitted,
    SubmittedPart, Subscription, Timeline, Verification, WorkClient, WorkManager,
    WorkManagerBuilder,
};
pub use order::{Order, Proposal, Proposed};
pub use order_type::{
    Applier, Appliers, ApplySettings, ApplyStep, AutoApprove, Concurrency, ContentOf,
    DeadlinePolicy, DeclarationFile, DeclaredOrderType, DurationText, DynamicOrderType,
    OrderContent, OrderType, OrderTypes, PlannedItem, RegisteredType, ReviewDeadline,
    ReviewSettings, ReviewedItem, TypeError, TypeSettings, Violation,
};
pub use part::{FinalizeMode, Part, PartBody, PartQuery, PartSettings, PartStatus, PartSubmission};
pub use retry::RetryPolicy;
pub use settle::{FailurePolicy, ItemCounts, next_order_state};
pub use state::{ItemState, OrderState};
pub use tables::{ItemMove, OrderMove, TransitionTables};
