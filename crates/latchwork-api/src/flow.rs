//! Flows: stored transitions that go on later.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Reason;

/// A stored transition, as anybody may see it: neither its state nor a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flow {
    /// Names it.
    pub id: Uuid,
    /// The machine that it belongs to.
    pub machine: String,
    /// The version of the machine's definition.
    pub definition: u32,
    /// What it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// Where it stands.
    pub status: String,
    /// Counts the changes of the stored context.
    pub revision: u64,
    /// The action that comes next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_action: Option<String>,
    /// How many actions are done.
    pub done: u64,
    /// How many are left.
    pub left: u64,
    /// What the action that paused or stopped it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Value>,
    /// The key of its lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// The fence of its lock, while it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_fence: Option<u64>,
    /// When that lock ends unless it is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_expires_at: Option<DateTime<Utc>>,
    /// How often it was tried since it last got on.
    pub attempts: u32,
    /// What the last attempt came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The process that is at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Until when, unless that is extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_until: Option<DateTime<Utc>>,
    /// Signals that were sent and not used yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<String>,
    /// Why it was called off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// When a runner should look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<DateTime<Utc>>,
    /// When it was stored first.
    pub created_at: DateTime<Utc>,
    /// When it was stored last.
    pub updated_at: DateTime<Utc>,
    /// What it waits for; nothing when it is over.
    pub waiting_for: Vec<Reason>,
}

/// A page of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowPage {
    /// The flows.
    pub flows: Vec<Flow>,
    /// Rows that this program cannot read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableFlow>,
    /// The `after` of the next page; none at the end.
    pub next: Option<String>,
}

/// A row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnreadableFlow {
    /// Its id, as it is stored.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A signal for a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Its name.
    pub name: String,
    /// What comes with it.
    #[serde(default)]
    pub payload: Value,
}

/// A cancelled flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CancelledFlow {
    /// Whether it is over. If not, the process that is at it learns of it with its next heartbeat.
    pub done: bool,
    /// The flow.
    pub flow: Flow,
}
