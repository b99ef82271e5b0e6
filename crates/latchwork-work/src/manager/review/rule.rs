//! Whether the approvals of an order suffice.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::store::{ApprovalRow, ReviewState, Session};
use crate::{Actor, DeadlinePolicy, Order, Result, ReviewSettings};

/// One approval of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApprovalInfo {
    /// The reviewer.
    pub by: Actor,
    /// The roles that the reviewer had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// When.
    pub at: DateTime<Utc>,
}

/// How far the review of an order is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReviewStatus {
    /// The approvals of the content as it is.
    pub approvals: Vec<ApprovalInfo>,
    /// How many are needed.
    pub needed: u32,
    /// What is missing, one sentence each; nothing where the approvals suffice.
    pub missing: Vec<String>,
    /// When the review should be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<DateTime<Utc>>,
    /// The role that the decision has passed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated_to: Option<String>,
}

/// The role that a late order was escalated to.
fn escalated<'a>(order: &'a Order, state: &ReviewState) -> Option<&'a str> {
    let late = state.overdue_at.is_some_and(|at| at >= order.last_transitioned_at);
    match &order.settings.review.deadline.as_ref()?.then {
        DeadlinePolicy::Escalate(role) if late => Some(role),
        _ => None,
    }
}

/// What is missing by the rule of the order's type.
fn missing(
    rule: &ReviewSettings,
    escalated: Option<&str>,
    approvals: &[ApprovalRow],
) -> Vec<String> {
    let with = |role: &str| {
        let count = approvals.iter().filter(|one| one.roles.iter().any(|had| had == role)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    if let Some(role) = escalated {
        return match with(role) {
            0 => vec![format!(
                "an approval by a reviewer with the role {role:?}, since the review is late"
            )],
            _ => Vec::new(),
        };
    }
    let mut missing = Vec::new();
    let have = u32::try_from(approvals.len()).unwrap_or(u32::MAX);
    if have < rule.approvals {
        missing.push(format!("{} of {} approvals", rule.approvals - have, rule.approvals));
    }
    for (role, count) in &rule.roles {
        let have = with(role);
        if have < *count {
            missing.push(format!("{} of {count} approvals by the role {role:?}", count - have));
        }
    }
    missing
}

/// How far the review of a version of an order's content is.
pub(in crate::manager) async fn status_of(
    session: &mut Session<'_>,
    order: &Order,
    state: &ReviewState,
    version: u32,
) -> Result<ReviewStatus> {
    let rule = &order.settings.review;
    let approvals = match version {
        0 => Vec::new(),
        version => session.approvals(order.id, version).await?,
    };
    let escalated = escalated(order, state);
    let missing = missing(rule, escalated, &approvals);
    let info =
        |row: ApprovalRow| ApprovalInfo { by: row.actor, roles: row.roles, at: row.created_at };
    Ok(ReviewStatus {
        needed: if escalated.is_some() { 1 } else { rule.approvals },
        missing,
        due: rule.deadline.as_ref().map(|deadline| order.last_transitioned_at + deadline.after),
        escalated_to: escalated.map(str::to_owned),
        approvals: approvals.into_iter().map(info).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(name: &str, roles: &[&str]) -> ApprovalRow {
        ApprovalRow {
            actor: Actor::user(name).expect("legal"),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn w17_numbers_and_roles_are_counted() {
        let mut rule = ReviewSettings { approvals: 2, ..Default::default() };
        assert_eq!(missing(&rule, None, &[]).len(), 1);
        assert_eq!(missing(&rule, None, &[by("a", &[]), by("b", &[])]), Vec::<String>::new());
        rule.roles.insert("legal".to_owned(), 1);
        let without = missing(&rule, None, &[by("a", &[]), by("b", &["x"])]);
        assert_eq!(without, ["1 of 1 approvals by the role \"legal\""]);
        assert!(missing(&rule, None, &[by("a", &[]), by("b", &["legal"])]).is_empty());
        assert_eq!(missing(&rule, Some("boss"), &[by("a", &["legal"]), by("b", &[])]).len(), 1);
        assert!(missing(&rule, Some("boss"), &[by("c", &["boss"])]).is_empty());
    }
}
