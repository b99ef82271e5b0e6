//! What the flow layer says, in the words of the HTTP contract. Never a state, never a secret.

use chrono::{DateTime, SecondsFormat, Utc};
use latchwork_api as api;
use latchwork_flow::{ContextSummary, OnTimeout, WaitingFor};
use serde_json::Value;

pub(crate) fn flow(flow: ContextSummary, now: DateTime<Utc>) -> api::Flow {
    let waiting_for = reasons(&flow, now);
    let details = flow.details;
    api::Flow {
        id: flow.id.as_uuid(),
        machine: flow.machine,
        definition: details.definition,
        entity: flow.entity,
        status: flow.status.name().to_owned(),
        revision: flow.revision,
        next_action: details.next_action,
        done: details.done as u64,
        left: details.left as u64,
        metadata: details.metadata,
        failure: details.failure.and_then(|failure| serde_json::to_value(failure).ok()),
        lock_key: details.lock_key,
        lock_fence: details.lock.fence.map(|fence| fence.get()),
        lock_expires_at: details.lock.expires_at,
        attempts: flow.attempts,
        last_error: flow.last_error,
        runner: flow.runner,
        runner_until: flow.runner_until,
        signals: flow.signals,
        cancel_reason: flow.cancel_reason,
        due_at: flow.due_at,
        created_at: flow.created_at,
        updated_at: flow.updated_at,
        waiting_for,
    }
}

/// What a flow waits for.
pub(crate) fn reasons(flow: &ContextSummary, now: DateTime<Utc>) -> Vec<api::Reason> {
    flow.waiting_for(now).into_iter().map(reason).collect()
}

fn reason(waiting: WaitingFor) -> api::Reason {
    let clock = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let told = |code: &str, message: String, until| api::Reason {
        code: code.to_owned(),
        message,
        subject: None,
        count: None,
        until,
        because: Vec::new(),
    };
    match waiting {
        WaitingFor::Time { at } => told("time", format!("it waits until {}", clock(at)), Some(at)),
        WaitingFor::Signal { name } => {
            told("signal", format!("it waits for the signal {name:?}"), None)
        }
        WaitingFor::Timeout { at, then } => {
            let then = match then {
                OnTimeout::Stop => "stops",
                OnTimeout::Fail => "fails",
                OnTimeout::Resume => "goes on",
            };
            let message = format!("it waits no longer than {}; then it {then}", clock(at));
            told("timeout", message, Some(at))
        }
        WaitingFor::Hand => told("hand", "it waits for somebody who resumes it".to_owned(), None),
        WaitingFor::Runner { due_at } => {
            let message = format!("it is due since {}, and no runner has taken it", clock(due_at));
            told("runner", message, None)
        }
        WaitingFor::Release { since, attempts, why } => {
            let since = clock(since);
            let message =
                format!("it is quarantined since {since}, after {attempts} attempts: {why}");
            told("quarantined", message, None)
        }
        WaitingFor::Retry { at, why } => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            told("retry", format!("it is tried again at {}{why}", clock(at)), Some(at))
        }
        WaitingFor::Process { runner, until } => {
            let message =
                format!("the process {runner} is at it, until {} or longer", clock(until));
            let subject = api::Subject { kind: "process".to_owned(), id: runner };
            api::Reason { subject: Some(subject), ..told("process", message, Some(until)) }
        }
        other => {
            let text = serde_json::to_value(&other)
                .map_or_else(|_| String::new(), |v: Value| v.to_string());
            told("other", text, None)
        }
    }
}
