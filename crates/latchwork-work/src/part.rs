//! Parts of an item's result.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names::named;
use crate::{Lease, LeaseId, Violation};

named! {
    /// What is known of a part.
    pub enum PartStatus ("part status") {
        /// It was not checked, and does not count.
        Draft = "draft",
        /// It was accepted.
        Validated = "validated",
        /// It was refused, and does not count.
        Rejected = "rejected",
    }
}

/// A part of a result that an agent hands in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSubmission {
    /// The lease of the item.
    pub lease: LeaseId,
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
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
}

impl PartSubmission {
    /// A part of the result of a leased item.
    pub fn new(lease: &Lease, key: impl Into<String>, payload: Value) -> Self {
        PartSubmission {
            lease: lease.id,
            key: key.into(),
            seq: None,
            payload,
            evidence: None,
            notes: None,
            draft: false,
        }
    }

    /// Its place among several of one key.
    #[must_use]
    pub fn seq(mut self, seq: u32) -> Self {
        self.seq = Some(seq);
        self
    }

    /// What supports it.
    #[must_use]
    pub fn evidence(mut self, evidence: Value) -> Self {
        self.evidence = Some(evidence);
        self
    }

    /// Notes for the reviewer.
    #[must_use]
    pub fn notes(mut self, notes: impl Into<String>) -> Self {
        self.notes = Some(notes.into());
        self
    }

    /// Kept without being checked.
    #[must_use]
    pub fn draft(mut self) -> Self {
        self.draft = true;
        self
    }
}

/// A part that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// Which part.
    pub key: String,
    /// Its place among several of one key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
    /// Whether it counts.
    pub status: PartStatus,
    /// SHA-256 of its JSON as it is stored, in hex.
    pub checksum: String,
    /// Its size, in bytes of JSON.
    pub bytes: u64,
    /// What was wrong, of a rejected one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Violation>,
    /// The agent that handed it in.
    pub agent: String,
    /// The fence of that agent's lease.
    pub fence: u64,
    /// When.
    pub submitted_at: DateTime<Utc>,
    /// The part itself, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<PartBody>,
}

impl Part {
    /// Whether it matters to a lease. A rejected part is its own agent's mistake to mend: it does not
    /// stand in the way of the next one.
    pub(crate) fn counts_for(&self, fence: u64) -> bool {
        self.status != PartStatus::Rejected || self.fence == fence
    }
}

/// What a part carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
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

/// Which parts are listed; all of them, without their bodies, unless told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PartQuery {
    /// Of this key only.
    pub key: Option<String>,
    /// With this status only.
    pub status: Option<PartStatus>,
    /// With their bodies.
    pub bodies: bool,
}

/// How strictly parts are assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalizeMode {
    /// Every required part is there, no part is a draft or rejected, and no sequence has a gap.
    #[default]
    Strict,
    /// What is validated.
    BestEffort,
}

/// How results in parts are checked. A type without required parts and schemas takes any part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PartSettings {
    /// The keys without which a strict finalize refuses.
    pub required: Vec<String>,
    /// The JSON Schemas of parts by their keys. Where there are any, other keys are refused, except
    /// required ones, which then take anything.
    pub schemas: BTreeMap<String, Value>,
    /// How many parts an item may have, of all keys and sequences.
    pub max_parts: u32,
    /// The largest part, in bytes of JSON.
    pub max_part_bytes: usize,
    /// The largest sum of an item's parts, in bytes of JSON.
    pub max_total_bytes: usize,
}

impl Default for PartSettings {
    fn default() -> Self {
        PartSettings {
            required: Vec::new(),
            schemas: BTreeMap::new(),
            max_parts: 100,
            max_part_bytes: 1 << 20,
            max_total_bytes: 8 << 20,
        }
    }
}

impl PartSettings {
    /// Whether a part of this key may be handed in.
    pub(crate) fn takes(&self, key: &str) -> bool {
        self.schemas.is_empty()
            || self.schemas.contains_key(key)
            || self.required.iter().any(|required| required == key)
    }

    /// The result that parts make up: an object with one member for each key. A key without sequences
    /// is its part, one with sequences the list of its parts in their order.
    ///
    /// # Errors
    /// Everything that is missing.
    pub(crate) fn assemble(
        &self,
        parts: &[Part],
        mode: FinalizeMode,
    ) -> std::result::Result<Value, Vec<String>> {
        let mut problems = Vec::new();
        let validated = |part: &&Part| part.status == PartStatus::Validated;
        if mode == FinalizeMode::Strict {
            for key in &self.required {
                if !parts.iter().filter(validated).any(|part| part.key == *key) {
                    problems.push(format!("the required part {key:?} is missing"));
                }
            }
            for part in parts.iter().filter(|part| !validated(part)) {
                problems.push(format!("the part {} is {}", part.name(), part.status));
            }
        }
        let mut keys = BTreeMap::<&str, Vec<&Part>>::new();
        for part in parts.iter().filter(validated) {
            keys.entry(part.key.as_str()).or_default().push(part);
        }
        if keys.is_empty() {
            problems.push("no part is validated".to_owned());
        }
        let mut result = Map::new();
        for (key, mut of_key) in keys {
            of_key.sort_by_key(|part| part.seq);
            let payload = |part: &Part| part.body.as_ref().map(|body| body.payload.clone());
            let value = match of_key[..] {
                [only] if only.seq.is_none() => payload(only).unwrap_or_default(),
                _ => {
                    let numbers: Vec<_> = of_key.iter().filter_map(|part| part.seq).collect();
                    let first = numbers.first().copied().unwrap_or(0);
                    let gap = first > 1 || numbers.windows(2).any(|two| two[1] != two[0] + 1);
                    if gap && mode == FinalizeMode::Strict {
                        problems.push(format!("the sequence of {key:?} has a gap: {numbers:?}"));
                    }
                    of_key.into_iter().filter_map(payload).collect()
                }
            };
            result.insert(key.to_owned(), value);
        }
        if problems.is_empty() { Ok(Value::Object(result)) } else { Err(problems) }
    }
}

impl Part {
    /// Its key and sequence, for people.
    pub(crate) fn name(&self) -> String {
        match self.seq {
            Some(seq) => format!("{:?} {seq}", self.key),
            None => format!("{:?}", self.key),
        }
    }
}
