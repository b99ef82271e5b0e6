//! One row of the audit trail.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::named;
use crate::{Actor, EventId, ItemId, ItemState, OrderId, OrderState, Provenance};

named! {
    /// What happened: the names of seed 002, then ours.
    pub enum EventType ("event type") {
        /// The order was proposed.
        Proposed = "proposed",
        /// Its items were made.
        Planned = "planned",
        /// The first of its items was leased.
        CheckedOut = "checked_out",
        /// An agent leased the item.
        Leased = "leased",
        /// An agent extended its lease; coalesced, so that heartbeats do not flood the trail.
        Heartbeat = "heartbeat",
        /// Work began.
        InProgress = "in_progress",
        /// The result came in; or, of an order, the last of them.
        Submitted = "submitted",
        /// A reviewer or a rule approved the order.
        Approved = "approved",
        /// The changes were made.
        Applied = "applied",
        /// The item's order was applied.
        Accepted = "accepted",
        /// Done.
        Completed = "completed",
        /// A reviewer rejected the order, or the item with it.
        Rejected = "rejected",
        /// It failed.
        Failed = "failed",
        /// It was given up.
        DeadLettered = "dead_lettered",
        /// The agent gave its lease back.
        Released = "released",
        /// The agent put the item off.
        Snoozed = "snoozed",
        /// The lease ran out.
        LeaseExpired = "lease_expired",
        /// It waits for an agent again.
        Requeued = "requeued",
        /// Somebody asked to try it again.
        Retried = "retried",
        /// Somebody called it off.
        Cancelled = "cancelled",
        /// A submission was refused by the schema or by code.
        ValidationFailed = "validation_failed",
        /// A part of a result came in.
        PartSubmitted = "part_submitted",
        /// A part was refused.
        PartRejected = "part_rejected",
        /// The parts were assembled into the result.
        Finalized = "finalized",
        /// Somebody left a comment.
        Commented = "commented",
        /// A reviewer put another version of the result beside the agent's.
        Edited = "edited",
        /// The review is late: the decision passed to another role.
        Escalated = "escalated",
        /// What follows apply failed, and is tried again.
        CleanupFailed = "cleanup_failed",
    }
}

impl EventType {
    /// The event of a move of an order. A move back to `queued` is `requeued`, never `proposed`.
    pub const fn of_order(to: OrderState) -> EventType {
        match to {
            OrderState::Queued => EventType::Requeued,
            OrderState::CheckedOut => EventType::CheckedOut,
            OrderState::InProgress => EventType::InProgress,
            OrderState::Submitted => EventType::Submitted,
            OrderState::Approved => EventType::Approved,
            OrderState::Applied => EventType::Applied,
            OrderState::Completed => EventType::Completed,
            OrderState::Rejected => EventType::Rejected,
            OrderState::Failed => EventType::Failed,
            OrderState::DeadLettered => EventType::DeadLettered,
        }
    }

    /// The event of a move of an item.
    pub const fn of_item(to: ItemState) -> EventType {
        match to {
            ItemState::Queued => EventType::Requeued,
            ItemState::Leased => EventType::Leased,
            ItemState::InProgress => EventType::InProgress,
            ItemState::Submitted => EventType::Submitted,
            ItemState::Accepted => EventType::Accepted,
            ItemState::Completed => EventType::Completed,
            ItemState::Rejected => EventType::Rejected,
            ItemState::Failed => EventType::Failed,
            ItemState::DeadLettered => EventType::DeadLettered,
        }
    }
}

/// One row of the audit trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its own id.
    pub id: EventId,
    /// The order; the event outlives it.
    pub order_id: OrderId,
    /// The item, for events of items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<ItemId>,
    /// What happened.
    pub event: EventType,
    /// Who did it.
    pub actor: Actor,
    /// What belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What was changed, of an applied order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Value>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Where the request came from.
    #[serde(default, skip_serializing_if = "Provenance::is_empty")]
    pub provenance: Provenance,
    /// When, by the database's clock.
    pub created_at: DateTime<Utc>,
    /// Its place in the trail, once it is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<crate::Seal>,
}
