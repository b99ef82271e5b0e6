//! Rejecting an order: for good, or with rework (W8).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::approve::{MAX_COMMENT, decision};
use crate::manager::client::{Answer, check_text, once};
use crate::manager::{WorkClient, transact};
use crate::metrics::count_refusal;
use crate::store::{ItemEdit, Note, OrderEdit, Rework, Session, json as json_text};
use crate::{Error, ErrorKind, Item, ItemId, ItemState, Order, OrderId, OrderState, Result};

/// One thing that a reviewer found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReviewError {
    /// What kind of mistake, in a word.
    pub code: String,
    /// A sentence for people and agents.
    pub message: String,
    /// Where in the result, as a JSON pointer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The item that it is about; all of them unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<ItemId>,
}

impl ReviewError {
    /// Something that is wrong.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        ReviewError { code: code.into(), message: message.into(), field: None, item: None }
    }

    /// Where in the result, as a JSON pointer.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The item that it is about.
    #[must_use]
    pub fn item(mut self, item: ItemId) -> Self {
        self.item = Some(item);
        self
    }
}

/// A rejection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejection {
    /// The order.
    pub order: OrderId,
    /// What is wrong.
    pub errors: Vec<ReviewError>,
    /// Whether agents are to do it again.
    #[serde(default)]
    pub rework: bool,
    /// The items that are done again; all that are in unless told. The others stay submitted. A list
    /// without any is refused: it is a mistake rather than a wish for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<ItemId>>,
    /// A sentence for the trail and for the agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl Rejection {
    /// Rejects an order for good.
    pub fn new(order: OrderId, errors: impl IntoIterator<Item = ReviewError>) -> Self {
        let errors = errors.into_iter().collect();
        Rejection { order, errors, rework: false, items: None, comment: None }
    }

    /// Agents do it again, and are given their results, these errors and the comments.
    #[must_use]
    pub fn rework(mut self) -> Self {
        self.rework = true;
        self
    }

    /// Agents do these items again; the others stay submitted.
    #[must_use]
    pub fn rework_items(mut self, items: impl IntoIterator<Item = ItemId>) -> Self {
        self.rework = true;
        self.items = Some(items.into_iter().collect());
        self
    }

    /// A sentence for the trail and for the agents.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// So many errors and items in one rejection.
const MAX_ERRORS: usize = 1_000;

/// So many comments are handed to the next lease.
const COMMENTS: i64 = 50;

impl WorkClient {
    /// Rejects an order that waits for approval: for good, or with rework, which queues items again and
    /// hands the previous result, the errors and the comments to their next lease.
    ///
    /// # Errors
    /// [`Decided`](ErrorKind::Decided) for an order that was approved or rejected,
    /// [`OrderState`](ErrorKind::OrderState) for one that is not in review,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) without errors or with an item of another order.
    pub async fn reject(&self, rejection: Rejection) -> Result<Order> {
        check(&rejection)?;
        let key = self.key("reject", &rejection)?;
        let answer: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, { self.reject_in(session, &rejection).await? })
        })
        .inspect_err(count_refusal)?;
        if !answer.replayed && rejection.rework {
            self.manager.inner.wake.notify(vec![answer.value.order_type.clone()]);
        }
        Ok(answer.value)
    }

    pub(in crate::manager) async fn reject_in(
        &self,
        session: &mut Session<'_>,
        rejection: &Rejection,
    ) -> Result<Order> {
        let (now, tables) = (session.now(), self.manager.tables());
        let order = session.lock_order(rejection.order).await?;
        self.check_version(&order)?;
        if order.state != OrderState::Submitted {
            let reason = "only an order that waits for approval is rejected";
            let state = ErrorKind::OrderState { state: order.state, reason };
            return Err(decision(&order, "rejected").unwrap_or_else(|| state.into()));
        }
        let error = json!({"code": "rejected", "stage": "review", "by": self.actor,
            "message": rejection.errors[0].message, "errors": rejection.errors});
        let note = |note: Note| match &rejection.comment {
            Some(comment) => note.message(comment.clone()),
            None => note,
        };
        let told = json!({"errors": rejection.errors, "rework": rejection.rework,
            "items": rejection.items});
        let mut edit = OrderEdit::new(order);
        edit.set_error(error.clone());
        let rejected = note(self.note().payload(told));
        edit.step(tables, OrderState::Rejected, rejected, now)?;
        let items = self.rejected_items(session, rejection).await?;
        let comments = session.comments(rejection.order, COMMENTS).await?;
        let (mut edits, mut reworks) = (Vec::new(), Vec::new());
        for item in items {
            let id = item.id;
            let about = |error: &&ReviewError| error.item.is_none_or(|item| item == id);
            let errors: Vec<_> = rejection.errors.iter().filter(about).collect();
            let own = |(item, comment): &(Option<ItemId>, Value)| {
                item.is_none_or(|item| item == id).then(|| comment.clone())
            };
            let comments: Vec<_> = comments.iter().filter_map(own).collect();
            let asked = json!({"by": self.actor, "at": now, "errors": errors,
                "comment": rejection.comment, "comments": comments});
            let (result_version, note) = (item.results, json_text(&asked)?);
            reworks.push(Rework { item_id: id, result_version, note });
            let mut edit = ItemEdit::new(item);
            edit.set_error(Some(error.clone()));
            if edit.item().state == ItemState::Submitted {
                let note = self.note().payload(json!({"errors": errors}));
                edit.step(tables, ItemState::Rejected, note, now)?;
            }
            if rejection.rework {
                edit.forget_attempts();
                edit.set_available_at(now);
                edit.step(tables, ItemState::Queued, self.note().message("rework"), now)?;
            }
            edits.push(edit);
        }
        session.put_reworks(&reworks).await?;
        // The items first: the order then makes all of them leasable.
        session.write_items(edits).await?;
        if rejection.rework {
            edit.step(tables, OrderState::Queued, self.note().message("rework"), now)?;
            self.manager.follow_in(session, &mut edit).await?;
        }
        session.write_order(edit).await
    }

    /// The items that a rejection is about, locked.
    async fn rejected_items(
        &self,
        session: &mut Session<'_>,
        rejection: &Rejection,
    ) -> Result<Vec<Item>> {
        let states = [ItemState::Submitted, ItemState::Failed];
        let mut items = session.lock_order_items(rejection.order, &states).await?;
        let named = rejection.items.as_deref();
        for id in named.unwrap_or_default() {
            if !items.iter().any(|item| item.id == *id) {
                let reason = format!("the order has no item {id} that is submitted or failed");
                return Err(Error::invalid("items", reason));
            }
        }
        items.retain(|item| match named {
            None => item.state == ItemState::Submitted,
            Some(named) => named.contains(&item.id),
        });
        if items.is_empty() {
            return Err(Error::invalid("items", "the order has no results that could be rejected"));
        }
        Ok(items)
    }
}

fn check(rejection: &Rejection) -> Result<()> {
    if rejection.errors.is_empty() || rejection.errors.len() > MAX_ERRORS {
        let reason = format!("say what is wrong, in 1 to {MAX_ERRORS} errors");
        return Err(Error::invalid("errors", reason));
    }
    if let Some(items) = &rejection.items
        && (items.is_empty() || items.len() > MAX_ERRORS)
    {
        let reason = format!("1 to {MAX_ERRORS} are named, or the list is left out for all");
        return Err(Error::invalid("items", reason));
    }
    if !rejection.rework && rejection.items.is_some() {
        return Err(Error::invalid("items", "items are named for a rework only"));
    }
    check_text("comment", rejection.comment.as_deref().unwrap_or_default(), MAX_COMMENT)?;
    for error in &rejection.errors {
        check_text("code", &error.code, 255)?;
        check_text("message", &error.message, MAX_COMMENT)?;
        check_text("field", error.field.as_deref().unwrap_or_default(), 1_024)?;
        if error.code.is_empty() {
            return Err(Error::invalid("errors", "an error has an empty code"));
        }
    }
    Ok(())
}
