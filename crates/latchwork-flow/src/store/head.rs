//! What a store keeps of one context.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::provider::Token;
use serde_json::Value;

use crate::{ContextDetails, ContextSummary, Status, TransitionId};

/// One stored context: what a store looks at, and the body that it only keeps.
#[derive(Clone, PartialEq)]
pub struct StoredContext {
    /// What a store looks at.
    pub head: ContextHead,
    /// The context's JSON, with the lease's secret in it.
    pub body: String,
}

impl fmt::Debug for StoredContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredContext").field("head", &self.head).finish_non_exhaustive()
    }
}

/// All that a store keeps of a context but its body.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextHead {
    /// The transition: the row's key.
    pub id: TransitionId,
    /// Its machine.
    pub machine: String,
    /// What is moved, where the state has an id.
    pub entity: Option<String>,
    /// Where it stands. The body may say something older: that of a cancelled or retried context
    /// does. A quarantined context keeps what it had; [`shown_status`](Self::shown_status) says
    /// both.
    pub status: Status,
    /// 1 when created, and one more with each save and claim. Signals and heartbeats leave it.
    pub revision: u64,
    /// What a listing shows besides, as JSON text of [`ContextDetails`].
    pub details: String,
    /// What a paused context waits for.
    pub waiting: Option<Waiting>,
    /// Whether the body has a lease that somebody must give back.
    pub holds_lock: bool,
    /// Who is at it. It stays after its end, until another takes the context over.
    pub run: Option<RunLease>,
    /// What came and was not yet used, oldest first.
    pub signals: Vec<ReceivedSignal>,
    /// Why it was cancelled, or is to be by the process that runs it.
    pub cancel: Option<CancelRequest>,
    /// How often it was claimed since an action of it last completed, paused or asked to be
    /// repeated, the present claim included.
    pub attempts: u32,
    /// Why the last attempt came to nothing, where its process could still tell.
    pub last_error: Option<String>,
    /// Until when runners leave it alone.
    pub retry_at: Option<DateTime<Utc>>,
    /// Since when it is quarantined: no runner claims it until somebody releases or cancels it.
    pub quarantined_at: Option<DateTime<Utc>>,
    /// When somebody asked for a paused context to go on, whatever it waits for.
    pub woken_at: Option<DateTime<Utc>>,
    /// From when on a runner has something to do with it; none: never.
    pub due_at: Option<DateTime<Utc>>,
    /// When it was stored first, by the store's clock.
    pub created_at: DateTime<Utc>,
    /// When its revision last changed, by the store's clock.
    pub updated_at: DateTime<Utc>,
}

/// When a paused context is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// At a time.
    pub wake_at: Option<DateTime<Utc>>,
    /// On a signal of this name.
    pub signal: Option<String>,
    /// When its patience ends.
    pub timeout_at: Option<DateTime<Utc>>,
    /// When its lock must be renewed.
    pub renew_at: Option<DateTime<Utc>>,
}

/// The proof that one process is at a context, and until when that holds unless renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLease {
    /// The secret.
    pub token: Token,
    /// Who, for people.
    pub runner: String,
    /// Until when, by the store's clock.
    pub expires_at: DateTime<Utc>,
}

/// Who wants to be at a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunClaim {
    /// The secret, made by the claimer, so that a repeated claim finds what was granted.
    pub token: Token,
    /// Who, for people.
    pub runner: String,
    /// How long without a heartbeat.
    pub ttl: Duration,
}

impl RunClaim {
    /// A fresh claim of this process.
    pub fn new(ttl: Duration) -> Self {
        let runner = latchwork_lock::provider::process_label().to_owned();
        RunClaim { token: Token::random(), runner, ttl }
    }
}

/// A signal that came.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedSignal {
    /// Its number among those that wait with it.
    pub sequence: u64,
    /// Its name.
    pub name: String,
    /// What came with it.
    pub payload: Value,
    /// When, by the store's clock.
    pub at: DateTime<Utc>,
}

/// Somebody wants it called off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelRequest {
    /// Why.
    pub reason: String,
    /// When, by the store's clock.
    pub at: DateTime<Utc>,
}

/// A context as its machine gives it to the store.
#[derive(Clone, PartialEq)]
pub struct ContextDraft {
    /// The transition.
    pub id: TransitionId,
    /// Its machine.
    pub machine: String,
    /// What is moved, where the state has an id.
    pub entity: Option<String>,
    /// Where it stands.
    pub status: Status,
    /// The context's JSON, with the lease's secret in it.
    pub body: String,
    /// What a listing shows besides: JSON text of [`ContextDetails`].
    pub details: String,
    /// What a paused context waits for.
    pub waiting: Option<Waiting>,
    /// Whether the body has a lease that somebody must give back.
    pub holds_lock: bool,
}

impl fmt::Debug for ContextDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextDraft")
            .field("id", &self.id)
            .field("machine", &self.machine)
            .field("status", &self.status)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// What there is to do with a context, for the process that has claimed it.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// It was stored to be begun.
    Begin,
    /// The process that ran it has ended: continue at the next action.
    GoOn,
    /// The signal came that it waits for.
    Signal(ReceivedSignal),
    /// Its time has come.
    Time,
    /// Somebody wants it to go on.
    Hand,
    /// Its patience is at an end.
    Timeout,
    /// Its lock must be renewed.
    RenewLock,
    /// It is to be cancelled: the process that ran it ended before it learned so.
    Cancel(CancelRequest),
    /// It was called off, and its lock must be given back.
    ReleaseLock,
    /// Nothing: it waits, or it is over.
    Nothing,
}

impl ContextHead {
    /// What can be shown of it to anybody.
    pub fn summary(&self) -> ContextSummary {
        // Of details that a newer program wrote otherwise, the rest is still worth showing.
        let details = serde_json::from_str::<ContextDetails>(&self.details).unwrap_or_default();
        ContextSummary {
            id: self.id,
            machine: self.machine.clone(),
            entity: self.entity.clone(),
            status: self.shown_status(),
            revision: self.revision,
            details,
            attempts: self.attempts,
            last_error: self.last_error.clone(),
            retry_at: self.retry_at,
            quarantined_at: self.quarantined_at,
            runner: self.run.as_ref().map(|run| run.runner.clone()),
            runner_until: self.run.as_ref().map(|run| run.expires_at),
            signals: self.signals.iter().map(|signal| signal.name.clone()).collect(),
            cancel_reason: self.cancel.as_ref().map(|cancel| cancel.reason.clone()),
            due_at: self.due_at,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }

    /// Where it stands, as people are told: [`Status::Quarantined`] hides what it had before.
    pub fn shown_status(&self) -> Status {
        if self.quarantined_at.is_some() { Status::Quarantined } else { self.status }
    }

    /// Whether nothing would be lost with it: it is over and has no lock to give back.
    pub fn is_removable(&self) -> bool {
        self.status.is_over() && !self.holds_lock
    }

    /// The first signal that it waits for.
    pub fn awaited_signal(&self) -> Option<&ReceivedSignal> {
        let name = self.waiting.as_ref()?.signal.as_deref()?;
        self.signals.iter().find(|signal| signal.name == name)
    }

    /// What there is to do with it at this time.
    pub fn due(&self, now: DateTime<Utc>) -> Due {
        let reached = |at: Option<DateTime<Utc>>| at.is_some_and(|at| at <= now);
        if let Some(cancel) = self.cancel.as_ref().filter(|_| !self.status.is_over()) {
            return Due::Cancel(cancel.clone());
        }
        if self.quarantined_at.is_some() {
            return Due::Nothing;
        }
        match self.status {
            Status::Pending => Due::Begin,
            Status::Running => Due::GoOn,
            Status::Cancelled if self.holds_lock => Due::ReleaseLock,
            Status::Paused => {
                let waiting = self.waiting.clone().unwrap_or_default();
                match self.awaited_signal() {
                    Some(signal) => Due::Signal(signal.clone()),
                    None if self.woken_at.is_some() => Due::Hand,
                    None if reached(waiting.wake_at) => Due::Time,
                    None if reached(waiting.timeout_at) => Due::Timeout,
                    None if reached(waiting.renew_at) => Due::RenewLock,
                    None => Due::Nothing,
                }
            }
            _ => Due::Nothing,
        }
    }

    /// From when on a runner has something to do with it. The rules keep
    /// [`due_at`](Self::due_at) equal to this.
    pub fn compute_due_at(&self) -> Option<DateTime<Utc>> {
        if self.quarantined_at.is_some() {
            return None;
        }
        if let Some(run) = &self.run {
            return Some(run.expires_at);
        }
        let due = match self.status {
            Status::Pending | Status::Running => Some(self.updated_at),
            Status::Cancelled if self.holds_lock => Some(self.updated_at),
            Status::Paused => {
                let waiting = self.waiting.clone().unwrap_or_default();
                let times = [waiting.wake_at, waiting.timeout_at, waiting.renew_at, self.woken_at];
                let signal = self.awaited_signal().map(|signal| signal.at);
                times.into_iter().chain([signal]).flatten().min()
            }
            _ => None,
        };
        due.map(|due| self.retry_at.map_or(due, |retry_at| due.max(retry_at)))
    }
}
