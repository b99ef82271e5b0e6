//! The form of a declaration: what may stand in the file.
//!
//! The names are those of [`TypeSettings`]; durations are texts, and what is not said is the default.
//! `locks`, `rate` and `generator` are kept for what items will name one day; until then they are refused
//! as every other name that is not known.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration::DurationText;
use super::schema::SchemaText;
use super::split::{SharedLimit, Split};
use crate::{
    ApplySettings, AutoApprove, DeadlinePolicy, FailurePolicy, PartSettings, RetryPolicy,
    ReviewDeadline, ReviewSettings, TypeSettings,
};

/// Fields with a value only: what is not said is not written either.
macro_rules! optional {
    ($(#[$doc:meta])* struct $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $(
                #[serde(default, skip_serializing_if = "Option::is_none")]
                $(#[$attribute])*
                pub(super) $field: Option<$type>,
            )*
        }
    };
}

/// An order type in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) name: String,
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub(super) version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lease_ttl: Option<DurationText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) heartbeat_every: Option<DurationText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max_leases: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max_payload_bytes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max_result_bytes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<FailurePolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<SchemaText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<SchemaText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<SchemaText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<Split>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) concurrency: Option<SharedLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retry: Option<Retry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) parts: Option<Parts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) review: Option<Review>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) apply: Option<Apply>,
}

/// The fields that are no schema. One that stands below the heading of a schema would be a keyword of
/// that schema, which JSON Schema passes over in silence.
pub(super) const PLAIN_FIELDS: [&str; 9] = [
    "name",
    "version",
    "priority",
    "lease_ttl",
    "heartbeat_every",
    "max_leases",
    "max_payload_bytes",
    "max_result_bytes",
    "failure",
];

fn first() -> u32 {
    1
}

fn is_first(version: &u32) -> bool {
    *version == 1
}

optional! {
    /// When an item, or a cleanup, is tried again.
    struct Retry {
        max_attempts: u16,
        backoff: DurationText,
        max_backoff: DurationText,
        jitter: DurationText,
    }
}

optional! {
    /// Results in parts.
    struct Parts {
        required: Vec<String>,
        schemas: BTreeMap<String, SchemaText>,
        max_parts: u32,
        max_part_bytes: u32,
        max_total_bytes: u32,
    }
}

optional! {
    /// How orders are reviewed.
    struct Review {
        approvals: u32,
        roles: BTreeMap<String, u32>,
        proposer_may_approve: bool,
        submitter_may_approve: bool,
        exact_preview: bool,
        deadline: Deadline,
        auto_approve: Rule,
        max_diff_bytes: u32,
    }
}

/// When a review should be over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deadline {
    pub(super) after: DurationText,
    #[serde(default)]
    pub(super) then: DeadlinePolicy,
}

/// What is approved without a reviewer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) version: String,
    pub(super) schema: SchemaText,
}

optional! {
    /// How orders are applied, and by whom.
    struct Apply {
        applier: String,
        lease_ttl: DurationText,
        time_limit: DurationText,
        max_attempts: u32,
    }
}

impl Document {
    /// The settings that it comes to.
    pub(super) fn settings(&self) -> TypeSettings {
        let usual = TypeSettings::default();
        let lease_ttl = time(self.lease_ttl, usual.lease_ttl);
        TypeSettings {
            lease_ttl,
            // A fifth of a lease, as in the defaults: so a short lease needs no second setting.
            heartbeat_every: time(self.heartbeat_every, lease_ttl / 5),
            retry: self.retry.clone().unwrap_or_default().policy(usual.retry),
            failure: self.failure.unwrap_or(usual.failure),
            max_leases: self.max_leases,
            priority: self.priority.unwrap_or(usual.priority),
            max_payload_bytes: bytes(self.max_payload_bytes, usual.max_payload_bytes),
            max_result_bytes: bytes(self.max_result_bytes, usual.max_result_bytes),
            parts: self.parts.clone().unwrap_or_default().settings(usual.parts),
            review: self.review.clone().unwrap_or_default().settings(usual.review),
            apply: self.apply.clone().unwrap_or_default().settings(usual.apply),
        }
    }
}

fn time(told: Option<DurationText>, usual: Duration) -> Duration {
    told.map_or(usual, |text| text.0)
}

fn bytes(told: Option<u32>, usual: usize) -> usize {
    told.map_or(usual, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

impl Retry {
    fn policy(self, usual: RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(usual.max_attempts),
            backoff: time(self.backoff, usual.backoff),
            max_backoff: time(self.max_backoff, usual.max_backoff),
            jitter: time(self.jitter, usual.jitter),
        }
    }
}

impl Parts {
    fn settings(self, usual: PartSettings) -> PartSettings {
        let schemas = self.schemas.unwrap_or_default().into_iter();
        PartSettings {
            required: self.required.unwrap_or_default(),
            schemas: schemas.map(|(key, schema)| (key, schema.0)).collect(),
            max_parts: self.max_parts.unwrap_or(usual.max_parts),
            max_part_bytes: bytes(self.max_part_bytes, usual.max_part_bytes),
            max_total_bytes: bytes(self.max_total_bytes, usual.max_total_bytes),
        }
    }
}

impl Review {
    fn settings(self, usual: ReviewSettings) -> ReviewSettings {
        let deadline = |due: Deadline| ReviewDeadline { after: due.after.0, then: due.then };
        let rule = |rule: Rule| AutoApprove { version: rule.version, schema: Some(rule.schema.0) };
        ReviewSettings {
            approvals: self.approvals.unwrap_or(usual.approvals),
            roles: self.roles.unwrap_or_default(),
            proposer_may_approve: self.proposer_may_approve.unwrap_or(usual.proposer_may_approve),
            submitter_may_approve: self
                .submitter_may_approve
                .unwrap_or(usual.submitter_may_approve),
            exact_preview: self.exact_preview.unwrap_or(usual.exact_preview),
            deadline: self.deadline.map(deadline),
            auto_approve: self.auto_approve.map(rule),
            max_diff_bytes: bytes(self.max_diff_bytes, usual.max_diff_bytes),
        }
    }
}

impl Apply {
    fn settings(self, usual: ApplySettings) -> ApplySettings {
        ApplySettings {
            lease_ttl: time(self.lease_ttl, usual.lease_ttl),
            time_limit: time(self.time_limit, usual.time_limit),
            max_attempts: self.max_attempts.unwrap_or(usual.max_attempts),
            ..usual
        }
    }
}
