//! The types of orders that a server knows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The types of orders that a server knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderTypes {
    /// The types, sorted by name.
    pub order_types: Vec<OrderType>,
}

/// A type of orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OrderType {
    /// Its name.
    pub name: String,
    /// The version of its schemas.
    pub version: u32,
    /// How its orders are run.
    pub settings: TypeSettings,
    /// The JSON Schema of payloads.
    pub payload_schema: Value,
    /// The JSON Schema of the items' inputs.
    pub input_schema: Value,
    /// The JSON Schema of results.
    pub result_schema: Value,
}

/// How orders of a type are run. Spans are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TypeSettings {
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl_ms: u64,
    /// How often agents are advised to send a heartbeat.
    pub heartbeat_every_ms: u64,
    /// When an item is tried again.
    pub retry: RetryPolicy,
    /// What a failed item means for its order.
    pub failure: Value,
    /// How many items of this type may be leased at a time.
    pub max_leases: Option<u32>,
    /// What an approval takes.
    pub review: ReviewRule,
    /// The parts without which a strict finalize refuses.
    pub required_parts: Vec<String>,
    /// The largest payload, in bytes of JSON.
    pub max_payload_bytes: u64,
    /// The largest result, in bytes of JSON.
    pub max_result_bytes: u64,
}

/// What an approval of an order takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReviewRule {
    /// How many different reviewers must approve.
    pub approvals: u32,
    /// So many of them, at least, must have this role.
    pub roles: BTreeMap<String, u32>,
    /// Whether the proposer may approve.
    pub proposer_may_approve: bool,
    /// Whether an agent may approve that submitted one of the results.
    pub submitter_may_approve: bool,
    /// Whether apply makes the preview again and refuses another one.
    pub exact_preview: bool,
    /// When a review should be over, counted from `submitted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The version of the rule that approves without a reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_approve: Option<String>,
}

/// Which state may follow which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransitionTables {
    /// Of orders: each state with those that may follow it.
    pub orders: BTreeMap<String, Vec<String>>,
    /// Of items.
    pub items: BTreeMap<String, Vec<String>>,
}

/// When an item is tried again. Spans are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryPolicy {
    /// How often an item is tried before it fails for good.
    pub max_attempts: u16,
    /// The pause after the first attempt, doubled each time.
    pub backoff_ms: u64,
    /// The longest pause.
    pub max_backoff_ms: u64,
    /// Up to this much is added at random.
    pub jitter_ms: u64,
}
