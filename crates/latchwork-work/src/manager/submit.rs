//! Submitting results.

#[cfg(feature = "postgres")]
mod at_once;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Answer, check_text, once};
use super::heartbeat::expired;
use super::parts::Assembly;
use super::{WorkClient, transact};
use crate::metrics;
use crate::order_type::limit;
use crate::store::{
    Cells, IdempotencyKey, ItemEdit, LeaseRow, ResultRow, Session, json as json_text, params, rows,
};
use crate::{
    Error, ErrorKind, EventType, Item, ItemId, ItemState, Lease, LeaseId, OrderId, OrderState,
    Result,
};

/// A result of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// The lease of the item.
    pub lease: LeaseId,
    /// The result, by the type's schema.
    pub result: Value,
    /// What supports it; kept with the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// Notes for the reviewer; kept with the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

impl Submission {
    /// The result of a leased item.
    pub fn new(lease: &Lease, result: Value) -> Self {
        Submission { lease: lease.id, result, evidence: None, notes: None }
    }

    /// What supports the result.
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
}

/// What a submission did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Submitted {
    /// The item.
    pub item_id: ItemId,
    /// Its order.
    pub order_id: OrderId,
    /// Where the item stands.
    pub state: ItemState,
    /// Which version of the item's result this is.
    pub result_version: u32,
}

/// The longest notes, in bytes.
pub(super) const MAX_NOTES: usize = 16 << 10;

/// The most evidence that goes with a result or a part, in bytes of JSON.
const MAX_EVIDENCE: usize = 256 << 10;

pub(super) fn check_evidence(evidence: Option<&Value>) -> Result<()> {
    evidence.map_or(Ok(()), |evidence| limit("evidence", evidence, MAX_EVIDENCE))
}

/// A refusal stands in the trail once in so long, per actor, item and code.
pub(super) const REFUSED_EVERY: std::time::Duration = std::time::Duration::from_secs(60);

/// So many submissions in one call, at most.
const MAX_SUBMISSIONS: usize = 1_000;

impl WorkClient {
    /// Submits the result of an item: validated by the type's schema and code, then stored with the end
    /// of the lease. Straight from `leased` the item makes both moves, with both events.
    ///
    /// # Errors
    /// [`ResultInvalid`](ErrorKind::ResultInvalid) with every violation (the lease goes on, so that the
    /// agent can correct itself), [`TooLarge`](ErrorKind::TooLarge),
    /// [`LeaseExpired`](ErrorKind::LeaseExpired), [`LeaseForeign`](ErrorKind::LeaseForeign),
    /// [`OrderState`](ErrorKind::OrderState) when the order was called off.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted> {
        Ok(self.submit_once(submission).await?.value)
    }

    /// The same, and whether the answer is that of an earlier request with the same
    /// [key](Self::idempotent).
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    pub async fn submit_once(&self, submission: Submission) -> Result<Answer<Submitted>> {
        let submitted = self.submit_many_once(vec![submission]).await;
        let Answer { value, replayed } = submitted.inspect_err(metrics::count_refusal)?;
        let one = value.into_iter().next().ok_or_else(|| Error::damaged("an empty answer"))?;
        Ok(Answer { value: one, replayed })
    }

    /// Submits several results: all of them, or none.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit), of the first that is refused.
    pub async fn submit_many(&self, submissions: Vec<Submission>) -> Result<Vec<Submitted>> {
        let submitted = self.submit_many_once(submissions).await;
        Ok(submitted.inspect_err(metrics::count_refusal)?.value)
    }

    async fn submit_many_once(
        &self,
        submissions: Vec<Submission>,
    ) -> Result<Answer<Vec<Submitted>>> {
        if submissions.is_empty() || submissions.len() > MAX_SUBMISSIONS {
            let reason = format!("1 to {MAX_SUBMISSIONS} can be submitted at once");
            return Err(Error::invalid("submissions", reason));
        }
        for (n, one) in submissions.iter().enumerate() {
            check_text("notes", one.notes.as_deref().unwrap_or_default(), MAX_NOTES)?;
            check_evidence(one.evidence.as_ref())?;
            if submissions[..n].iter().any(|other| other.lease == one.lease) {
                return Err(Error::invalid("submissions", format!("{} is there twice", one.lease)));
            }
        }
        let key = self.key("submit", &submissions)?;
        if let Some(replay) = self.replay::<Vec<Submitted>>(&key).await? {
            for (asked, done) in submissions.iter().zip(&replay.value) {
                self.check_replay(asked.lease, done.order_id).await?;
            }
            return Ok(replay);
        }
        self.check_submissions(&submissions).await?;
        if let ([one], None) = (&submissions[..], &key)
            && let Some(done) = self.submit_at_once(one).await?
        {
            return Ok(Answer { value: vec![done], replayed: false });
        }
        self.accept_all(&submissions, &key, None).await
    }

    /// Stores results that were checked, with the ends of their leases; the result of one item may be
    /// assembled from its parts.
    pub(super) async fn accept_all(
        &self,
        submissions: &[Submission],
        key: &Option<IdempotencyKey>,
        assembly: Option<&Assembly>,
    ) -> Result<Answer<Vec<Submitted>>> {
        let ids: Vec<_> = submissions.iter().map(|one| one.lease).collect();
        let (mut freed, mut types) = (Vec::new(), Vec::new());
        let answer = transact!(begin_short, self.manager, session => {
            once!(session, key, {
                let leased = self.lock_leased(session, &ids).await?;
                let limited = leased.iter().filter(|(_, item)| self.manager.is_limited(item));
                freed = limited.map(|(row, _)| row.order_type.clone()).collect();
                types = leased.iter().map(|(row, _)| row.order_type.clone()).collect();
                self.accept(session, submissions, leased, assembly).await?
            })
        })?;
        if !answer.replayed {
            types.iter().for_each(|name: &String| metrics::submitted(name));
            let orders: std::collections::BTreeSet<_> =
                answer.value.iter().map(|one| one.order_id).collect();
            self.manager.follow_if_needed(orders).await;
            // The end of a lease may let in what its limits held back.
            self.manager.wake_freed(freed);
        }
        Ok(answer)
    }

    /// Validates outside of the transaction: a type's own code may take its time.
    pub(super) async fn check_submissions(&self, submissions: &[Submission]) -> Result<()> {
        if self.are_valid_by_kept_inputs(submissions).await? {
            return Ok(());
        }
        let agent = self.agent()?;
        let ids: Vec<_> = submissions.iter().map(|one| one.lease).collect();
        let values = params![json_text(&ids)?];
        let found = self.manager.store().fetch_once(|sql| sql.lease_inputs, values).await?;
        let read = |mut row: Cells| Ok((rows::lease(&mut row)?, row.json::<Value>()?));
        let leases = found.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        for one in submissions {
            let mut leases = leases.iter();
            let found =
                leases.find(|(row, _)| row.id == one.lease && self.may_use(&row.order_type));
            let (row, input) = found.ok_or_else(|| expired(one.lease))?;
            if row.agent != agent {
                self.refused(row, "lease_foreign").await;
                return Err(ErrorKind::LeaseForeign { id: row.id }.into());
            }
            let known = self.manager.types().get(&row.order_type)?;
            if let Err(error) = known.validate_submission(input, &one.result).await {
                self.invalid(row, &error).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether all results are valid for inputs that this process has kept. What is not is read, and
    /// refused with what is wrong then: first of all, that the lease is over.
    async fn are_valid_by_kept_inputs(&self, submissions: &[Submission]) -> Result<bool> {
        let agent = self.agent()?;
        for one in submissions {
            let Some(given) = self.manager.inner.inputs.of(one.lease, agent) else {
                return Ok(false);
            };
            if !self.may_use(&given.order_type) {
                return Ok(false);
            }
            let known = self.manager.types().get(&given.order_type)?;
            if known.validate_submission(&given.input, &one.result).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The items of leases that are this agent's and not over, locked in the order of their ids.
    pub(super) async fn lock_leased(
        &self,
        session: &mut Session<'_>,
        ids: &[LeaseId],
    ) -> Result<Vec<(LeaseRow, Item)>> {
        let agent = self.agent()?;
        let seen = session.leases(ids).await?;
        let items: Vec<_> = seen.iter().map(|row| row.item_id).collect();
        let items = session.lock_items(&items).await?;
        let now = session.now();
        // Once more under the lock: the lease may have ended before we got it.
        let rows = session.leases(ids).await?;
        let mut leased = Vec::with_capacity(ids.len());
        for id in ids {
            let row = rows.iter().find(|row| row.id == *id && self.may_use(&row.order_type));
            let row = row.ok_or_else(|| expired(*id))?;
            if row.agent != agent {
                return Err(ErrorKind::LeaseForeign { id: *id }.into());
            }
            if row.expires_at <= now {
                return Err(expired(*id));
            }
            let item = items.iter().find(|item| item.id == row.item_id);
            let item = item.ok_or_else(|| expired(*id))?;
            leased.push((row.clone(), item.clone()));
        }
        Ok(leased)
    }

    async fn accept(
        &self,
        session: &mut Session<'_>,
        submissions: &[Submission],
        leased: Vec<(LeaseRow, Item)>,
        assembly: Option<&Assembly>,
    ) -> Result<Vec<Submitted>> {
        let now = session.now();
        let orders: std::collections::BTreeSet<_> =
            leased.iter().map(|(row, _)| row.order_id).collect();
        self.check_takes_results(session, orders).await?;
        if let (Some(assembly), Some((row, _))) = (assembly, leased.first()) {
            assembly.check(session, row.item_id).await?;
        }
        let (mut edits, mut results, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for (one, (row, item)) in submissions.iter().zip(leased) {
            let mut edit = ItemEdit::new(item);
            if edit.item().state == ItemState::Leased {
                edit.step(self.manager.tables(), ItemState::InProgress, self.note(), now)?;
            }
            if let Some(assembly) = assembly {
                edit.record(EventType::Finalized, self.note().payload(assembly.payload()));
            }
            let version = edit.add_result();
            let payload = json!({"result_version": version, "lease_id": row.id, "fence": row.fence,
                "evidence": one.evidence, "notes": one.notes});
            let note = self.note().payload(payload);
            edit.step(self.manager.tables(), ItemState::Submitted, note, now)?;
            edit.set_error(None);
            results.push(ResultRow {
                item_id: row.item_id,
                version,
                actor: self.actor.clone(),
                result: one.result.clone(),
                created_at: now,
                edited_from: None,
            });
            done.push(Submitted {
                item_id: row.item_id,
                order_id: row.order_id,
                state: ItemState::Submitted,
                result_version: version,
            });
            edits.push(edit);
        }
        session.insert_results(&results).await?;
        session.write_items(edits).await?;
        Ok(done)
    }

    /// Refuses where an order takes no results any more.
    pub(super) async fn check_takes_results(
        &self,
        session: &mut Session<'_>,
        orders: impl IntoIterator<Item = OrderId>,
    ) -> Result<()> {
        for order in orders {
            let order = session.order(order).await?;
            // A failed order may be retried, and keeps what comes in until then.
            if !order.state.is_claimable() && order.state != OrderState::Failed {
                let reason = "it takes no more results; stop working on it";
                return Err(ErrorKind::OrderState { state: order.state, reason }.into());
            }
        }
        Ok(())
    }

    /// Keeps that a result was refused, with what was wrong (W6).
    async fn invalid(&self, row: &LeaseRow, error: &Error) {
        let violations = match error.kind() {
            ErrorKind::ResultInvalid { violations, .. } => json!(violations),
            _ => Value::Null,
        };
        let payload = json!({"code": error.code(), "violations": violations, "lease_id": row.id});
        self.record_refusal(row, "validation_failed", payload).await;
    }

    async fn refused(&self, row: &LeaseRow, code: &'static str) {
        self.record_refusal(row, code, json!({"code": code})).await;
    }

    /// Keeps that an agent used a lease of another one, and hands the error on.
    pub(super) async fn keep_foreign(&self, error: Error) -> Error {
        if let ErrorKind::LeaseForeign { id } = error.kind()
            && let Ok(ids) = json_text(&[id])
        {
            let found = self.manager.store().fetch_once(|sql| sql.leases, params![ids]).await;
            for mut row in found.unwrap_or_default() {
                if let Ok(row) = rows::lease(&mut row) {
                    self.refused(&row, "lease_foreign").await;
                }
            }
        }
        error
    }

    pub(super) async fn record_refusal(&self, row: &LeaseRow, code: &'static str, payload: Value) {
        let kept = self.keep_refusal(row.order_id, Some(row.item_id), code, payload).await;
        if let Err(error) = kept {
            tracing::warn!(item = %row.item_id, %error, "a refusal could not be recorded");
        }
    }

    /// Records a refusal, once a minute for each actor and code.
    pub(super) async fn keep_refusal(
        &self,
        order: OrderId,
        item: Option<ItemId>,
        code: &'static str,
        payload: Value,
    ) -> Result<()> {
        transact!(begin_short, self.manager, session => {
            if session.count_refusal(order, item, &self.actor, code, REFUSED_EVERY).await? {
                let note = self.note().payload(payload.clone());
                session.record(order, item, EventType::ValidationFailed, note).await?;
            }
            Ok(())
        })
    }
}

#[cfg(not(feature = "postgres"))]
impl WorkClient {
    async fn submit_at_once(&self, _: &Submission) -> Result<Option<Submitted>> {
        Ok(None)
    }
}
