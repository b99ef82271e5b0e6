//! Several requests in one: each entry has its own outcome.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Heartbeat, Problem, Proposal, Proposed, SubmitRequest, Submitted};

/// Several orders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProposeManyRequest {
    /// The orders: 1 to 1,000.
    pub orders: Vec<Proposal>,
    /// All of them are stored, or none; one by one unless told.
    #[serde(default)]
    pub all_or_none: bool,
}

/// What became of several proposals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProposedMany {
    /// One for each entry, in their order.
    pub outcomes: Vec<ProposeOutcome>,
}

/// What became of one proposal: one of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProposeOutcome {
    /// It was stored, or an order with its unique key was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Proposed>,
    /// It was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Several results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitManyRequest {
    /// The results: 1 to 1,000, of different leases.
    pub submissions: Vec<SubmitRequest>,
    /// All of them are taken, or none; one by one unless told.
    #[serde(default)]
    pub all_or_none: bool,
}

/// What became of several results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedMany {
    /// One for each entry, in their order.
    pub outcomes: Vec<SubmitOutcome>,
}

/// What became of one result: one of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmitOutcome {
    /// It was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<Submitted>,
    /// It was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Several leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatManyRequest {
    /// The leases: 1,000 at most.
    pub leases: Vec<Uuid>,
}

/// What became of several leases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatMany {
    /// One for each lease.
    pub outcomes: Vec<HeartbeatOutcome>,
}

/// What became of one lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatOutcome {
    /// The lease.
    pub lease: Uuid,
    /// It was extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
    /// It was not: stop working on its item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}
