//! A lease on an item.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ItemId, LeaseId, OrderId};

/// What an agent gets by a checkout: an item for a time, with what to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lease {
    /// Names the lease: heartbeat, submit, release and the like need it.
    pub id: LeaseId,
    /// The item.
    pub item_id: ItemId,
    /// Its order.
    pub order_id: OrderId,
    /// The type of the order.
    #[serde(rename = "type")]
    pub order_type: String,
    /// What to do.
    pub input: Value,
    /// Who holds the lease.
    pub agent: String,
    /// Grows with each lease of the item: hand it to what the work touches.
    pub fence: u64,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// How many attempts there are.
    pub max_attempts: u16,
    /// When the lease ends without a heartbeat, by the store's clock.
    pub expires_at: DateTime<Utc>,
    /// How often to send a heartbeat, in milliseconds.
    #[serde(with = "millis")]
    pub heartbeat_every: Duration,
    /// What became of the attempt before, if it left anything: `result`, `error`, and of a rework
    /// `review` with the reviewer's `errors`, `comment` and the `comments` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Value>,
}

/// The end of a lease after a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The lease.
    pub id: LeaseId,
    /// When it ends without another heartbeat, by the store's clock.
    pub expires_at: DateTime<Utc>,
    /// How often to send a heartbeat, in milliseconds.
    #[serde(with = "millis")]
    pub heartbeat_every: Duration,
}

/// A lease as others see it: who works on an item, and until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The item.
    pub item_id: ItemId,
    /// Its order.
    pub order_id: OrderId,
    /// Who holds it.
    pub leased_by_agent_id: String,
    /// Since when.
    pub leased_at: DateTime<Utc>,
    /// Until when, unless it is extended.
    pub lease_expires_at: DateTime<Utc>,
    /// The latest heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
    /// Its fence.
    pub fence: u64,
}

pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        span: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}
