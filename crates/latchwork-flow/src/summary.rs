//! What can be shown of a stored context to anybody: no secret, no state.

use chrono::{DateTime, Utc};
use latchwork_lock::LockState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Failure, OnTimeout, Paused, State, Status, TransitionContext, TransitionId};

/// What a listing shows of a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextSummary {
    /// The transition.
    pub id: TransitionId,
    /// Its machine.
    pub machine: String,
    /// What is moved, where the state has an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// Where it stands.
    pub status: Status,
    /// How often it was stored.
    pub revision: u64,
    /// What more is known of it.
    #[serde(flatten)]
    pub details: ContextDetails,
    /// How often it was claimed since an action of it last completed, paused or asked to be
    /// repeated.
    #[serde(default, skip_serializing_if = "crate::history::is_zero")]
    pub attempts: u32,
    /// Why the last attempt came to nothing, where its process could still tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Until when runners leave it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<DateTime<Utc>>,
    /// Since when it is quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_at: Option<DateTime<Utc>>,
    /// Who is at it, or was when it died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// When that one's run-lease ends unless renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_until: Option<DateTime<Utc>>,
    /// The names of the signals that came and were not yet used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<String>,
    /// Why somebody wants it called off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// From when on a runner has something to do with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<DateTime<Utc>>,
    /// When it was stored first.
    pub created_at: DateTime<Utc>,
    /// When it was stored last.
    pub updated_at: DateTime<Utc>,
}

/// The part of a summary that the machine tells and a store only keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextDetails {
    /// The version of the machine's definition.
    pub definition: u32,
    /// The action that comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_action: Option<String>,
    /// How many actions are through or were skipped.
    pub done: usize,
    /// How many are left.
    pub left: usize,
    /// What the action said that paused or stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// What ended it, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// The key of its lock, held or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// The lock that it keeps while paused.
    pub lock: LockState,
}

/// One reason why a transition does not go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitingFor {
    /// A time.
    Time {
        /// Which.
        at: DateTime<Utc>,
    },
    /// A signal.
    Signal {
        /// Its name.
        name: String,
    },
    /// The end of its patience.
    Timeout {
        /// When.
        at: DateTime<Utc>,
        /// What happens then.
        then: OnTimeout,
    },
    /// Somebody who resumes it: no time or signal will.
    Hand,
    /// A runner, since it is due.
    Runner {
        /// Since when.
        due_at: DateTime<Utc>,
    },
    /// Somebody who releases it from its quarantine, or cancels it.
    Release {
        /// Since when it is quarantined.
        since: DateTime<Utc>,
        /// How often it was tried.
        attempts: u32,
        /// Why it did not get on.
        why: String,
    },
    /// The next attempt, after one that came to nothing.
    Retry {
        /// When.
        at: DateTime<Utc>,
        /// Why the last one came to nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// The process that is at it.
    Process {
        /// Which.
        runner: String,
        /// When its run-lease ends unless renewed.
        until: DateTime<Utc>,
    },
}

impl ContextSummary {
    /// Why it does not go on; nothing for one that is over. Who holds its lock, where it needs one,
    /// is to be asked of the lock: [`Locks::inspect`](latchwork_lock::Locks::inspect) with
    /// [`lock_key`](ContextDetails::lock_key).
    pub fn waiting_for(&self, now: DateTime<Utc>) -> Vec<WaitingFor> {
        if self.status.is_over() {
            return Vec::new();
        }
        if let Some(since) = self.quarantined_at {
            let why = self.last_error.clone();
            // A process that was killed or aborted could report nothing.
            let why = why.unwrap_or_else(|| "the process of its last attempt died".to_owned());
            return vec![WaitingFor::Release { since, attempts: self.attempts, why }];
        }
        if let (Some(runner), Some(until)) = (&self.runner, self.runner_until)
            && until > now
        {
            return vec![WaitingFor::Process { runner: runner.clone(), until }];
        }
        if let Some(due_at) = self.due_at
            && due_at <= now
        {
            return vec![WaitingFor::Runner { due_at }];
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return vec![WaitingFor::Retry { at, why: self.last_error.clone() }];
        }
        self.details.paused.as_ref().map(Paused::waiting_for).unwrap_or_default()
    }
}

impl Paused {
    /// What would end the pause.
    pub fn waiting_for(&self) -> Vec<WaitingFor> {
        let mut reasons = Vec::new();
        reasons.extend(self.wake_at.map(|at| WaitingFor::Time { at }));
        reasons.extend(self.signal.clone().map(|name| WaitingFor::Signal { name }));
        if reasons.is_empty() {
            reasons.push(WaitingFor::Hand);
        }
        reasons.extend(self.timeout.map(|t| WaitingFor::Timeout { at: t.at, then: t.then }));
        reasons
    }
}

impl<S: State> TransitionContext<S> {
    /// What can be shown of it to anybody.
    pub fn summary(&self) -> ContextSummary {
        ContextSummary {
            id: self.id,
            machine: self.machine.name.to_string(),
            entity: self.entity().map(Into::into),
            status: self.status,
            revision: self.revision,
            details: self.details(),
            attempts: 0,
            last_error: None,
            retry_at: None,
            quarantined_at: None,
            runner: None,
            runner_until: None,
            signals: Vec::new(),
            cancel_reason: None,
            due_at: None,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }

    pub(crate) fn details(&self) -> ContextDetails {
        let remaining = self.remaining_actions();
        ContextDetails {
            definition: self.definition,
            next_action: remaining.first().map(ToString::to_string),
            done: self.next,
            left: remaining.len(),
            metadata: self.metadata.clone(),
            failure: self.failure().cloned(),
            paused: self.paused().cloned(),
            lock_key: self.lock_key.as_ref().map(ToString::to_string),
            lock: self.lock_state(),
        }
    }
}
