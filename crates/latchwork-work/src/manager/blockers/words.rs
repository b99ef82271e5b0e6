//! Each reason as a sentence.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use super::super::HeldBack;
use super::{Blocker, BlockerCode};
use crate::store::{LeaseRow, LimitKey, LimitRow};
use crate::{Item, ItemState, Order, OrderState};

/// What an order itself waits for; nothing while agents work on it, and when it is completed.
pub(super) fn of_order(order: &Order) -> Option<Blocker> {
    let why = order.error.as_ref().map(reason).unwrap_or_default();
    let (code, message) = match order.state {
        OrderState::Queued | OrderState::CheckedOut | OrderState::InProgress => return None,
        OrderState::Completed => return None,
        OrderState::Submitted => {
            (BlockerCode::Approval, "all results are in; the order waits for approval".to_owned())
        }
        OrderState::Approved => {
            (BlockerCode::Apply, "the order is approved and waits to be applied".to_owned())
        }
        OrderState::Applied => {
            (BlockerCode::Apply, "the order is applied and waits for its items to end".to_owned())
        }
        OrderState::Rejected => {
            let message = format!("the order is rejected{why}; requeue it, or give it up");
            (BlockerCode::OrderState, message)
        }
        OrderState::Failed => {
            let message = format!("the order failed{why}; retry it, or give it up");
            (BlockerCode::OrderState, message)
        }
        OrderState::DeadLettered => {
            (BlockerCode::OrderState, format!("the order was given up (dead_lettered){why}"))
        }
    };
    Some(blocker(code, message))
}

pub(super) fn leased(lease: &LeaseRow, now: DateTime<Utc>) -> Blocker {
    let agent = &lease.agent;
    let mut found = match lease.expires_at > now {
        true => {
            let left = span(lease.expires_at, now);
            let message = format!("waits for agent {agent}, its lease ends in {left}");
            blocker(BlockerCode::Leased, message)
        }
        false => {
            let over = span(now, lease.expires_at);
            let message = format!(
                "the lease of agent {agent} is over since {over}; maintenance takes the item back"
            );
            blocker(BlockerCode::LeaseExpired, message)
        }
    };
    found.until = Some(lease.expires_at);
    found.agent = Some(agent.clone());
    found.of(lease.item_id)
}

pub(super) fn later(item: &Item, now: DateTime<Utc>) -> Blocker {
    let when = moment(item.available_at, now);
    let message = match (item.attempts, &item.error) {
        (0, _) | (_, None) => format!("was put off, and can be leased {when}"),
        (attempts, Some(error)) => {
            let (max, why) = (item.max_attempts, reason(error));
            format!("retries {when}, after attempt {attempts} of {max}{why}")
        }
    };
    let mut found = blocker(BlockerCode::Backoff, message);
    found.until = Some(item.available_at);
    found
}

pub(super) fn limited(name: &str, limit: Option<(LimitKey, LimitRow)>) -> Blocker {
    let limit = limit.map(|(key, row)| HeldBack {
        limit: key.into_text(),
        held: u32::try_from(row.held).unwrap_or(0),
        max: u32::try_from(row.max).unwrap_or(u32::MAX),
    });
    let message = match &limit {
        Some(limit) if limit.held >= limit.max => {
            format!("held back by the limit of {} on {name}", limit.max)
        }
        Some(limit) => {
            format!("held back by the limit of {} on {name}: other items come first", limit.max)
        }
        None => format!("held back by the limit on {name}"),
    };
    let mut found = blocker(BlockerCode::Limit, message);
    found.limit = limit;
    found
}

pub(super) fn failed_item(item: &Item) -> Blocker {
    let why = item.error.as_ref().map(reason).unwrap_or_default();
    let (attempts, max) = (item.attempts, item.max_attempts);
    let message = match item.state {
        ItemState::DeadLettered => format!("was given up (dead_lettered){why}"),
        _ if attempts >= max => format!("failed, its {max} attempts are used up{why}; retry it"),
        _ => format!("failed for good at attempt {attempts} of {max}{why}; retry it"),
    };
    blocker(BlockerCode::Failed, message).of(item.id)
}

pub(super) fn blocker(code: BlockerCode, message: impl Into<String>) -> Blocker {
    let message = message.into();
    Blocker { code, message, until: None, item_id: None, agent: None, limit: None, behind: None }
}

/// The message of a stored error, behind a colon.
fn reason(error: &Value) -> String {
    match error.get("message").and_then(Value::as_str) {
        Some(message) => format!(": {message}"),
        None => format!(": {error}"),
    }
}

pub(super) fn moment(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let text = at.to_rfc3339_opts(SecondsFormat::Secs, true);
    if at > now { format!("at {text}, in {}", span(at, now)) } else { text }
}

/// The time from one moment to another, as people say it.
fn span(to: DateTime<Utc>, from: DateTime<Utc>) -> String {
    let span = (to - from).to_std().unwrap_or(Duration::ZERO);
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
