//! The HTTP contract of a Latchwork server: requests, responses, and problems.
//!
//! The types stand beside those of the work layer and not on them, so that a client brings no database
//! along, and so that a change of a table is not a change of the contract.

mod audit;
mod batch;
#[cfg(feature = "client")]
pub mod client;
mod event;
mod explain;
mod flow;
mod health;
mod item;
mod lock;
mod order;
mod order_type;
mod part;
mod problem;
mod review;
mod stats;
mod token;

pub use audit::{Checkpoint, Checkpoints, Forgotten, ListenerPosition, Listeners, Verification};
pub use batch::{
    HeartbeatMany, HeartbeatManyRequest, HeartbeatOutcome, ProposeManyRequest, ProposeOutcome,
    ProposedMany, SubmitManyRequest, SubmitOutcome, SubmittedMany,
};
pub use event::{Actor, Event, EventPage, Seal};
pub use explain::{Explanation, Reason, Subject};
pub use flow::{CancelledFlow, Flow, FlowPage, SignalRequest, UnreadableFlow};
pub use health::Health;
pub use item::{
    CheckedOut, CheckoutRequest, Concurrency, FailRequest, Heartbeat, HeldBack, Item, ItemDetails,
    ItemDetailsPage, ItemPage, ItemResult, ItemResults, Lease, LeaseInfo, LeasePage, LeaseRequest,
    ListedItem, ListedLease, ReleaseRequest, SnoozeRequest, SubmitRequest, Submitted,
};
pub use lock::{
    AcquireLock, BreakLock, BrokenLock, CheckFence, CheckedFence, ClaimLock, DEFAULT_TTL_MS,
    HeldLock, LockHolder, LockInspection, LockMode, LockPage, LockToken, LockTurn, LockWaiter,
    ReleaseLock, ReleasedLock, RenewedLock, ResumeLock, WaitForLock,
};
pub use order::{
    CloneRequest, CommentRequest, ListedOrder, Order, OrderDetails, OrderPage, Plan, PlannedItem,
    Proposal, Proposed, ReasonRequest, Recorded,
};
pub use order_type::{
    OrderType, OrderTypes, RetryPolicy, ReviewRule, TransitionTables, TypeSettings,
};
pub use part::{FinalizeMode, FinalizeRequest, Part, PartBody, PartRequest, Parts, SubmittedPart};
pub use problem::{FieldProblem, HTTP_CODES, PROBLEM_JSON, Problem, Problems};
pub use review::{
    ApplyLease, ApplyStatus, ApprovalInfo, ApproveRequest, Approved, Change, Diff, Preview,
    Receipt, ReceiptEvent, RejectRequest, ResultEdit, ReviewError, ReviewStatus,
};
pub use stats::{Agent, Agents, StateCount, Stats};
pub use token::{CreatedToken, Token, TokenPage, TokenRequest, WhoAmI};

/// The header under which a mutating request has its effect once.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Set on an answer that is that of an earlier request with the same key.
pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
/// Names the actor where no tokens are configured; refused where they are.
pub const ACTOR: &str = "latchwork-actor";
/// Names a request in logs and events.
pub const REQUEST_ID: &str = "x-request-id";
