//! Items, and leases on them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Actor;

/// An item: what an agent leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Item {
    /// Names it.
    pub id: Uuid,
    /// Its order.
    pub order_id: Uuid,
    /// Its place in the plan, from 0.
    pub seq: u32,
    /// The type of its order.
    #[serde(rename = "type")]
    pub item_type: String,
    /// Where it stands.
    pub state: String,
    /// Counts the changes of the item.
    pub version: i64,
    /// The priority of its order.
    pub priority: i32,
    /// How often it was leased.
    pub attempts: u16,
    /// How often it may be leased.
    pub max_attempts: u16,
    /// Not leased before.
    pub available_at: DateTime<Utc>,
    /// The limit that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// The fence of its latest lease.
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
    /// How many versions of a result it has.
    pub results: u32,
    /// When its order was proposed.
    pub created_at: DateTime<Utc>,
}

/// A limit that items with the same key share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Concurrency {
    /// What they share.
    pub key: String,
    /// How many of them may be leased at a time.
    pub limit: u32,
    /// Whether an item that waits for its retry holds back those behind it.
    pub ordered: bool,
}

/// An item with its input, latest result and lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemDetails {
    /// The item.
    pub item: Item,
    /// What the agent is given.
    pub input: Value,
    /// Its latest result.
    pub result: Option<ItemResult>,
    /// Who works on it.
    pub lease: Option<LeaseInfo>,
}

/// A version of an item's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemResult {
    /// Which version, from 1.
    pub version: u32,
    /// Who submitted it, or edited it.
    pub actor: Actor,
    /// The result.
    pub result: Value,
    /// When.
    pub created_at: DateTime<Utc>,
    /// The version that a reviewer edited; none for an agent's own result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_from: Option<u32>,
}

/// All versions of an item's result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemResults {
    /// The oldest first: those of its agents, and those of reviewers beside them.
    pub results: Vec<ItemResult>,
}

/// Items of an order, with their inputs and latest results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemDetailsPage {
    /// In the order of the plan.
    pub items: Vec<ItemDetails>,
    /// The `after` of the next page; none at the end.
    pub next: Option<String>,
}

/// A lease as others see it; never its id, which is the agent's secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeaseInfo {
    /// The item.
    pub item_id: Uuid,
    /// Its order.
    pub order_id: Uuid,
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

/// A lease of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListedLease {
    /// The lease.
    #[serde(flatten)]
    pub lease: LeaseInfo,
    /// The type of the order.
    #[serde(rename = "type")]
    pub order_type: String,
    /// How long it lasts without a heartbeat, by the store's clock.
    pub remaining_ms: u64,
}

/// A page of leases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeasePage {
    /// The leases.
    pub leases: Vec<ListedLease>,
    /// The `page[cursor]` of the next page; none at the end.
    pub next: Option<String>,
}

/// An item of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListedItem {
    /// The item.
    #[serde(flatten)]
    pub item: Item,
    /// Who works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
}

/// A page of items.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<ListedItem>,
    /// The `page[cursor]` of the next page; none at the end.
    pub next: Option<String>,
}

/// Which items an agent wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckoutRequest {
    /// Items of this order only.
    pub order: Option<Uuid>,
    /// Items of these order types only.
    pub types: Vec<String>,
    /// Items of orders with at least this priority.
    pub min_priority: Option<i32>,
    /// Items of orders whose meta contains this.
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Map<String, Value>>,
    /// How many items at most; 1 unless told.
    pub limit: Option<u32>,
    /// How long to wait where nothing can be leased; not at all unless told.
    pub wait_ms: u64,
}

/// What a checkout got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckedOut {
    /// The leases; none where nothing can be leased.
    pub leases: Vec<Lease>,
    /// The limits that held items back.
    pub held_back: Vec<HeldBack>,
}

/// An item for a time, with what to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// Names the lease: heartbeat, submit, release and the like need it.
    pub id: Uuid,
    /// The item.
    pub item_id: Uuid,
    /// Its order.
    pub order_id: Uuid,
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
    /// How often to send a heartbeat.
    pub heartbeat_every_ms: u64,
    /// What became of the attempt before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Value>,
}

/// A limit that is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldBack {
    /// `agent:…`, `type:…` or `key:…`.
    pub limit: String,
    /// How many leases count for it.
    pub held: u32,
    /// How many may.
    pub max: u32,
}

/// Names a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The lease of the caller's checkout.
    pub lease: Uuid,
}

/// The end of a lease after a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// The lease.
    pub id: Uuid,
    /// When it ends without another heartbeat, by the store's clock.
    pub expires_at: DateTime<Utc>,
    /// How often to send a heartbeat.
    pub heartbeat_every_ms: u64,
}

/// Gives a lease back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The lease.
    pub lease: Uuid,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Gives a lease back for later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnoozeRequest {
    /// The lease.
    pub lease: Uuid,
    /// For how long nobody may lease the item.
    pub for_ms: u64,
}

/// Says that the item could not be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    /// The lease.
    pub lease: Uuid,
    /// What kind of failure, in a word.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// Whether another attempt is useless.
    #[serde(default)]
    pub permanent: bool,
}

/// A result of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The lease.
    pub lease: Uuid,
    /// The result, by the type's schema.
    pub result: Value,
    /// What supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

impl SubmitRequest {
    /// The result of a leased item, without anything besides.
    pub fn new(lease: Uuid, result: Value) -> Self {
        SubmitRequest { lease, result, evidence: None, notes: None }
    }
}

/// What a submission did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The item.
    pub item_id: Uuid,
    /// Its order.
    pub order_id: Uuid,
    /// Where the item stands.
    pub state: String,
    /// Which version of the item's result this is.
    pub result_version: u32,
}
