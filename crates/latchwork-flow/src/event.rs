//! What happens in a transition, for those who watch (F10).

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::Fence;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Error, Execution, GateResult, GateVerdict, State, Status, TransitionContext, TransitionId,
};

/// One thing that happened, borrowed from where it did: nothing is allocated for it.
pub struct Event<'a, S: State> {
    /// Which transition.
    pub transition: TransitionId,
    /// Whose.
    pub machine: &'a str,
    /// Its number among the events of this transition, from zero, over pauses too.
    pub sequence: u64,
    /// When.
    pub at: DateTime<Utc>,
    /// All that is known of the transition.
    pub context: &'a TransitionContext<S>,
    /// What.
    pub kind: EventKind<'a>,
}

/// The sixteen things that can happen.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// It begins, or goes on after a pause or a crash.
    #[non_exhaustive]
    TransitionStarting {
        /// Whether it has begun before.
        resumed: bool,
    },
    /// All is done.
    TransitionCompleted,
    /// It goes on later.
    #[non_exhaustive]
    TransitionPaused {
        /// What the action said.
        metadata: Option<&'a Value>,
    },
    /// It was stopped, skipped or cancelled: the context's status says which.
    #[non_exhaustive]
    TransitionStopped {
        /// What the action said, or why.
        metadata: Option<&'a Value>,
    },
    /// A gate, an action or a provider failed, or the lock could not be taken.
    #[non_exhaustive]
    TransitionFailed {
        /// The error, as the caller gets it.
        error: &'a Error,
    },
    /// A gate is asked.
    #[non_exhaustive]
    GateEvaluating {
        /// Which.
        gate: &'a str,
        /// The action that it stands before, if it is an action's.
        action: Option<&'a str>,
    },
    /// A gate answered.
    #[non_exhaustive]
    GateEvaluated {
        /// Which.
        gate: &'a str,
        /// The action that it stands before, if it is an action's.
        action: Option<&'a str>,
        /// What it said.
        result: &'a GateResult,
    },
    /// An action begins.
    #[non_exhaustive]
    ActionExecuting {
        /// Which.
        action: &'a str,
        /// Its place, from zero.
        index: usize,
    },
    /// An action ended.
    #[non_exhaustive]
    ActionExecuted {
        /// Which.
        action: &'a str,
        /// Its place, from zero.
        index: usize,
        /// How the transition goes on.
        execution: Execution,
        /// How long it took.
        took: Duration,
    },
    /// An action's gate kept it from running.
    #[non_exhaustive]
    ActionSkipped {
        /// Which.
        action: &'a str,
        /// Its place, from zero.
        index: usize,
        /// What the gate said.
        result: &'a GateResult,
    },
    /// The lock is asked for.
    #[non_exhaustive]
    LockAcquiring {
        /// Its key.
        key: &'a str,
    },
    /// The lock is held.
    #[non_exhaustive]
    LockAcquired {
        /// Its key.
        key: &'a str,
        /// Its fence.
        fence: Fence,
        /// Whether somebody else had it at first.
        waited: bool,
    },
    /// Somebody else has the lock, or it cannot be asked for.
    #[non_exhaustive]
    LockFailed {
        /// Its key.
        key: &'a str,
        /// Why, with the holder where that is known.
        error: &'a latchwork_lock::Error,
    },
    /// The lock was given back.
    #[non_exhaustive]
    LockReleased {
        /// Its key.
        key: &'a str,
    },
    /// The lock that was kept over a pause is held again.
    #[non_exhaustive]
    LockRestored {
        /// Its key.
        key: &'a str,
        /// Its new fence.
        fence: Fence,
    },
    /// The lock was lost: it ran out, was broken or was taken over.
    #[non_exhaustive]
    LockLost {
        /// Its key.
        key: &'a str,
    },
}

impl EventKind<'_> {
    /// Its name, as seed and documentation spell it.
    pub const fn name(&self) -> &'static str {
        match self {
            EventKind::TransitionStarting { .. } => "TransitionStarting",
            EventKind::TransitionCompleted => "TransitionCompleted",
            EventKind::TransitionPaused { .. } => "TransitionPaused",
            EventKind::TransitionStopped { .. } => "TransitionStopped",
            EventKind::TransitionFailed { .. } => "TransitionFailed",
            EventKind::GateEvaluating { .. } => "GateEvaluating",
            EventKind::GateEvaluated { .. } => "GateEvaluated",
            EventKind::ActionExecuting { .. } => "ActionExecuting",
            EventKind::ActionExecuted { .. } => "ActionExecuted",
            EventKind::ActionSkipped { .. } => "ActionSkipped",
            EventKind::LockAcquiring { .. } => "LockAcquiring",
            EventKind::LockAcquired { .. } => "LockAcquired",
            EventKind::LockFailed { .. } => "LockFailed",
            EventKind::LockReleased { .. } => "LockReleased",
            EventKind::LockRestored { .. } => "LockRestored",
            EventKind::LockLost { .. } => "LockLost",
        }
    }
}

impl<S: State> Event<'_, S> {
    /// The event as a thing of its own, to be sent elsewhere.
    pub fn to_record(&self) -> EventRecord {
        let mut record = EventRecord {
            transition: self.transition,
            machine: self.machine.to_owned(),
            sequence: self.sequence,
            at: self.at,
            name: self.kind.name(),
            status: self.context.status,
            gate: None,
            action: None,
            index: None,
            verdict: None,
            execution: None,
            key: None,
            fence: None,
            message: None,
            metadata: None,
        };
        match self.kind {
            EventKind::TransitionStarting { .. } | EventKind::TransitionCompleted => {}
            EventKind::TransitionPaused { metadata }
            | EventKind::TransitionStopped { metadata } => {
                record.metadata = metadata.cloned();
            }
            EventKind::TransitionFailed { error } => record.message = Some(error.to_string()),
            EventKind::GateEvaluating { gate, action } => {
                record.gate = Some(gate.to_owned());
                record.action = action.map(str::to_owned);
            }
            EventKind::GateEvaluated { gate, action, result } => {
                record.gate = Some(gate.to_owned());
                record.action = action.map(str::to_owned);
                record.verdict = Some(result.verdict());
                record.message = result.message().map(str::to_owned);
            }
            EventKind::ActionExecuting { action, index } => {
                (record.action, record.index) = (Some(action.to_owned()), Some(index));
            }
            EventKind::ActionExecuted { action, index, execution, .. } => {
                (record.action, record.index) = (Some(action.to_owned()), Some(index));
                record.execution = Some(execution);
            }
            EventKind::ActionSkipped { action, index, result } => {
                (record.action, record.index) = (Some(action.to_owned()), Some(index));
                record.verdict = Some(result.verdict());
                record.message = result.message().map(str::to_owned);
            }
            EventKind::LockAcquiring { key }
            | EventKind::LockReleased { key }
            | EventKind::LockLost { key } => record.key = Some(key.to_owned()),
            EventKind::LockAcquired { key, fence, .. } | EventKind::LockRestored { key, fence } => {
                (record.key, record.fence) = (Some(key.to_owned()), Some(fence));
            }
            EventKind::LockFailed { key, error } => {
                (record.key, record.message) = (Some(key.to_owned()), Some(error.to_string()));
            }
        }
        record
    }
}

/// An [`Event`] as a thing of its own: to be queued, sent or written down.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EventRecord {
    /// Which transition.
    pub transition: TransitionId,
    /// Whose.
    pub machine: String,
    /// Its number among the events of this transition.
    pub sequence: u64,
    /// When.
    pub at: DateTime<Utc>,
    /// Which of the sixteen.
    pub name: &'static str,
    /// Where the transition stood.
    pub status: Status,
    /// The gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// The action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The action's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// What the gate said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<GateVerdict>,
    /// How the transition went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// The lock's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The lock's fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What an action said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

impl fmt::Display for EventRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        for part in [&self.gate, &self.action, &self.key].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        if let Some(verdict) = self.verdict {
            write!(f, " {verdict}")?;
        }
        if let Some(execution) = self.execution {
            write!(f, " {execution}")?;
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}
