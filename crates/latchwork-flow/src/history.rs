//! What has happened in a transition, as its context remembers it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateResult {
    /// It may happen.
    Allow,
    /// It must not, and why.
    Deny(Cow<'static, str>),
    /// It has happened already, and how that is known.
    SkipIdempotent(Cow<'static, str>),
}

impl GateResult {
    /// It must not happen.
    pub fn deny(message: impl Into<Cow<'static, str>>) -> Self {
        GateResult::Deny(message.into())
    }

    /// It has happened already.
    pub fn skip(message: impl Into<Cow<'static, str>>) -> Self {
        GateResult::SkipIdempotent(message.into())
    }

    /// Allow where something is so, else deny with this message.
    pub fn allow_if(so: bool, message: impl Into<Cow<'static, str>>) -> Self {
        if so { GateResult::Allow } else { GateResult::deny(message) }
    }

    /// The verdict without its message.
    pub const fn verdict(&self) -> GateVerdict {
        match self {
            GateResult::Allow => GateVerdict::Allow,
            GateResult::Deny(_) => GateVerdict::Deny,
            GateResult::SkipIdempotent(_) => GateVerdict::SkipIdempotent,
        }
    }

    /// Why, where it does not allow.
    pub fn message(&self) -> Option<&str> {
        match self {
            GateResult::Allow => None,
            GateResult::Deny(message) | GateResult::SkipIdempotent(message) => Some(message),
        }
    }
}

/// A [`GateResult`] without its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateVerdict {
    /// It may happen.
    Allow,
    /// It must not.
    Deny,
    /// It has happened already.
    SkipIdempotent,
}

impl GateVerdict {
    /// The word in stored forms and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            GateVerdict::Allow => "allow",
            GateVerdict::Deny => "deny",
            GateVerdict::SkipIdempotent => "skip_idempotent",
        }
    }
}

impl fmt::Display for GateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the transition goes on after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Execution {
    /// With the next action.
    Continue,
    /// Later, from where it is; the lock stays held.
    Pause,
    /// Later, with the same action once more; the lock stays held.
    Repeat,
    /// Not at all.
    Stop,
}

impl Execution {
    /// The word in stored forms and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Execution::Continue => "continue",
            Execution::Pause => "pause",
            Execution::Repeat => "repeat",
            Execution::Stop => "stop",
        }
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One look at a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateEvaluation {
    /// The gate's name.
    pub gate: Arc<str>,
    /// The action that it stands before; none for a gate of the whole transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Arc<str>>,
    /// What it said.
    pub verdict: GateVerdict,
    /// Why, where it did not allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it answered.
    pub at: DateTime<Utc>,
}

/// One action that ran to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionExecution {
    /// The action's name.
    pub action: Arc<str>,
    /// Its place in the transition, from zero.
    pub index: usize,
    /// How the transition went on.
    pub execution: Execution,
    /// How often it had asked to be run again before; of those times only this one is kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeats: u32,
    /// What it had to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// When it began; to some milliseconds, where the machine has neither observers nor a store.
    pub started_at: DateTime<Utc>,
    /// When it ended, as exactly as it began, and never before.
    pub ended_at: DateTime<Utc>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(crate) fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// One action that its gate kept from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionSkip {
    /// The action's name.
    pub action: Arc<str>,
    /// Its place in the transition, from zero.
    pub index: usize,
    /// The gate's name.
    pub gate: Arc<str>,
    /// What the gate said.
    pub verdict: GateVerdict,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When.
    pub at: DateTime<Utc>,
}

/// What ended a transition that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The error's stable code.
    pub code: String,
    /// What was said, with the causes.
    pub message: String,
}
