//! An item as it is stored.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Concurrency, ItemId, ItemState, OrderId};

/// An item: what an agent leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Item {
    /// Names it.
    pub id: ItemId,
    /// Its order.
    pub order_id: OrderId,
    /// Its place in the plan, from 0.
    pub seq: u32,
    /// The type of its order.
    #[serde(rename = "type")]
    pub item_type: String,
    /// Where it stands.
    pub state: ItemState,
    /// Counts the changes of the row.
    pub version: i64,
    /// The priority of its order.
    pub priority: i32,
    /// How often it was leased; a release, a snooze and a graceful stop give the attempt back.
    pub attempts: u16,
    /// How often it may be leased.
    pub max_attempts: u16,
    /// Not leased before.
    pub available_at: DateTime<Utc>,
    /// The limit that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// The fence of its latest lease; each lease has a higher one.
    pub fence: u64,
    /// When it was last leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<DateTime<Utc>>,
    /// When its order was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<DateTime<Utc>>,
    /// Why it failed, was refused or was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// How many versions of a result it has; the latest one counts.
    pub results: u32,
    /// When its order was proposed.
    pub created_at: DateTime<Utc>,
}
