//! Review: previews, decisions, and the receipt of an applied order.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Actor, FieldProblem, Order};

/// An order as its reviewers see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// The order.
    pub order_id: Uuid,
    /// Which content this is; it changes with results and edits, and not with comments or approvals.
    pub content_version: u32,
    /// The SHA-256 of the preview as canonical JSON; of the results where the type has no preview.
    pub digest: String,
    /// What apply would change; none where the type has no preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Diff>,
    /// Whether apply makes the preview again and refuses another one.
    pub exact: bool,
    /// Why the order cannot be approved yet, by the type's own rule.
    pub not_ready: Vec<FieldProblem>,
    /// How far the review is.
    pub review: ReviewStatus,
}

/// What apply changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Diff {
    /// What was there.
    pub before: Value,
    /// What is there then.
    pub after: Value,
    /// From before to after, as a JSON Patch (RFC 6902).
    pub changes: Vec<Change>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// One operation of a JSON Patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// `add`, `remove` or `replace`.
    pub op: String,
    /// Where, as a JSON pointer.
    pub path: String,
    /// The new value; none where one is removed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Value>,
}

/// Tells a value of `null` from no value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// How far the review of an order is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReviewStatus {
    /// The approvals of the content as it is.
    pub approvals: Vec<ApprovalInfo>,
    /// How many are needed.
    pub needed: u32,
    /// What is missing, one sentence each; nothing where the approvals suffice.
    pub missing: Vec<String>,
    /// When the review should be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<DateTime<Utc>>,
    /// The role that the decision has passed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated_to: Option<String>,
}

/// One approval of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalInfo {
    /// The reviewer.
    pub by: Actor,
    /// The roles that the reviewer had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// When.
    pub at: DateTime<Utc>,
}

/// An approval: it names what was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    /// The content version of the preview that was seen.
    pub content_version: u32,
    /// Its digest.
    pub digest: String,
    /// Results that the reviewer puts in place of the agents'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<ResultEdit>,
    /// A sentence for the trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl ApproveRequest {
    /// Approves what a preview shows.
    pub fn of(preview: &Preview) -> Self {
        let (content_version, digest) = (preview.content_version, preview.digest.clone());
        ApproveRequest { content_version, digest, edits: Vec::new(), comment: None }
    }
}

/// Another result for an item, by a reviewer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultEdit {
    /// The item.
    pub item: Uuid,
    /// The result, by the type's schema.
    pub result: Value,
}

/// What an approval did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Approved {
    /// The order.
    pub order: Order,
    /// Whether this approval counted; not a second one by the same reviewer, nor one that came after
    /// the last that was needed.
    pub counted: bool,
    /// The content version that it counted for: a new one after edits.
    pub content_version: u32,
    /// The digest of that version's preview.
    pub digest: String,
    /// How far the review is.
    pub review: ReviewStatus,
}

/// A rejection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RejectRequest {
    /// What is wrong: at least one thing.
    pub errors: Vec<ReviewError>,
    /// Whether agents are to do it again.
    #[serde(default)]
    pub rework: bool,
    /// The items that are done again; all that are in unless told. The others stay submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Uuid>>,
    /// A sentence for the trail and for the agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// One thing that a reviewer found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewError {
    /// What kind of mistake, in a word.
    pub code: String,
    /// A sentence for people and agents.
    pub message: String,
    /// Where in the result, as a JSON pointer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The item that it is about; all of them unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<Uuid>,
}

/// Who applies an order at this time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplyStatus {
    /// The lease; none where nobody applies the order.
    pub lease: Option<ApplyLease>,
}

/// The lease of an apply worker on an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplyLease {
    /// The worker.
    pub worker: String,
    /// When it ends without a sign of life.
    pub expires_at: DateTime<Utc>,
    /// Its fence.
    pub fence: u64,
}

/// What stands behind an applied order. `docs/verify.py` verifies it offline against an exported trail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// `latchwork-receipt-1`.
    pub format: String,
    /// The order.
    pub order_id: Uuid,
    /// The content version that was approved and applied.
    pub content_version: u32,
    /// The digest that the approvals name.
    pub digest: String,
    /// The digest of the results.
    pub results_digest: String,
    /// The preview as canonical JSON, whose SHA-256 is the digest; none where the type has none.
    pub preview: Option<String>,
    /// The rule of the review.
    pub rule: Value,
    /// The version of the rule that approved without a reviewer.
    pub auto_approve: Option<String>,
    /// Who approved, in which roles, and when.
    pub approvals: Value,
    /// Who applied it: worker, fence, attempt, idempotency key.
    pub applied: Value,
    /// What was changed.
    pub diff: Value,
    /// The events that say so.
    pub events: Vec<ReceiptEvent>,
}

/// An event that a receipt rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptEvent {
    /// The event.
    pub id: Uuid,
    /// `approved` or `applied`.
    pub event: String,
    /// Its place in the trail.
    pub position: u64,
    /// The hash over the event and the order's event before.
    pub hash: String,
}
