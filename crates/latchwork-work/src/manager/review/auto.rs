//! Decisions without a reviewer: a rule that approves, and a deadline that is over.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use super::approve::told;
use super::preview::describe;
use super::reject::{Rejection, ReviewError};
use super::rule::status_of;
use crate::manager::{WorkClient, WorkManager, read, transact};
use crate::store::{Note, Param, ReviewRow, Session, Statements, json as json_text, span};
use crate::{
    Actor, DeadlinePolicy, ErrorKind, EventType, Order, OrderId, OrderState, Result, TypeSettings,
};

impl WorkManager {
    /// Has the type's rule judge an order that was just submitted. Errors are logged: the order waits for
    /// a reviewer, and maintenance asks the rule again.
    pub(in crate::manager) async fn judge_submitted(&self, order: &Order) {
        if order.state != OrderState::Submitted || order.settings.review.auto_approve.is_none() {
            return;
        }
        if let Err(error) = self.judge(order.id).await {
            tracing::warn!(order = %order.id, %error, "the auto-approve rule did not judge; it is asked again");
        }
    }

    /// Asks the rule, and approves by it. What the rule cannot judge waits for a reviewer, and the trail
    /// says why.
    async fn judge(&self, id: OrderId) -> Result<()> {
        let (order, content, known) = self.reviewed(id).await?;
        let judged = async {
            known.can_approve(&content).await?;
            match known.auto_approve(&content).await? {
                Some(version) => Ok(Some((version, describe(&content, &known).await?))),
                None => Ok(None),
            }
        };
        let judged: Result<Option<(String, ReviewRow)>> = judged.await;
        let approved = transact!(self, session => {
            let order = session.lock_order(order.id).await?;
            if order.state != OrderState::Submitted {
                return Ok(None);
            }
            session.set_judged(order.id).await?;
            let (rule, made) = match &judged {
                Ok(Some((rule, made))) => (rule, made),
                Ok(None) => return Ok(None),
                Err(error) if matches!(error.kind(), ErrorKind::NotReady { .. }) => return Ok(None),
                Err(error) => {
                    let note = Note::system(&format!("the auto-approve rule failed: {error}"));
                    session.record(order.id, None, EventType::Commented, note).await?;
                    return Ok(None);
                }
            };
            if session.content(&order).await?.results() != content.results() {
                return Err(ErrorKind::Conflict { entity: "order" }.into());
            }
            let key = session.content_key(&order).await?;
            let state = session.review_state(order.id).await?;
            let current = session.review(order.id, state.content_version).await?;
            let (version, row) = match current.filter(|row| row.content == key) {
                Some(row) => (state.content_version, row),
                None => {
                    let row = ReviewRow { content: key, ..made.clone() };
                    session.insert_review(order.id, state.content_version + 1, &row).await?;
                    (state.content_version + 1, row)
                }
            };
            let payload = json!({"outcome": "approved", "content_version": version,
                "digest": row.digest, "results_digest": row.results_digest, "auto_approve": rule,
                "rule": order.settings.review, "approvals": []});
            let note = Note::system("approved by the type's rule").payload(payload);
            self.approved_in(session, order, version, note).await.map(Some)
        })?;
        if let Some(order) = approved {
            self.wake_apply(&order.order_type);
        }
        Ok(())
    }

    /// Asks the rules about orders that were submitted while nobody could ask them.
    pub(in crate::manager) async fn judge_all(&self, batch: i64) -> Result<u64> {
        let with_rule =
            self.types().iter().filter(|known| known.settings().review.auto_approve.is_some());
        let types: Vec<_> = with_rule.map(|known| known.name()).collect();
        if types.is_empty() {
            return Ok(0);
        }
        let types = json_text(&types)?;
        let (first, mut total) = (Param::from(types), 0);
        let mut from = OrderId::from_uuid(Uuid::nil());
        loop {
            let found = self.page(|sql| sql.unjudged, &first, from, batch).await?;
            for id in &found {
                total += counted(*id, self.judge(*id).await.map(|()| true));
            }
            match found.last() {
                Some(last) => from = *last,
                None => return Ok(total),
            }
        }
    }

    /// Deals with reviews that are late: rejects or escalates, by the rule of the order.
    pub(in crate::manager) async fn deal_with_late(&self, batch: i64) -> Result<u64> {
        let deadlines =
            self.types().iter().filter_map(|known| known.settings().review.deadline.as_ref());
        let Some(soonest) = deadlines.map(|deadline| deadline.after).min() else { return Ok(0) };
        let before = read!(self, session => {
            Ok(session.now().timestamp_micros().saturating_sub(span(soonest)))
        })?;
        let (before, mut total) = (Param::from(before), 0);
        let mut from = OrderId::from_uuid(Uuid::nil());
        loop {
            let (found, now) = read!(self, session => {
                let late = session.overdue(before.clone(), from, batch).await?;
                Ok((late, session.now()))
            })?;
            // Judged by the rule of each order before it is locked: most may be late much later, or never.
            let is_due = |since: &DateTime<Utc>, settings: &TypeSettings| {
                let deadline = settings.review.deadline.as_ref();
                deadline.is_some_and(|deadline| *since + deadline.after <= now)
            };
            for (id, since, settings) in &found {
                match settings {
                    Ok(settings) if is_due(since, settings) => {
                        total += counted(*id, self.late(*id).await);
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!(order = %id, %error, "an order cannot be read"),
                }
            }
            match found.last() {
                Some((last, _, _)) => from = *last,
                None => return Ok(total),
            }
        }
    }

    async fn late(&self, id: OrderId) -> Result<bool> {
        let client = WorkClient::new(self.clone(), Actor::system());
        let late = transact!(self, session => {
            let order = session.lock_order(id).await?;
            let Some(deadline) = order.settings.review.deadline.clone() else { return Ok(None) };
            let due = order.last_transitioned_at + deadline.after;
            if order.state != OrderState::Submitted || due > session.now() {
                return Ok(None);
            }
            session.set_overdue(id).await?;
            match &deadline.then {
                DeadlinePolicy::KeepWaiting => {}
                DeadlinePolicy::Escalate(role) => {
                    let note = Note::system("the review is late").payload(json!({"role": role, "due": due}));
                    session.record(id, None, EventType::Escalated, note).await?;
                    return self.decided_before(session, order).await.map(Some);
                }
                DeadlinePolicy::Reject => {
                    let error = ReviewError::new("review_late", "nobody decided before the deadline");
                    client.reject_in(session, &Rejection::new(id, [error])).await?;
                }
            }
            Ok(Some(order))
        })?;
        if let Some(order) = &late
            && order.state == OrderState::Approved
        {
            self.wake_apply(&order.order_type);
        }
        Ok(late.is_some())
    }

    /// A reviewer of the role that an order was escalated to may have approved it already, and would not be
    /// counted a second time: then that decides.
    async fn decided_before(&self, session: &mut Session<'_>, order: Order) -> Result<Order> {
        let state = session.review_state(order.id).await?;
        let version = state.content_version;
        let key = session.content_key(&order).await?;
        let seen = session.review(order.id, version).await?.filter(|row| row.content == key);
        let Some(row) = seen else { return Ok(order) };
        let review = status_of(session, &order, &state, version).await?;
        if !review.missing.is_empty() {
            return Ok(order);
        }
        let note = Note::system("the role that it was escalated to had approved it");
        let note = note.payload(told(&order, version, &row, &review));
        self.approved_in(session, order, version, note).await
    }

    /// The next orders that a statement finds, behind one.
    async fn page(
        &self,
        sql: fn(&Statements) -> &'static str,
        first: &Param,
        from: OrderId,
        batch: i64,
    ) -> Result<Vec<OrderId>> {
        read!(self, session => {
            session.order_ids(sql(session.sql()), first.clone(), from, batch).await
        })
    }
}

/// How many were done. One that fails hides none that does not.
fn counted(id: OrderId, done: Result<bool>) -> u64 {
    match done {
        Ok(done) => u64::from(done),
        Err(error) => {
            tracing::warn!(order = %id, %error, "an order could not be decided");
            0
        }
    }
}
