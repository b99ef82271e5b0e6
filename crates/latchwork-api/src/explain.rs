//! Why something waits.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why an order, an item, a flow or a key waits, through all layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// What was asked about.
    pub subject: Subject,
    /// Where it stands: the state of an order or item, the status of a flow, `free` or `held` for a key.
    pub state: String,
    /// What it waits for; nothing when it need not wait.
    pub reasons: Vec<Reason>,
}

/// Something that waits or is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subject {
    /// `order`, `item`, `flow`, `lock`, `caller` or `process`.
    pub kind: String,
    /// Which one.
    pub id: String,
}

/// One reason, and the reasons behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// The reason, for programs. The codes are listed in docs/server.md.
    pub code: String,
    /// The reason, for people.
    pub message: String,
    /// What is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// How many items of an order have this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// What the subject itself waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub because: Vec<Reason>,
}
