//! How orders of a type are reviewed and applied.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::RetryPolicy;

/// How orders of a type are reviewed (W17).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReviewSettings {
    /// How many different reviewers must approve.
    pub approvals: u32,
    /// So many of them, at least, must have this role. A reviewer with two roles counts for both.
    pub roles: BTreeMap<String, u32>,
    /// Whether the proposer may approve.
    pub proposer_may_approve: bool,
    /// Whether an agent may approve that submitted one of the results.
    pub submitter_may_approve: bool,
    /// Whether the preview says exactly what apply does. Apply then makes it again before any change,
    /// and fails with `preview_changed` where it differs from the one that was approved.
    pub exact_preview: bool,
    /// When a review should be over, and what happens otherwise; counted from `submitted`.
    pub deadline: Option<ReviewDeadline>,
    /// Approves by itself what a JSON Schema accepts, or the type's own code.
    pub auto_approve: Option<AutoApprove>,
    /// The largest preview or diff, in bytes of JSON.
    pub max_diff_bytes: usize,
}

impl Default for ReviewSettings {
    /// One approval, by neither the proposer nor an agent that submitted; no deadline.
    fn default() -> Self {
        ReviewSettings {
            approvals: 1,
            roles: BTreeMap::new(),
            proposer_may_approve: false,
            submitter_may_approve: false,
            exact_preview: false,
            deadline: None,
            auto_approve: None,
            max_diff_bytes: 1 << 20,
        }
    }
}

/// When a review should be over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReviewDeadline {
    /// How long after the order was submitted.
    pub after: Duration,
    /// What happens then.
    #[serde(default)]
    pub then: DeadlinePolicy,
}

/// What happens to an order whose review is late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlinePolicy {
    /// It waits on; `explain_order` says that it is late.
    #[default]
    KeepWaiting,
    /// It is rejected.
    Reject,
    /// The decision passes to this role: one approval by a reviewer who has it decides.
    Escalate(String),
}

/// A rule that approves by itself what a JSON Schema accepts, or
/// [`auto_approve`](super::OrderType::auto_approve) of the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoApprove {
    /// The rule's version, which the approval records. Change it with the schema or the code.
    pub version: String,
    /// A JSON Schema of `{"payload": …, "results": [{"input": …, "result": …}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// How orders of a type are applied (W7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApplySettings {
    /// Whether apply runs in the store's own transaction, which
    /// [`ApplyStep`](super::ApplyStep) then hands out: what it writes there happens exactly once. The
    /// order's row stays locked meanwhile, and SQLite has no other writer: keep it short.
    pub in_transaction: bool,
    /// How long an apply worker holds an order without a sign of life. A worker extends it by itself.
    pub lease_ttl: Duration,
    /// How long one run of a hook may take. The hook is dropped then, at its next await.
    pub time_limit: Duration,
    /// How often apply is begun before the order fails, and as often after_apply: workers that die in the
    /// middle count.
    pub max_attempts: u32,
    /// When a failed `after_apply` is tried again, and how often.
    pub cleanup: RetryPolicy,
}

impl Default for ApplySettings {
    /// Leases of 30 s, five minutes for a hook, 20 attempts; cleanup is tried five times.
    fn default() -> Self {
        ApplySettings {
            in_transaction: false,
            lease_ttl: Duration::from_secs(30),
            time_limit: Duration::from_secs(300),
            max_attempts: 20,
            cleanup: RetryPolicy {
                max_attempts: 5,
                backoff: Duration::from_secs(5),
                max_backoff: Duration::from_secs(300),
                jitter: Duration::from_secs(1),
            },
        }
    }
}

/// What is wrong with such settings: the field, and why.
pub(super) fn problem(
    review: &ReviewSettings,
    apply: &ApplySettings,
) -> Option<(&'static str, &'static str)> {
    let escalates_to_nobody = review.deadline.as_ref().is_some_and(
        |deadline| matches!(&deadline.then, DeadlinePolicy::Escalate(role) if role.is_empty()),
    );
    if review.approvals == 0 {
        Some(("review.approvals", "is zero; auto_approve approves without a reviewer"))
    } else if review.roles.iter().any(|(role, count)| role.is_empty() || *count == 0) {
        Some(("review.roles", "has an empty role or a count of zero"))
    } else if review.roles.values().any(|count| *count > review.approvals) {
        Some(("review.roles", "asks for more approvals of a role than review.approvals in all"))
    } else if escalates_to_nobody {
        Some(("review.deadline", "escalates to an empty role"))
    } else if apply.lease_ttl < Duration::from_millis(100) {
        Some(("apply.lease_ttl", "is under 100 ms: a worker could not extend it in time"))
    } else if apply.time_limit.is_zero() {
        Some(("apply.time_limit", "is zero: apply could never end"))
    } else if apply.max_attempts == 0 {
        Some(("apply.max_attempts", "is zero: nothing could ever be applied"))
    } else if apply.cleanup.max_attempts == 0 {
        Some(("apply.cleanup.max_attempts", "is zero: after_apply could never run"))
    } else {
        None
    }
}
