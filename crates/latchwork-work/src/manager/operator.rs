//! What operators do with whole orders: requeue, retry, cancel, give up, clone.

use serde_json::json;

use super::client::{Answer, check_text, once};
use super::{WorkClient, read, transact};
use crate::metrics::count_refusal;
use crate::store::{ItemEdit, Note, OrderEdit, Session};
use crate::{
    Error, ErrorKind, EventType, Item, ItemState, Order, OrderId, OrderState, Proposal, Proposed,
    Result, next_order_state,
};

/// Whether an order failed after its approval.
fn failed_in_apply(order: &Order) -> bool {
    let stage = order.error.as_ref().and_then(|error| error.get("stage"));
    matches!(stage.and_then(serde_json::Value::as_str), Some("apply" | "cleanup"))
}

/// The longest reason, in bytes.
const MAX_REASON: usize = 16 << 10;

impl WorkClient {
    /// Takes the leases of an order back, so that other agents can have its items, and puts a rejected
    /// order with its items back into the queue. The agents' attempts do not count; their leases are
    /// refused from now on.
    ///
    /// # Errors
    /// [`OrderState`](ErrorKind::OrderState) for an order that is submitted, approved or over, or failed
    /// ([`retry`](Self::retry) it).
    pub async fn requeue(&self, order: OrderId, reason: &str) -> Result<Order> {
        check_text("reason", reason, MAX_REASON)?;
        let key = self.key("requeue", &(order, reason))?;
        let answer: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, {
                let now = session.now();
                let order = session.lock_order(order).await?;
                self.check_version(&order)?;
                if !order.state.is_claimable() && order.state != OrderState::Rejected {
                    let reason = "only an order that agents work on, or a rejected one, is requeued";
                    return Err(ErrorKind::OrderState { state: order.state, reason }.into());
                }
                let states = [ItemState::Leased, ItemState::InProgress, ItemState::Rejected];
                let mut edits = Vec::new();
                for item in session.lock_order_items(order.id, &states).await? {
                    let was_leased = item.state.is_leased();
                    let mut edit = ItemEdit::new(item);
                    if was_leased {
                        edit.give_attempt_back();
                    } else {
                        edit.forget_attempts();
                    }
                    edit.set_available_at(now);
                    let note = self.note().message(reason);
                    edit.step(self.manager.tables(), ItemState::Queued, note, now)?;
                    edits.push(edit);
                }
                // The items first: the order then makes all of them leasable.
                session.write_items(edits).await?;
                let mut edit = OrderEdit::new(order);
                if edit.order().state == OrderState::Rejected {
                    let note = self.note().message(reason);
                    edit.step(self.manager.tables(), OrderState::Queued, note, now)?;
                } else {
                    edit.record(EventType::Requeued, self.note().message(reason));
                }
                self.manager.follow_in(session, &mut edit).await?;
                session.write_order(edit).await?
            })
        })
        .inspect_err(count_refusal)?;
        Ok(self.changed(answer))
    }

    /// Tries the failed items of an order again, from their first attempt on, and a failed order with
    /// them. Items that are in stay in.
    ///
    /// An order whose apply failed is approved again at once as long as the content that was approved
    /// stands, and waits for approval otherwise. Of one whose `after_apply` failed only that is tried
    /// again: what was applied is never applied again.
    ///
    /// # Errors
    /// [`OrderState`](ErrorKind::OrderState) where nothing failed,
    /// [`UniqueConflict`](ErrorKind::UniqueConflict) when another live order has its `unique_key` (W20).
    pub async fn retry(&self, order: OrderId) -> Result<Order> {
        let key = self.key("retry", &order)?;
        let answer: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, {
                let now = session.now();
                let order = session.lock_order(order).await?;
                self.check_version(&order)?;
                let live = order.state.is_claimable() || order.state == OrderState::Failed;
                let failed = match live {
                    true => session.lock_order_items(order.id, &[ItemState::Failed]).await?,
                    false => Vec::new(),
                };
                if order.state != OrderState::Failed && failed.is_empty() {
                    let reason = "nothing of it failed, so there is nothing to retry";
                    return Err(ErrorKind::OrderState { state: order.state, reason }.into());
                }
                let mut edits = Vec::new();
                for item in failed {
                    let mut edit = ItemEdit::new(item);
                    edit.forget_attempts();
                    edit.set_available_at(now);
                    let note = self.note().event(EventType::Retried);
                    edit.step(self.manager.tables(), ItemState::Queued, note, now)?;
                    edits.push(edit);
                }
                session.write_items(edits).await?;
                let applying = failed_in_apply(&order);
                let mut edit = OrderEdit::new(order);
                if edit.order().state == OrderState::Failed {
                    let note = self.note().event(EventType::Retried);
                    edit.step(self.manager.tables(), OrderState::Queued, note, now)?;
                    let counts = session.item_counts(edit.order().id).await?;
                    let all_in = next_order_state(OrderState::InProgress, &counts, edit.order().settings.failure)
                        == Some(OrderState::Submitted);
                    if applying && (all_in || counts.get(ItemState::Accepted) > 0) {
                        self.apply_again(session, &mut edit).await?;
                    }
                } else {
                    edit.record(EventType::Retried, self.note());
                }
                self.manager.follow_in(session, &mut edit).await?;
                session.write_order(edit).await?
            })
        })
        .inspect_err(count_refusal)?;
        if answer.value.state == OrderState::Approved || answer.value.state == OrderState::Applied {
            self.manager.wake_apply(&answer.value.order_type);
        }
        Ok(self.changed(answer))
    }

    /// Takes an order whose apply failed back to where it stood: its results are in, and what was approved
    /// is approved as long as it is the same content. What was applied is not applied again.
    async fn apply_again(&self, session: &mut Session<'_>, edit: &mut OrderEdit) -> Result<()> {
        let (now, tables, id) = (session.now(), self.manager.tables(), edit.order().id);
        edit.step(tables, OrderState::Submitted, Note::system("its results are in"), now)?;
        let state = session.review_state(id).await?;
        let Some(version) = state.approved_version else { return Ok(()) };
        let row = session.review(id, version).await?;
        let key = session.content_key(edit.order()).await?;
        let stands = version == state.content_version && row.is_some_and(|row| row.content == key);
        if !stands {
            return Ok(());
        }
        let payload = json!({"outcome": "stands", "content_version": version});
        let note = Note::system("what was approved is unchanged").payload(payload);
        edit.step(tables, OrderState::Approved, note, now)?;
        session.set_approved(id, version).await?;
        if session.applied(id).await?.is_some() {
            let note = Note::system("it was applied before").event(EventType::Retried);
            edit.step(tables, OrderState::Applied, note, now)?;
        }
        Ok(())
    }

    /// Calls an order off: it and its items go to `failed` and on to `dead_lettered`, in one
    /// transaction. Agents that work on it are refused from now on.
    ///
    /// # Errors
    /// [`OrderState`](ErrorKind::OrderState) once it is approved, or over.
    pub async fn cancel(&self, order: OrderId, reason: &str) -> Result<Order> {
        check_text("reason", reason, MAX_REASON)?;
        let key = self.key("cancel", &(order, reason))?;
        let answer: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, {
                let order = session.lock_order(order).await?;
                self.check_version(&order)?;
                let too_late = matches!(
                    order.state,
                    OrderState::Approved | OrderState::Applied
                ) || order.state.is_terminal();
                if too_late {
                    let reason = "it cannot be cancelled any more";
                    return Err(ErrorKind::OrderState { state: order.state, reason }.into());
                }
                let mut edit = OrderEdit::new(order);
                edit.record(EventType::Cancelled, self.note().message(reason));
                self.bury(session, edit, reason).await?
            })
        })
        .inspect_err(count_refusal)?;
        Ok(self.changed(answer))
    }

    /// Gives a failed or rejected order up, with its items.
    ///
    /// # Errors
    /// [`IllegalTransition`](ErrorKind::IllegalTransition) for an order in another state.
    pub async fn dead_letter(&self, order: OrderId, reason: &str) -> Result<Order> {
        check_text("reason", reason, MAX_REASON)?;
        let key = self.key("dead_letter", &(order, reason))?;
        let answer: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, {
                let order = session.lock_order(order).await?;
                self.check_version(&order)?;
                self.manager.tables().order_move(order.state, OrderState::DeadLettered)?;
                self.bury(session, OrderEdit::new(order), reason).await?
            })
        })
        .inspect_err(count_refusal)?;
        Ok(self.changed(answer))
    }

    /// Moves an order and its items to `dead_lettered`, by way of `failed` where the tables want that.
    pub(super) async fn bury(
        &self,
        session: &mut Session<'_>,
        mut edit: OrderEdit,
        reason: &str,
    ) -> Result<Order> {
        let (now, tables) = (session.now(), self.manager.tables());
        let note = || -> Note { self.note().message(reason) };
        if !tables.order().can(&edit.order().state, &OrderState::DeadLettered) {
            edit.set_error(json!({"code": "cancelled", "stage": "items", "message": reason}));
            edit.step(tables, OrderState::Failed, note(), now)?;
        }
        edit.step(tables, OrderState::DeadLettered, note(), now)?;
        let id = edit.order().id;
        // The order first: it makes the items unleasable and waits for claims that are under way.
        let order = session.write_order(edit).await?;
        let open = ItemState::ALL.iter().copied().filter(|state| !state.is_settled());
        let open: Vec<_> = open.filter(|state| *state != ItemState::Accepted).collect();
        let mut edits = Vec::new();
        for item in session.lock_order_items(id, &open).await? {
            let mut item = ItemEdit::new(item);
            if item.item().state != ItemState::Failed {
                item.step(tables, ItemState::Failed, note(), now)?;
            }
            item.step(tables, ItemState::DeadLettered, note(), now)?;
            edits.push(item);
        }
        session.write_items(edits).await?;
        Ok(order)
    }

    /// Proposes an order like this one: same type, payload, meta and priority; its meta tells from which
    /// it was cloned. The `unique_key` is not taken along.
    ///
    /// # Errors
    /// As for [`propose`](Self::propose), if the type has changed since.
    pub async fn clone_order(&self, order: OrderId, priority: Option<i32>) -> Result<Proposed> {
        let (old, payload) = read!(self.manager, session => {
            Ok((session.order(order).await?, session.payload(order).await?))
        })
        .inspect_err(count_refusal)?;
        let mut meta = old.meta.unwrap_or_default();
        meta.insert("cloned_from".to_owned(), json!(order));
        let proposal = Proposal {
            order_type: old.order_type,
            payload,
            priority: Some(priority.unwrap_or(old.priority)),
            meta: Some(meta),
            unique_key: None,
            unique_states: Vec::new(),
        };
        self.propose(proposal).await
    }

    /// Tries one failed item again, from its first attempt on.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an item that did not fail,
    /// [`OrderState`](ErrorKind::OrderState) for one whose order failed: [`retry`](Self::retry) that.
    pub async fn retry_item(&self, item: crate::ItemId) -> Result<Item> {
        let key = self.key("retry_item", &item)?;
        let answer: Answer<Item> = transact!(self.manager, session => {
            once!(session, &key, {
                let now = session.now();
                let order = session.item(item).await?.order_id;
                let order = session.lock_order(order).await?;
                if !order.state.is_claimable() {
                    let reason = "retry the order";
                    return Err(ErrorKind::OrderState { state: order.state, reason }.into());
                }
                let found = session.lock_items(&[item]).await?.into_iter().next();
                let mut edit = ItemEdit::new(found.ok_or(ErrorKind::ItemNotFound { id: item })?);
                if edit.item().state != ItemState::Failed {
                    let state = edit.item().state;
                    let reason = format!("it is {state}: only a failed item is retried");
                    return Err(Error::invalid("item", reason));
                }
                edit.forget_attempts();
                edit.set_available_at(now);
                let note = self.note().event(EventType::Retried);
                edit.step(self.manager.tables(), ItemState::Queued, note, now)?;
                session.write_items(vec![edit]).await?.remove(0)
            })
        })
        .inspect_err(count_refusal)?;
        self.manager.inner.wake.notify(vec![answer.value.item_type.clone()]);
        Ok(answer.value)
    }

    fn changed(&self, answer: Answer<Order>) -> Order {
        let order = answer.value;
        if !answer.replayed {
            self.manager.wake_freed([order.order_type.clone()]);
        }
        order
    }
}
