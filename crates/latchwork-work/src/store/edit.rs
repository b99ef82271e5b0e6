//! The only way to change a state (W1).
//!
//! An [`OrderEdit`] or [`ItemEdit`] takes an order or item that the transaction has locked, moves it in
//! memory, each step checked against the tables and with its event, and is written at once: compare-
//! and-set on state and version, timestamps, events, and what follows from the state (what can be
//! leased, leases, limits) in one transaction. Nothing else writes a state column.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::events::NewEvent;
use super::leases::NewLease;
use super::param::json;
use super::rows::at;
use super::{MAX_ROWS, Session, params};
use crate::{
    Actor, ErrorKind, EventType, Item, ItemId, ItemState, Order, OrderId, OrderState, Provenance,
    Result, TransitionTables,
};

/// What an event tells besides the move.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) event: Option<EventType>,
    pub(crate) actor: Actor,
    pub(crate) payload: Option<Value>,
    pub(crate) diff: Option<Value>,
    pub(crate) message: Option<String>,
    pub(crate) provenance: Provenance,
}

impl Note {
    pub(crate) fn by(actor: &Actor) -> Self {
        Note {
            event: None,
            actor: actor.clone(),
            payload: None,
            diff: None,
            message: None,
            provenance: Provenance::default(),
        }
    }

    /// By Latchwork itself.
    pub(crate) fn system(message: &str) -> Self {
        Note::by(&Actor::system()).message(message)
    }

    /// Another event than the one that is named after the state.
    pub(crate) fn event(mut self, event: EventType) -> Self {
        self.event = Some(event);
        self
    }

    pub(crate) fn payload(mut self, payload: Value) -> Self {
        self.payload = Some(payload);
        self
    }

    pub(crate) fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    pub(crate) fn provenance(mut self, provenance: &Provenance) -> Self {
        self.provenance = provenance.clone();
        self
    }

    fn into_event(self, order_id: OrderId, item_id: Option<ItemId>, event: EventType) -> NewEvent {
        NewEvent {
            order_id,
            item_id,
            event,
            actor: self.actor,
            payload: self.payload,
            diff: self.diff,
            message: self.message,
            provenance: self.provenance,
        }
    }
}

/// An order that is being changed.
pub(crate) struct OrderEdit {
    order: Order,
    was: OrderState,
    events: Vec<NewEvent>,
}

impl OrderEdit {
    /// Of an order that the transaction has locked.
    pub(crate) fn new(order: Order) -> Self {
        OrderEdit { was: order.state, order, events: Vec::new() }
    }

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    pub(crate) fn has_moved(&self) -> bool {
        !self.events.is_empty()
    }

    /// Moves it, if the table allows that.
    pub(crate) fn step(
        &mut self,
        tables: &TransitionTables,
        to: OrderState,
        note: Note,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let step = tables.order_move(self.order.state, to)?;
        self.order.state = step.to();
        self.order.last_transitioned_at = now;
        match to {
            OrderState::Applied => self.order.applied_at = Some(now),
            OrderState::Completed => self.order.completed_at = Some(now),
            OrderState::Queued => self.order.error = None,
            _ => {}
        }
        self.record(EventType::of_order(to), note);
        Ok(())
    }

    /// Why it failed.
    pub(crate) fn set_error(&mut self, error: Value) {
        self.order.error = Some(error);
    }

    /// Adds an event without a move.
    pub(crate) fn record(&mut self, event: EventType, note: Note) {
        let event = note.event.unwrap_or(event);
        self.events.push(note.into_event(self.order.id, None, event));
    }
}

/// An item that is being changed.
pub(crate) struct ItemEdit {
    item: Item,
    was: ItemState,
    lease: Option<NewLease>,
    events: Vec<NewEvent>,
}

impl ItemEdit {
    /// Of an item that the transaction has locked.
    pub(crate) fn new(item: Item) -> Self {
        ItemEdit { was: item.state, item, lease: None, events: Vec::new() }
    }

    pub(crate) fn item(&self) -> &Item {
        &self.item
    }

    /// Moves it, if the table allows that. To `leased` it goes by [`lease`](Self::lease).
    pub(crate) fn step(
        &mut self,
        tables: &TransitionTables,
        to: ItemState,
        note: Note,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let step = tables.item_move(self.item.state, to)?;
        self.item.state = step.to();
        match to {
            ItemState::Leased => self.item.leased_at = Some(now),
            ItemState::Accepted => self.item.accepted_at = Some(now),
            _ => {}
        }
        self.record(EventType::of_item(to), note);
        Ok(())
    }

    /// Moves it to `leased`, under a lease with the next fence; the attempt counts from now.
    pub(crate) fn lease(
        &mut self,
        tables: &TransitionTables,
        lease: NewLease,
        note: Note,
        now: DateTime<Utc>,
    ) -> Result<()> {
        self.step(tables, ItemState::Leased, note, now)?;
        self.item.fence += 1;
        self.item.attempts = self.item.attempts.saturating_add(1);
        self.lease = Some(lease);
        Ok(())
    }

    /// Not leased before this time.
    pub(crate) fn set_available_at(&mut self, at: DateTime<Utc>) {
        self.item.available_at = at;
    }

    /// The lease was given back without a try: the attempt does not count.
    pub(crate) fn give_attempt_back(&mut self) {
        self.item.attempts = self.item.attempts.saturating_sub(1);
    }

    /// Attempts count from the beginning again.
    pub(crate) fn forget_attempts(&mut self) {
        self.item.attempts = 0;
    }

    pub(crate) fn set_error(&mut self, error: Option<Value>) {
        self.item.error = error;
    }

    /// Counts one more version of the result, and tells its number.
    pub(crate) fn add_result(&mut self) -> u32 {
        self.item.results += 1;
        self.item.results
    }

    /// Adds an event without a move.
    pub(crate) fn record(&mut self, event: EventType, note: Note) {
        let event = note.event.unwrap_or(event);
        self.events.push(note.into_event(self.item.order_id, Some(self.item.id), event));
    }
}

#[derive(Serialize)]
struct ItemChange {
    id: ItemId,
    was: ItemState,
    version: i64,
    state: ItemState,
    attempts: u16,
    available_at: i64,
    fence: u64,
    leased_at: Option<i64>,
    accepted_at: Option<i64>,
    error: Option<String>,
    results: u32,
}

impl Session<'_> {
    /// Writes what has become of an order.
    pub(crate) async fn write_order(&mut self, edit: OrderEdit) -> Result<Order> {
        let OrderEdit { mut order, was, events } = edit;
        let taken: i64 = order.takes_unique_key().into();
        let error = order.error.as_ref().map(json).transpose()?;
        let time = |time: Option<DateTime<Utc>>| time.map(at);
        let values = params![
            order.id,
            order.version,
            was.as_str(),
            order.state.as_str(),
            error,
            order.last_transitioned_at,
            time(order.applied_at),
            time(order.completed_at),
            taken,
        ];
        if order.state != was {
            self.refuse_unique_clash(&order, was).await?;
            if self.execute(self.sql().put_order, values).await? != 1 {
                return Err(ErrorKind::Conflict { entity: "order" }.into());
            }
            order.version += 1;
            match (was.is_claimable(), order.state.is_claimable()) {
                (true, false) => self.remove_ready_of_order(order.id).await?,
                (false, true) => self.insert_ready_of_order(order.id).await?,
                _ => {}
            }
        }
        self.insert_events(&events).await?;
        Ok(order)
    }

    /// An order that becomes live again may find its `unique_key` taken (W20).
    async fn refuse_unique_clash(&mut self, order: &Order, was: OrderState) -> Result<()> {
        let mut before = order.clone();
        before.state = was;
        if !order.takes_unique_key() || before.takes_unique_key() {
            return Ok(());
        }
        let key = order.unique_key.clone().unwrap_or_default();
        match self.find_unique(&order.order_type, &key).await? {
            Some(existing) if existing != order.id => {
                let order_type = order.order_type.clone();
                Err(ErrorKind::UniqueConflict { order_type, key, existing }.into())
            }
            _ => Ok(()),
        }
    }

    /// Writes what has become of items, and what follows from it: leases made and ended, limits freed,
    /// and what can be leased.
    pub(crate) async fn write_items(&mut self, edits: Vec<ItemEdit>) -> Result<Vec<Item>> {
        let mut written = Vec::with_capacity(edits.len());
        let mut edits = edits.into_iter();
        loop {
            let some: Vec<_> = edits.by_ref().take(MAX_ROWS).collect();
            if some.is_empty() {
                return Ok(written);
            }
            written.append(&mut self.write_some_items(some).await?);
        }
    }

    /// As many as one message may have, and at least one.
    async fn write_some_items(&mut self, edits: Vec<ItemEdit>) -> Result<Vec<Item>> {
        let change = |edit: &ItemEdit| {
            let item = &edit.item;
            json(&ItemChange {
                id: item.id,
                was: edit.was,
                version: item.version,
                state: item.state,
                attempts: item.attempts,
                available_at: at(item.available_at),
                fence: item.fence,
                leased_at: item.leased_at.map(at),
                accepted_at: item.accepted_at.map(at),
                error: item.error.as_ref().map(json).transpose()?,
                results: item.results,
            })
        };
        let rows = edits.iter().map(change).collect::<Result<Vec<_>>>()?;
        let now = self.now();
        let values = params![format!("[{}]", rows.join(",")), now];
        if self.execute(self.sql().put_items, values).await? != edits.len() as u64 {
            return Err(ErrorKind::Conflict { entity: "item" }.into());
        }
        let those = |wanted: fn(&ItemEdit) -> bool| {
            edits.iter().filter(|edit| wanted(edit)).map(|edit| edit.item.id).collect::<Vec<_>>()
        };
        let unqueued = those(|edit| edit.was == ItemState::Queued && !edit.is_queued());
        let queued = those(ItemEdit::is_queued);
        let unleased = those(|edit| edit.was.is_leased() && !edit.item.state.is_leased());
        if !unqueued.is_empty() {
            self.remove_ready(&unqueued).await?;
        }
        let leased = edits.iter().filter_map(|edit| Some((&edit.item, edit.lease.as_ref()?)));
        let leased: Vec<_> = leased.collect();
        if !leased.is_empty() {
            self.insert_leases(&leased).await?;
        }
        if !unleased.is_empty() {
            self.remove_leases(&unleased).await?;
        }
        if !queued.is_empty() {
            self.insert_ready(&queued).await?;
        }
        let events: Vec<_> = edits.iter().flat_map(|edit| edit.events.iter().cloned()).collect();
        self.insert_events(&events).await?;
        let written = |edit: ItemEdit| Item { version: edit.item.version + 1, ..edit.item };
        Ok(edits.into_iter().map(written).collect())
    }

    /// The limits that queued items of these concurrency keys share, made before the items.
    pub(crate) async fn set_lanes<'i>(
        &mut self,
        items: impl IntoIterator<Item = &'i Item>,
    ) -> Result<()> {
        let mut lanes = BTreeMap::new();
        for concurrency in items.into_iter().filter_map(|item| item.concurrency.as_ref()) {
            lanes.insert(concurrency.into(), (concurrency.limit, concurrency.ordered));
        }
        self.set_limits(&lanes).await
    }
}

impl ItemEdit {
    fn is_queued(&self) -> bool {
        self.item.state == ItemState::Queued
    }
}

impl Session<'_> {
    /// Records an event without a move.
    pub(crate) async fn record(
        &mut self,
        order_id: OrderId,
        item_id: Option<ItemId>,
        event: EventType,
        note: Note,
    ) -> Result<crate::EventId> {
        let event = note.event.unwrap_or(event);
        let ids = self.insert_events(&[note.into_event(order_id, item_id, event)]).await?;
        ids.into_iter().next().ok_or_else(|| crate::Error::damaged("no event"))
    }
}
