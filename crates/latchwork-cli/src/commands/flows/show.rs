//! Stored transitions as people read them.

use chrono::{DateTime, SecondsFormat, Utc};
use latchwork::flow::{ContextSummary, OnTimeout, WaitingFor};
use serde_json::{Value, json};

use crate::duration;
use crate::show::{plain_table, trimmed};

/// One line a transition.
pub(super) fn table(contexts: &[ContextSummary], now: DateTime<Utc>) -> String {
    let mut table = plain_table();
    table.set_header(["ID", "MACHINE", "ENTITY", "STATUS", "NEXT", "TRIED", "AGE", "WAITS FOR"]);
    for context in contexts {
        table.add_row([
            context.id.to_string(),
            context.machine.clone(),
            context.entity.clone().unwrap_or_else(|| "-".to_owned()),
            context.status.to_string(),
            context.details.next_action.clone().unwrap_or_else(|| "-".to_owned()),
            context.attempts.to_string(),
            between(context.created_at, now),
            reasons(context, now).join("; "),
        ]);
    }
    trimmed(table)
}

/// All that can be told of one.
pub(super) fn details(context: &ContextSummary, now: DateTime<Utc>) -> String {
    let mut text = format!("{} is {}\n", context.id, context.status);
    let mut line = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    line("machine", format!("{} (definition {})", context.machine, context.details.definition));
    if let Some(entity) = &context.entity {
        line("entity", entity.clone());
    }
    for reason in reasons(context, now) {
        line("waits for", reason);
    }
    let details = &context.details;
    let next = details.next_action.as_deref().map(|next| format!(", next {next}"));
    line(
        "actions",
        format!("{} done, {} left{}", details.done, details.left, next.unwrap_or_default()),
    );
    if context.attempts > 0 {
        line("tried", format!("{} times since it last got on", context.attempts));
    }
    if let Some(error) = &context.last_error {
        line("last error", error.clone());
    }
    if let Some(failure) = &details.failure {
        line("failed", format!("{}: {}", failure.code, failure.message));
    }
    if let Some(metadata) = &details.metadata {
        line("says", metadata.to_string());
    }
    if let Some(key) = &details.lock_key {
        line("lock", key.clone());
    }
    if !context.signals.is_empty() {
        line("signals", format!("{} (not used yet)", context.signals.join(", ")));
    }
    if let Some(reason) = &context.cancel_reason {
        line("called off", reason.clone());
    }
    line("stored", format!("{} ago, {} times", between(context.created_at, now), context.revision));
    text
}

/// The same for programs.
pub(super) fn as_json(context: &ContextSummary, now: DateTime<Utc>) -> Value {
    let mut value = json!(context);
    value["waiting_for"] = json!(context.waiting_for(now));
    value
}

fn reasons(context: &ContextSummary, now: DateTime<Utc>) -> Vec<String> {
    let reasons = context.waiting_for(now).into_iter();
    reasons.map(|reason| sentence(&reason, now)).collect()
}

fn sentence(reason: &WaitingFor, now: DateTime<Utc>) -> String {
    match reason {
        WaitingFor::Time { at } => format!("its time, {}", until(*at, now)),
        WaitingFor::Signal { name } => format!("the signal {name:?}"),
        WaitingFor::Timeout { at, then } => {
            let then = match then {
                OnTimeout::Stop => "stops",
                OnTimeout::Fail => "fails",
                OnTimeout::Resume => "goes on",
            };
            format!("no longer than {}; then it {then}", until(*at, now))
        }
        WaitingFor::Hand => "somebody who resumes it".to_owned(),
        WaitingFor::Runner { due_at } => format!("a runner, for {}", between(*due_at, now)),
        WaitingFor::Process { runner, until: end } => {
            format!(
                "{runner}, which is at it; its run-lease ends {} unless renewed",
                until(*end, now)
            )
        }
        WaitingFor::Release { since, attempts, why } => format!(
            "its release: quarantined for {} after {attempts} attempts: {why}",
            between(*since, now)
        ),
        WaitingFor::Retry { at, why } => {
            let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("the next attempt, {}{why}", until(*at, now))
        }
        other => json!(other).to_string(),
    }
}

fn until(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let clock = at.to_rfc3339_opts(SecondsFormat::Secs, true);
    match (at - now).to_std() {
        Ok(left) => format!("in {} ({clock})", duration::show(left)),
        Err(_) => format!("{} ago ({clock})", between(at, now)),
    }
}

fn between(since: DateTime<Utc>, now: DateTime<Utc>) -> String {
    duration::show((now - since).to_std().unwrap_or_default())
}
