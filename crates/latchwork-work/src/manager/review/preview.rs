//! What a reviewer sees before the decision.

use serde::{Deserialize, Serialize};

use super::rule::{ReviewStatus, status_of};
use crate::canonical::{canonical, sha256};
use crate::manager::{WorkManager, read, transact};
use crate::store::ReviewRow;
use crate::{
    Diff, Error, ErrorKind, Order, OrderContent, OrderId, OrderState, RegisteredType, Result,
    Violation,
};

/// An order as its reviewers see it. An [`Approval`](super::Approval) is made of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Preview {
    /// The order.
    pub order_id: OrderId,
    /// Which content this is; it changes with results and edits, and not with comments or approvals.
    pub content_version: u32,
    /// The SHA-256 of the preview as canonical JSON; of the results where the type has no preview.
    pub digest: String,
    /// What apply would change; none where the type has no preview.
    pub diff: Option<Diff>,
    /// Whether apply makes the preview again and refuses another one.
    pub exact: bool,
    /// Why the order cannot be approved yet, by the type's own rule.
    pub not_ready: Vec<Violation>,
    /// How far the review is.
    pub review: ReviewStatus,
}

impl WorkManager {
    /// What a reviewer sees of an order: the preview of what apply would change, and how far the review
    /// is. The preview is made once for each version of the content, and stored.
    ///
    /// Cancel safe: a future that is dropped leaves the preview stored or not.
    ///
    /// # Errors
    /// [`OrderState`](ErrorKind::OrderState) for an order whose items are not in yet or that is over,
    /// [`OrderTypeFailed`](ErrorKind::OrderTypeFailed) and [`TooLarge`](ErrorKind::TooLarge) where the
    /// type makes no preview.
    pub async fn preview(&self, order: OrderId) -> Result<Preview> {
        // The content may change between the reading and the storing; then it is read again.
        for _ in 0..crate::manager::TRIES {
            let (order, content, known) = self.reviewed(order).await?;
            if let Some(preview) = self.store_preview(&order, &content, &known).await? {
                return Ok(preview);
            }
        }
        Err(ErrorKind::Conflict { entity: "order" }.into())
    }

    /// An order under review, with its content and its type.
    pub(super) async fn reviewed(
        &self,
        id: OrderId,
    ) -> Result<(Order, OrderContent, RegisteredType)> {
        let (order, content) = read!(self, session => {
            let order = session.order(id).await?;
            check_state(order.state)?;
            let content = session.content(&order).await?;
            Ok((order, content))
        })?;
        let known = self.types().get(&order.order_type)?.clone();
        check_version(&order, &known)?;
        Ok((order, content, known))
    }

    /// None where the content has changed since it was read.
    async fn store_preview(
        &self,
        order: &Order,
        content: &OrderContent,
        known: &RegisteredType,
    ) -> Result<Option<Preview>> {
        let not_ready = match known.can_approve(content).await {
            Ok(()) => Vec::new(),
            Err(error) => match error.kind() {
                ErrorKind::NotReady { violations } => violations.clone(),
                _ => return Err(error),
            },
        };
        let stored = read!(self, session => {
            let state = session.review_state(order.id).await?;
            let row = session.review(order.id, state.content_version).await?;
            Ok(row.filter(|row| row.results_digest == results_digest(content)))
        })?;
        // Made before the transaction: the type's own code may take its time.
        let made = match stored {
            Some(_) => None,
            None => Some(describe(content, known).await?),
        };
        transact!(self, session => {
            let order = session.lock_order(order.id).await?;
            check_state(order.state)?;
            let key = session.content_key(&order).await?;
            let state = session.review_state(order.id).await?;
            let current = session.review(order.id, state.content_version).await?;
            let current = current.filter(|row| row.content == key);
            let (version, row) = match (current, &made) {
                (Some(row), _) => (state.content_version, row),
                (None, Some(made)) if session.content(&order).await?.results() == content.results() => {
                    let row = ReviewRow { content: key, ..made.clone() };
                    let version = state.content_version + 1;
                    session.insert_review(order.id, version, &row).await?;
                    (version, row)
                }
                _ => return Ok(None),
            };
            let review = status_of(session, &order, &state, version).await?;
            let not_ready = not_ready.clone();
            Ok(Some(shown(&order, version, &row, not_ready, review)?))
        })
    }
}

/// A stored version of the content as a reviewer sees it.
pub(super) fn shown(
    order: &Order,
    version: u32,
    row: &ReviewRow,
    not_ready: Vec<Violation>,
    review: ReviewStatus,
) -> Result<Preview> {
    let diff = row.preview.as_deref().map(serde_json::from_str).transpose();
    let diff = diff.map_err(|error| Error::damaged(format!("a preview: {error}")))?;
    Ok(Preview {
        order_id: order.id,
        content_version: version,
        digest: row.digest.clone(),
        diff,
        exact: order.settings.review.exact_preview,
        not_ready,
        review,
    })
}

/// The digests of a content, and its preview; the content's name is given by the transaction.
pub(in crate::manager) async fn describe(
    content: &OrderContent,
    known: &RegisteredType,
) -> Result<ReviewRow> {
    let preview = known.preview(content).await?;
    let value = preview.map(serde_json::to_value).transpose();
    let value = value.map_err(|error| Error::damaged(format!("a preview as JSON: {error}")))?;
    let preview = value.as_ref().map(canonical);
    let results_digest = results_digest(content);
    let digest = preview.as_deref().map_or_else(|| results_digest.clone(), sha256);
    Ok(ReviewRow { content: String::new(), digest, results_digest, preview })
}

/// The SHA-256 of the results that count, as canonical JSON.
pub(in crate::manager) fn results_digest(content: &OrderContent) -> String {
    sha256(&canonical(&content.results()))
}

pub(super) fn check_state(state: OrderState) -> Result<()> {
    let reason = match state {
        OrderState::Submitted | OrderState::Approved | OrderState::Applied => return Ok(()),
        OrderState::Queued | OrderState::CheckedOut | OrderState::InProgress => {
            "its items are not all in yet, so there is nothing to review"
        }
        OrderState::Failed => "it failed; retry it, and review it then",
        OrderState::Rejected | OrderState::Completed | OrderState::DeadLettered => {
            "its review is over"
        }
    };
    Err(ErrorKind::OrderState { state, reason }.into())
}

/// A program that knows the type in another version would preview and apply something else.
pub(in crate::manager) fn check_version(order: &Order, known: &RegisteredType) -> Result<()> {
    if known.version() == order.type_version {
        return Ok(());
    }
    let reason = format!(
        "the order has version {} of it and this program version {}: review and apply it with a program \
         that has the order's version, or propose it anew",
        order.type_version,
        known.version()
    );
    Err(Error::invalid("order type", reason))
}
