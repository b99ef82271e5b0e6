//! Orders.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Actor, Concurrency, Event, Item};

/// An order: a contract for work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// Names it.
    pub id: Uuid,
    /// Its type.
    #[serde(rename = "type")]
    pub order_type: String,
    /// The version of the type's schemas when it was proposed.
    pub type_version: u32,
    /// Where it stands.
    pub state: String,
    /// Counts the changes of the order; its ETag.
    pub version: i64,
    /// Higher is sooner.
    pub priority: i32,
    /// Who proposed it.
    pub requested_by: Actor,
    /// What the proposer attached, for filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Map<String, Value>>,
    /// At most one live order of its type has this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// How many items it has.
    pub items: u32,
    /// Why it failed or was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// When it was proposed.
    pub created_at: DateTime<Utc>,
    /// When its state last changed.
    pub last_transitioned_at: DateTime<Utc>,
    /// When its changes were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<DateTime<Utc>>,
    /// When it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<DateTime<Utc>>,
}

/// An order with its payload and the states of its items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderDetails {
    /// The order.
    pub order: Order,
    /// What it carries.
    pub payload: Value,
    /// How many of its items are in each state; states without items are left out.
    pub item_counts: BTreeMap<String, u32>,
}

/// An order of a listing, and what was asked for besides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListedOrder {
    /// The order.
    #[serde(flatten)]
    pub order: Order,
    /// With `include=items`: its first items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_items: Option<Vec<Item>>,
    /// With `include=events`: its latest events, the latest one last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Event>>,
    /// With `include=itemsCount`: how many items are in each state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_count: Option<BTreeMap<String, u32>>,
    /// With `include=eventsCount`: how many events it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_count: Option<u64>,
}

/// A page of orders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderPage {
    /// The orders.
    pub orders: Vec<ListedOrder>,
    /// The `page[cursor]` of the next page; none at the end. The header `Link` has its address.
    pub next: Option<String>,
}

/// What is proposed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// The order type.
    #[serde(rename = "type")]
    pub order_type: String,
    /// What the order carries, by the type's schema.
    pub payload: Value,
    /// Higher is sooner; the type's own unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Anything that filters should find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Map<String, Value>>,
    /// At most one live order of the type has this key; a second proposal gets that order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// States besides queued to applied in which the order keeps its `unique_key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unique_states: Vec<String>,
}

impl Proposal {
    /// An order of a type, without anything besides.
    pub fn new(order_type: impl Into<String>, payload: Value) -> Self {
        Proposal {
            order_type: order_type.into(),
            payload,
            priority: None,
            meta: None,
            unique_key: None,
            unique_states: Vec::new(),
        }
    }
}

/// The answer to a proposal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Proposed {
    /// The order.
    pub order: Order,
    /// Whether it was there before: another live order has the proposal's `unique_key`.
    pub existing: bool,
}

/// Why an order is requeued, cancelled or given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReasonRequest {
    /// A sentence for people.
    pub reason: String,
}

/// How an order is cloned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CloneRequest {
    /// The priority of the clone; that of the order unless told.
    pub priority: Option<i32>,
}

/// A comment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommentRequest {
    /// A sentence for people.
    pub text: String,
    /// Anything that belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// An event that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recorded {
    /// The event.
    pub event_id: Uuid,
}

/// The items that a proposal would have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// The items.
    pub items: Vec<PlannedItem>,
}

/// An item that an order would have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedItem {
    /// What the agent would be given.
    pub input: Value,
    /// How often it would be tried; as the type says unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// The limit that it would share with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
}
