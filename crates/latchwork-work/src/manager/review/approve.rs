//! Approving an order, as it is or with edits.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::edit::ResultEdit;
use super::preview::{Preview, check_state, describe, shown};
use super::rule::{ReviewStatus, status_of};
use crate::manager::client::{Answer, once};
use crate::manager::{WorkClient, transact};
use crate::metrics::count_refusal;
use crate::store::{ItemEdit, Note, OrderEdit, ReviewRow, ReviewState, Session};
use crate::{
    Diff, Error, ErrorKind, EventType, ItemId, ItemState, Order, OrderContent, OrderId, OrderState,
    Result,
};

/// An approval: it names what was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The order.
    pub order: OrderId,
    /// The content version of the [`Preview`] that was seen.
    pub content_version: u32,
    /// Its digest.
    pub digest: String,
    /// Results that the reviewer puts in place of the agents'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<ResultEdit>,
    /// A sentence for the trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl Approval {
    /// Approves what a preview shows.
    pub fn of(preview: &Preview) -> Self {
        Approval {
            order: preview.order_id,
            content_version: preview.content_version,
            digest: preview.digest.clone(),
            edits: Vec::new(),
            comment: None,
        }
    }

    /// With this result of an item in place of the agent's, which is kept beside it. An edit makes a
    /// new content version: earlier approvals are void, and this one counts for the edited content.
    #[must_use]
    pub fn edit(mut self, item: ItemId, result: Value) -> Self {
        self.edits.push(ResultEdit { item, result });
        self
    }

    /// A sentence for the trail.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// What an approval did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approved {
    /// The order.
    pub order: Order,
    /// Whether this approval counted; not a second one by the same reviewer, nor one that came after
    /// the last that was needed.
    pub counted: bool,
    /// The content version that it counted for: a new one after edits.
    pub content_version: u32,
    /// The digest of that version's preview.
    pub digest: String,
    /// How far the review is.
    pub review: ReviewStatus,
}

/// The longest comment, in bytes.
pub(super) const MAX_COMMENT: usize = 16 << 10;

impl WorkClient {
    /// Approves what a [`Preview`] showed, or a part of what the rule of the type asks for: the order is
    /// approved when enough reviewers have approved the same content. It is applied later, by an
    /// [apply worker](crate::WorkManager::apply_worker).
    ///
    /// # Errors
    /// [`ContentChanged`](ErrorKind::ContentChanged) with the difference when what was seen is not what
    /// would be applied, [`NotReady`](ErrorKind::NotReady), [`ReviewerRefused`](ErrorKind::ReviewerRefused)
    /// for the proposer and for an agent that submitted, [`Decided`](ErrorKind::Decided) for an order that
    /// was rejected, [`ResultInvalid`](ErrorKind::ResultInvalid) for an edit that the type refuses.
    pub async fn approve(&self, approval: Approval) -> Result<Approved> {
        let comment = approval.comment.as_deref().unwrap_or_default();
        super::super::client::check_text("comment", comment, MAX_COMMENT)?;
        let name = self.actor.id.clone().ok_or_else(|| {
            Error::invalid("actor", "a reviewer has a name: take Actor::user(…) or Actor::agent(…)")
        })?;
        let key = self.key("approve", &approval)?;
        if let Some(Answer { value, .. }) = self.replay(&key).await? {
            return Ok(value);
        }
        let manager = &self.manager;
        let found = manager.reviewed(approval.order).await;
        let (order, content, known) = match found {
            // A decision against one that was made is told as such.
            Err(error) if matches!(error.kind(), ErrorKind::OrderState { .. }) => {
                return Err(self.decided(approval.order, "approved", error).await);
            }
            found => found?,
        };
        let edited = match order.state {
            OrderState::Submitted => self.edited(&content, &approval, &known).await?,
            _ => content.clone(),
        };
        if order.state == OrderState::Submitted {
            known.can_approve(&edited).await?;
        }
        let made = match approval.edits.is_empty() {
            true => None,
            false => Some(describe(&edited, &known).await?),
        };
        let answer: Answer<Approved> = transact!(manager, session => {
            once!(session, &key, {
                let order = session.lock_order(approval.order).await?;
                self.check_version(&order)?;
                if let Err(error) = check_state(order.state) {
                    return Err(decision(&order, "approved").unwrap_or(error));
                }
                let state = session.review_state(order.id).await?;
                let seen = self.seen(session, &order, &state, &approval).await?;
                if order.state != OrderState::Submitted {
                    agreed(&order, &state, &approval, seen, session).await?
                } else {
                    self.may_approve(session, &order, &name).await?;
                    let counting = Counting { state, seen, made: made.as_ref(), content: &content };
                    self.count(session, order, &approval, counting).await?
                }
            })
        })
        .inspect_err(count_refusal)?;
        if answer.value.order.state == OrderState::Approved && !answer.replayed {
            manager.wake_apply(&answer.value.order.order_type);
        }
        Ok(answer.value)
    }

    /// The version that the approval names, if it is the order's content as it stands.
    async fn seen(
        &self,
        session: &mut Session<'_>,
        order: &Order,
        state: &ReviewState,
        approval: &Approval,
    ) -> Result<ReviewRow> {
        let key = session.content_key(order).await?;
        let current = session.review(order.id, state.content_version).await?;
        let seen = session.review(order.id, approval.content_version).await?;
        let changed = |changes: Vec<String>, digest: &str| {
            Error::from(ErrorKind::ContentChanged {
                seen: approval.content_version,
                version: state.content_version,
                digest: digest.to_owned(),
                changes,
            })
        };
        let Some(current) = current.filter(|row| row.content == key) else {
            let changes = vec!["results came in or changed that nobody has previewed".to_owned()];
            return Err(changed(changes, ""));
        };
        if approval.content_version == state.content_version && approval.digest == current.digest {
            return Ok(current);
        }
        let changes = match &seen {
            None => vec![format!("there is no content version {}", approval.content_version)],
            Some(seen) if seen.digest != approval.digest => {
                vec!["the digest is not that of the version which it names".to_owned()]
            }
            Some(seen) => {
                let read = |row: &ReviewRow| {
                    let text = row.preview.as_deref().unwrap_or("null");
                    serde_json::from_str::<Value>(text).unwrap_or_default()
                };
                let mut lines = Diff::between(read(seen), read(&current)).readable();
                if lines.is_empty() {
                    lines.push("results have changed".to_owned());
                }
                lines
            }
        };
        Err(changed(changes, &current.digest))
    }

    /// Nobody approves what they proposed or submitted. Names are compared without the kind of actor: one
    /// token may lease as an agent and review as a user.
    async fn may_approve(
        &self,
        session: &mut Session<'_>,
        order: &Order,
        name: &str,
    ) -> Result<()> {
        let rule = &order.settings.review;
        let refused = |reason: &str| {
            let (actor, reason) = (self.actor.to_string(), reason.to_owned());
            Err(ErrorKind::ReviewerRefused { actor, reason }.into())
        };
        if !rule.proposer_may_approve && order.requested_by.id.as_deref() == Some(name) {
            return refused("who proposed an order does not approve it");
        }
        if !rule.submitter_may_approve
            && session.submitters(order.id).await?.iter().any(|submitter| submitter == name)
        {
            return refused("an agent that submitted a result of an order does not approve it");
        }
        Ok(())
    }

    /// Counts the approval, and approves the order when it was the last one that was needed.
    async fn count(
        &self,
        session: &mut Session<'_>,
        order: Order,
        approval: &Approval,
        counting: Counting<'_>,
    ) -> Result<Approved> {
        let Counting { state, seen, made, content } = counting;
        let (version, row) = match made {
            None => (state.content_version, seen),
            Some(made) => {
                self.write_edits(session, &order, approval, content).await?;
                let content = session.content_key(&order).await?;
                let row = ReviewRow { content, ..made.clone() };
                session.insert_review(order.id, state.content_version + 1, &row).await?;
                (state.content_version + 1, row)
            }
        };
        let counted = session.insert_approval(order.id, version, &self.actor, &self.roles).await?;
        let review = status_of(session, &order, &state, version).await?;
        let mut payload = told(&order, version, &row, &review);
        payload["roles"] = json!(self.roles);
        let note = self.note().payload(payload);
        let note = match &approval.comment {
            Some(comment) => note.message(comment.clone()),
            None => note,
        };
        let order = match (counted, review.missing.is_empty()) {
            (true, true) => self.manager.approved_in(session, order, version, note).await?,
            (true, false) => {
                let mut edit = OrderEdit::new(order);
                edit.record(EventType::Approved, note);
                session.write_order(edit).await?
            }
            (false, _) => order,
        };
        let digest = row.digest;
        Ok(Approved { order, counted, content_version: version, digest, review })
    }

    /// What was decided about an order, as an error.
    pub(super) async fn decided(
        &self,
        order: OrderId,
        wanted: &'static str,
        error: Error,
    ) -> Error {
        match self.manager.order(order).await {
            Ok(found) => decision(&found.order, wanted).unwrap_or(error),
            Err(_) => error,
        }
    }
}

/// What a count is made of.
struct Counting<'a> {
    state: ReviewState,
    seen: ReviewRow,
    made: Option<&'a ReviewRow>,
    content: &'a OrderContent,
}

/// What the event of an approval tells.
pub(super) fn told(order: &Order, version: u32, row: &ReviewRow, review: &ReviewStatus) -> Value {
    let outcome = if review.missing.is_empty() { "approved" } else { "counted" };
    json!({"outcome": outcome, "content_version": version, "digest": row.digest,
        "results_digest": row.results_digest, "rule": order.settings.review,
        "approvals": review.approvals, "missing": review.missing})
}

/// The decision that an order shows, where it is contrary to what was asked for.
pub(super) fn decision(order: &Order, wanted: &'static str) -> Option<Error> {
    let against = match wanted {
        "approved" => matches!(order.state, OrderState::Rejected | OrderState::DeadLettered),
        _ => matches!(
            order.state,
            OrderState::Approved
                | OrderState::Applied
                | OrderState::Completed
                | OrderState::Rejected
        ),
    };
    let by = order.error.as_ref().and_then(|error| error.get("by")).map(Value::to_string);
    let by = by.unwrap_or_else(|| "another decision".to_owned());
    against.then(|| ErrorKind::Decided { state: order.state, by, wanted }.into())
}

/// An approval of what is approved already: it agrees, and counts no more.
async fn agreed(
    order: &Order,
    state: &ReviewState,
    approval: &Approval,
    seen: ReviewRow,
    session: &mut Session<'_>,
) -> Result<Approved> {
    if !approval.edits.is_empty() {
        let (by, wanted) = ("an earlier decision".to_owned(), "edited");
        return Err(ErrorKind::Decided { state: order.state, by, wanted }.into());
    }
    let version = state.content_version;
    let review = status_of(session, order, state, version).await?;
    let preview = shown(order, version, &seen, Vec::new(), review)?;
    Ok(Approved {
        order: order.clone(),
        counted: false,
        content_version: version,
        digest: preview.digest,
        review: preview.review,
    })
}

impl crate::WorkManager {
    /// Approves a version of an order's content. What failed is given up, since the order goes on without
    /// it (W5).
    pub(super) async fn approved_in(
        &self,
        session: &mut Session<'_>,
        order: Order,
        version: u32,
        note: Note,
    ) -> Result<Order> {
        let (now, id) = (session.now(), order.id);
        let without = Note { payload: None, event: None, ..note.clone() };
        let mut edit = OrderEdit::new(order);
        edit.step(self.tables(), OrderState::Approved, note, now)?;
        session.set_approved(id, version).await?;
        let mut edits = Vec::new();
        for item in session.lock_order_items(id, &[ItemState::Failed]).await? {
            let mut edit = ItemEdit::new(item);
            let note = without.clone().message("the order was approved without it");
            edit.step(self.tables(), ItemState::DeadLettered, note, now)?;
            edits.push(edit);
        }
        session.write_items(edits).await?;
        session.write_order(edit).await
    }
}
