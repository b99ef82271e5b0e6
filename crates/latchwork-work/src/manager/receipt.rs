//! The receipt of an applied order: what was approved by whom, and what was done, with its place in the
//! audit trail (W18).

mod verify;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{WorkManager, read};
use crate::store::EventRow;
use crate::{Error, ErrorKind, EventId, EventType, OrderId, Result, Seal};

/// What stands behind an applied order. `docs/verify.py` verifies it offline against an exported trail:
/// everything that it says stands in events whose hashes it names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// `latchwork-receipt-1`.
    pub format: String,
    /// The order.
    pub order_id: OrderId,
    /// The content version that was approved and applied.
    pub content_version: u32,
    /// The digest that the approvals name.
    pub digest: String,
    /// The digest of the results.
    pub results_digest: String,
    /// The preview as canonical JSON, whose SHA-256 is the digest; none where the type has no preview or
    /// the order was removed.
    pub preview: Option<String>,
    /// The rule of the review.
    pub rule: Value,
    /// The version of the rule that approved without a reviewer.
    pub auto_approve: Option<String>,
    /// Who approved, in which roles, and when.
    pub approvals: Value,
    /// Who applied it: worker, fence, attempt, idempotency key.
    pub applied: Value,
    /// What was changed.
    pub diff: Value,
    /// The events that say so.
    pub events: Vec<ReceiptEvent>,
}

/// An event that a receipt rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReceiptEvent {
    /// The event.
    pub id: EventId,
    /// `approved` or `applied`.
    pub event: String,
    /// Its place in the trail.
    #[serde(flatten)]
    pub seal: Seal,
}

impl WorkManager {
    /// The receipt of an applied order.
    ///
    /// # Errors
    /// [`NoReceipt`](ErrorKind::NoReceipt) for an order that was not approved and applied, or whose events
    /// were pruned,
    /// [`NotSealed`](ErrorKind::NotSealed) while its events are not sealed yet,
    /// [`OrderNotFound`](ErrorKind::OrderNotFound) for one without events.
    pub async fn receipt(&self, order: OrderId) -> Result<Receipt> {
        let (mut approved, mut applied, mut after, mut whole) = (None, None, 0, false);
        loop {
            let page = read!(self, session => { session.order_events(order, after, 1_000).await })?;
            let Some(last) = page.last() else { break };
            // Every chain begins with the proposal.
            whole |= after == 0 && page[0].event.event == EventType::Proposed.as_str();
            after = last.seq;
            for row in page {
                match row.event.event.as_str() {
                    name if name == EventType::Applied.as_str() => applied = Some(row),
                    name if name == EventType::Approved.as_str()
                        && outcome(&row)? == "approved" =>
                    {
                        approved = Some(row);
                    }
                    _ => {}
                }
            }
        }
        if after == 0 {
            // It says so where there is no such order either.
            read!(self, session => { session.order(order).await })?;
        }
        let (Some(approved), Some(applied)) = (approved, applied) else {
            let reason = match whole {
                true => "it was not approved and applied",
                false => {
                    "events of it were pruned; keep a receipt before that, with an export of the trail"
                }
            };
            return Err(ErrorKind::NoReceipt { id: order, reason }.into());
        };
        let (told, done) = (payload(&approved)?, payload(&applied)?);
        let version = told["content_version"].as_u64().and_then(|version| version.try_into().ok());
        let version: u32 =
            version.ok_or_else(|| Error::damaged("an approval without a version"))?;
        let row = read!(self, session => { session.review(order, version).await })?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let diff = applied.event.diff.as_deref().unwrap_or("null");
        let diff = serde_json::from_str(diff)
            .map_err(|error| Error::damaged(format!("a diff: {error}")))?;
        Ok(Receipt {
            format: "latchwork-receipt-1".to_owned(),
            order_id: order,
            content_version: version,
            digest: text(&told["digest"]),
            results_digest: text(&told["results_digest"]),
            preview: row.and_then(|row| row.preview),
            rule: told["rule"].clone(),
            auto_approve: told["auto_approve"].as_str().map(str::to_owned),
            approvals: told["approvals"].clone(),
            applied: done,
            diff,
            events: vec![sealed(&approved)?, sealed(&applied)?],
        })
    }
}

fn payload(row: &EventRow) -> Result<Value> {
    let text = row.event.payload.as_deref().unwrap_or("null");
    serde_json::from_str(text).map_err(|error| Error::damaged(format!("an event: {error}")))
}

fn outcome(row: &EventRow) -> Result<String> {
    Ok(payload(row)?["outcome"].as_str().unwrap_or_default().to_owned())
}

fn sealed(row: &EventRow) -> Result<ReceiptEvent> {
    let seal = row.seal.ok_or(ErrorKind::NotSealed { id: row.event.order_id })?;
    Ok(ReceiptEvent { id: row.event.id, event: row.event.event.clone(), seal })
}
