//! Counts, and who works.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many orders and items are in each state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Orders by type and state.
    pub orders: Vec<StateCount>,
    /// Items by type and state.
    pub items: Vec<StateCount>,
}

/// How many of a type are in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateCount {
    /// The type.
    #[serde(rename = "type")]
    pub order_type: String,
    /// The state.
    pub state: String,
    /// How many.
    pub count: u64,
}

/// The agents that hold leases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agents {
    /// The agents.
    pub agents: Vec<Agent>,
}

/// An agent that holds leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    /// Its name.
    pub id: String,
    /// How many items it has leased.
    pub leases: u64,
    /// Its latest heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
}
