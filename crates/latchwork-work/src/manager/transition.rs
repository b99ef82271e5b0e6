//! The state machine of the seed as it is: one move, or one event, by name.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{Answer, check_text, once};
use super::{WorkClient, transact};
use crate::metrics::count_refusal;
use crate::store::{ItemEdit, NewLease, Note, OrderEdit};
use crate::{
    EventId, EventType, Item, ItemId, ItemState, LeaseId, Order, OrderId, OrderState, Result,
};

/// What an event tells besides its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventNote {
    /// What belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// A sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<Value>,
}

impl EventNote {
    /// Nothing besides.
    pub fn new() -> Self {
        Self::default()
    }

    /// What belongs to it.
    #[must_use]
    pub fn payload(mut self, payload: Value) -> Self {
        self.payload = Some(payload);
        self
    }

    /// A sentence for people.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// What was changed.
    #[must_use]
    pub fn diff(mut self, diff: Value) -> Self {
        self.diff = Some(diff);
        self
    }
}

/// The longest message, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

impl WorkClient {
    fn note_of(&self, note: EventNote) -> Result<Note> {
        check_text("message", note.message.as_deref().unwrap_or_default(), MAX_MESSAGE)?;
        Ok(Note { payload: note.payload, message: note.message, diff: note.diff, ..self.note() })
    }

    /// Moves an order to a state, if the table allows that: with one event, and with what follows from
    /// the state. The operations ([`cancel`](Self::cancel), [`retry`](Self::retry), …) do more, and are
    /// what most programs want.
    ///
    /// # Errors
    /// [`IllegalTransition`](crate::ErrorKind::IllegalTransition), which names what is allowed,
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound),
    /// [`UniqueConflict`](crate::ErrorKind::UniqueConflict).
    pub async fn transition_order(
        &self,
        order: OrderId,
        to: OrderState,
        note: EventNote,
    ) -> Result<Order> {
        let key = self.key("transition_order", &(order, to, &note))?;
        let note = self.note_of(note)?;
        let Answer { value: moved, .. }: Answer<Order> = transact!(self.manager, session => {
            once!(session, &key, {
                let now = session.now();
                let order = session.lock_order(order).await?;
                self.check_version(&order)?;
                let mut edit = OrderEdit::new(order);
                edit.step(self.manager.tables(), to, note.clone(), now)?;
                session.write_order(edit).await?
            })
        })
        .inspect_err(count_refusal)?;
        if moved.state.is_claimable() {
            self.manager.inner.wake.notify(vec![moved.order_type.clone()]);
        }
        Ok(moved)
    }

    /// Moves an item to a state, if the table allows that: with one event, and with what follows from
    /// the state. A move to `leased` makes a lease of this agent, which the event's payload names and which
    /// counts for its limits.
    ///
    /// # Errors
    /// [`IllegalTransition`](crate::ErrorKind::IllegalTransition), which names what is allowed,
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound), and for a move to `leased`
    /// [`LimitReached`](crate::ErrorKind::LimitReached).
    pub async fn transition_item(
        &self,
        item: ItemId,
        to: ItemState,
        note: EventNote,
    ) -> Result<Item> {
        let key = self.key("transition_item", &(item, to, &note))?;
        let note = self.note_of(note)?;
        let Answer { value: moved, .. }: Answer<Item> = transact!(self.manager, session => {
            once!(session, &key, {
            let now = session.now();
            let found = session.lock_items(&[item]).await?.into_iter().next();
            let found = found.ok_or(crate::ErrorKind::ItemNotFound { id: item })?;
            let settings = self.manager.settings_of(&found);
            let mut edit = ItemEdit::new(found);
            let mut note = note.clone();
            if to == ItemState::Leased {
                // Refused before the actor is looked at: the table comes first.
                self.manager.tables().item_move(edit.item().state, to)?;
                let lease = NewLease {
                    id: LeaseId::new(now),
                    agent: self.agent()?.to_owned(),
                    ttl: settings.lease_ttl,
                    heartbeat_every: settings.heartbeat_every,
                    counted: self.count_lease(session, edit.item()).await?,
                };
                let told = serde_json::json!({"lease_id": lease.id, "payload": note.payload});
                note = note.payload(told);
                edit.lease(self.manager.tables(), lease, note, now)?;
            } else {
                edit.step(self.manager.tables(), to, note, now)?;
            }
            session.write_items(vec![edit]).await?.remove(0)
            })
        })
        .inspect_err(count_refusal)?;
        let is_over = !moved.state.is_leased() && self.manager.is_limited(&moved);
        if moved.state == ItemState::Queued || is_over {
            self.manager.wake_freed([moved.item_type.clone()]);
        }
        if moved.state.is_settled() {
            self.manager.follow_all([moved.order_id]).await;
        }
        Ok(moved)
    }

    /// Records an event of an order without a move.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound).
    pub async fn record_order_event(
        &self,
        order: OrderId,
        event: EventType,
        note: EventNote,
    ) -> Result<EventId> {
        let key = self.key("record_order_event", &(order, event, &note))?;
        let note = self.note_of(note)?;
        let answer: Answer<EventId> = transact!(self.manager, session => {
            once!(session, &key, {
                let order = session.order(order).await?;
                session.record(order.id, None, event, note.clone()).await?
            })
        })?;
        Ok(answer.value)
    }

    /// Records an event of an item without a move.
    ///
    /// # Errors
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound).
    pub async fn record_item_event(
        &self,
        item: ItemId,
        event: EventType,
        note: EventNote,
    ) -> Result<EventId> {
        let key = self.key("record_item_event", &(item, event, &note))?;
        let note = self.note_of(note)?;
        let answer: Answer<EventId> = transact!(self.manager, session => {
            once!(session, &key, {
                let item = session.item(item).await?;
                session.record(item.order_id, Some(item.id), event, note.clone()).await?
            })
        })?;
        Ok(answer.value)
    }

    /// Leaves a comment on an order.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound).
    pub async fn comment(&self, order: OrderId, text: impl Into<String>) -> Result<EventId> {
        let note = EventNote::new().message(text);
        self.record_order_event(order, EventType::Commented, note).await
    }

    /// Leaves a comment on an item.
    ///
    /// # Errors
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound).
    pub async fn comment_item(&self, item: ItemId, text: impl Into<String>) -> Result<EventId> {
        let note = EventNote::new().message(text);
        self.record_item_event(item, EventType::Commented, note).await
    }
}
