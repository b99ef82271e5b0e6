//! An order as it is stored, and how one is proposed.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Actor, OrderId, OrderState, TypeSettings};

/// An order: a contract for work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Order {
    /// Names it.
    pub id: OrderId,
    /// Its type.
    #[serde(rename = "type")]
    pub order_type: String,
    /// The version of the type's schemas when it was proposed.
    pub type_version: u32,
    /// Where it stands.
    pub state: OrderState,
    /// Counts the changes of the row.
    pub version: i64,
    /// Higher is sooner.
    pub priority: i32,
    /// Who proposed it.
    pub requested_by: Actor,
    /// What the proposer attached, for filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Map<String, Value>>,
    /// At most one live order of its type has this key (W20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// The states besides queued to applied in which the order keeps its `unique_key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unique_states: Vec<OrderState>,
    /// How many items it has.
    pub items: u32,
    /// The type's settings when it was proposed. The failure policy is taken from here; how long
    /// leases last and when items are tried again is taken from the type as the process knows it.
    pub settings: TypeSettings,
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

impl Order {
    /// Whether its `unique_key` is taken while it is in this state.
    pub fn takes_unique_key(&self) -> bool {
        self.unique_key.is_some()
            && (self.state.is_live() || self.unique_states.contains(&self.state))
    }
}

/// What is proposed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub meta: Option<Map<String, Value>>,
    /// At most one live order of the type has this key (W20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// States besides queued to applied in which the order keeps its `unique_key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unique_states: Vec<OrderState>,
}

impl Proposal {
    /// An order of a type with a payload.
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

    /// Higher is sooner; the type's own ([`TypeSettings::priority`](crate::TypeSettings::priority)) unless told.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Attaches a value for filters.
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.meta.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// At most one live order of the type has this key; a second proposal gets that order.
    #[must_use]
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// The order keeps its `unique_key` in these states too: failed, rejected, completed or
    /// dead_lettered.
    #[must_use]
    pub fn unique_states(mut self, states: impl IntoIterator<Item = OrderState>) -> Self {
        self.unique_states = states.into_iter().collect();
        self
    }
}

/// The answer to a proposal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Proposed {
    /// The order.
    pub order: Order,
    /// Whether it was there before: another live order has the proposal's `unique_key`.
    pub existing: bool,
}
