//! Checking the audit trail.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Seal;

/// What a check of the whole trail found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// Whether nothing is wrong.
    pub intact: bool,
    /// How many sealed events were checked.
    pub events: u64,
    /// The position of the last one.
    pub position: u64,
    /// What is wrong: gaps, events out of order, wrong hashes.
    pub findings: Vec<Value>,
    /// How many events have no seal yet, and so are not covered.
    pub unsealed: u64,
    /// When the oldest of them was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsealed_since: Option<DateTime<Utc>>,
}

/// Where the chains of orders stood whose events were pruned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoints {
    /// One for each of these orders.
    pub checkpoints: Vec<Checkpoint>,
}

/// Where the chain of an order stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// The order.
    pub order_id: Uuid,
    /// The seal of the last event that was pruned.
    pub seal: Seal,
}

/// The named listeners of programs on this database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Listeners {
    /// The listeners.
    pub listeners: Vec<ListenerPosition>,
}

/// How far a named listener has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerPosition {
    /// Its name.
    pub name: String,
    /// The last position that it has handled.
    pub position: u64,
    /// When it said so.
    pub updated_at: DateTime<Utc>,
}

/// Whether something was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    /// Whether it was there.
    pub known: bool,
}
