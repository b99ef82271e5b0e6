//! The audit trail.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// Who did something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actor {
    /// `agent`, `user` or `system`.
    #[serde(rename = "type")]
    pub actor_type: String,
    /// Which one; none for the system as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// One row of the audit trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its own id.
    pub id: Uuid,
    /// The order; the event outlives it.
    pub order_id: Uuid,
    /// The item, for events of items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<Uuid>,
    /// What happened.
    pub event: String,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Value>,
    /// When, by the database's clock.
    pub created_at: DateTime<Utc>,
    /// Its place in the trail, once it is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
}

/// A place in the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Seal {
    /// The position, from 1, over all orders.
    pub position: u64,
    /// The hash over the event and the order's event before.
    pub hash: String,
}

/// A page of events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// Where the next page begins; none at the end.
    pub next: Option<String>,
}
