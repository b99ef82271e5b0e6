//! Results in parts.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::FieldProblem;

/// A part of a result that an agent hands in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRequest {
    /// The lease of the item.
    pub lease: Uuid,
    /// Which part, such as `summary`.
    pub key: String,
    /// Its place among several of one key. The parts of a key all have one, or there is one without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// The part.
    pub payload: Value,
    /// What supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// Whether it is kept without being checked; it does not count then.
    #[serde(default)]
    pub draft: bool,
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedPart {
    /// The item.
    pub item_id: Uuid,
    /// Its order.
    pub order_id: Uuid,
    /// Which part.
    pub key: String,
    /// Its place among several of one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// `validated` or `draft`.
    pub status: String,
    /// SHA-256 of its JSON as it is stored, in hex.
    pub checksum: String,
    /// Whether another part stood in its place.
    pub replaced: bool,
}

/// The parts of an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Parts {
    /// By key and sequence, also those of agents before.
    pub parts: Vec<Part>,
}

/// A part that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// Which part.
    pub key: String,
    /// Its place among several of one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// `validated`, `rejected` or `draft`; only the first counts.
    pub status: String,
    /// SHA-256 of its JSON as it is stored, in hex.
    pub checksum: String,
    /// Its size, in bytes of JSON.
    pub bytes: u64,
    /// What was wrong, of a rejected one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// The agent that handed it in.
    pub agent: String,
    /// The fence of that agent's lease.
    pub fence: u64,
    /// When.
    pub submitted_at: DateTime<Utc>,
    /// The part itself, with `bodies=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<PartBody>,
}

/// What a part carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PartBody {
    /// The part.
    pub payload: Value,
    /// What supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

/// Asks for a result to be assembled from its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinalizeRequest {
    /// The lease of the item.
    pub lease: Uuid,
    /// Strict unless told.
    #[serde(default)]
    pub mode: FinalizeMode,
    /// What supports the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

/// How strictly parts are assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinalizeMode {
    /// Every required part is there, no part is a draft or rejected, and no sequence has a gap.
    #[default]
    Strict,
    /// What is validated.
    BestEffort,
}
