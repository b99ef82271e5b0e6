//! Reading and making orders.

use serde::Serialize;
use serde_json::Value;

use super::param::json;
use super::rows::{self, at};
use super::{Session, params};
use crate::{Error, ErrorKind, ItemCounts, ItemState, Order, OrderId, OrderState, Result};

#[derive(Serialize)]
struct OrderRow<'a> {
    id: OrderId,
    r#type: &'a str,
    type_version: u32,
    state: OrderState,
    version: i64,
    priority: i32,
    requested_by_type: &'a str,
    requested_by_id: Option<&'a str>,
    meta: Option<String>,
    unique_key: Option<&'a str>,
    unique_states: String,
    unique_taken: i64,
    items: u32,
    settings: String,
    error: Option<String>,
    created_at: i64,
    last_transitioned_at: i64,
    applied_at: Option<i64>,
    completed_at: Option<i64>,
}

/// A body that stands apart from its row.
#[derive(Serialize)]
pub(super) struct Body<I> {
    pub(super) id: I,
    pub(super) body: String,
}

impl Session<'_> {
    /// Stores new orders, but not those whose `unique_key` a live order has; tells which it stored.
    pub(crate) async fn insert_orders(&mut self, orders: &[Order]) -> Result<Vec<OrderId>> {
        let row = |order: &Order| -> Result<String> {
            json(&OrderRow {
                id: order.id,
                r#type: &order.order_type,
                type_version: order.type_version,
                state: order.state,
                version: order.version,
                priority: order.priority,
                requested_by_type: order.requested_by.actor_type.as_str(),
                requested_by_id: order.requested_by.id.as_deref(),
                meta: order.meta.as_ref().map(json).transpose()?,
                unique_key: order.unique_key.as_deref(),
                unique_states: json(&order.unique_states)?,
                unique_taken: order.takes_unique_key().into(),
                items: order.items,
                settings: json(&order.settings)?,
                error: None,
                created_at: at(order.created_at),
                last_transitioned_at: at(order.last_transitioned_at),
                applied_at: None,
                completed_at: None,
            })
        };
        let rows = orders.iter().map(row).collect::<Result<Vec<_>>>()?;
        let rows = format!("[{}]", rows.join(","));
        let stored = self.fetch(self.sql().insert_orders, params![rows]).await?;
        stored.into_iter().map(|mut row| row.parse()).collect()
    }

    pub(crate) async fn insert_payloads(&mut self, payloads: &[(OrderId, &Value)]) -> Result<()> {
        let body = |(id, payload): &(OrderId, &Value)| Ok(Body { id: *id, body: json(payload)? });
        let rows = payloads.iter().map(body).collect::<Result<Vec<_>>>()?;
        self.execute(self.sql().insert_payloads, params![json(&rows)?]).await?;
        Ok(())
    }

    pub(crate) async fn order(&mut self, id: OrderId) -> Result<Order> {
        let row = self.fetch_one(self.sql().order, params![id]).await?;
        let mut row = row.ok_or_else(|| Error::from(ErrorKind::OrderNotFound { id }))?;
        rows::order(&mut row)
    }

    /// The order, which nobody else changes until the transaction ends.
    pub(crate) async fn lock_order(&mut self, id: OrderId) -> Result<Order> {
        let row = self.fetch_one(self.sql().lock_order, params![id]).await?;
        let mut row = row.ok_or_else(|| Error::from(ErrorKind::OrderNotFound { id }))?;
        rows::order(&mut row)
    }

    pub(crate) async fn payload(&mut self, id: OrderId) -> Result<Value> {
        let row = self.fetch_one(self.sql().payload, params![id]).await?;
        row.ok_or_else(|| Error::from(ErrorKind::OrderNotFound { id }))?.json()
    }

    /// The live order that has a `unique_key`.
    pub(crate) async fn find_unique(&mut self, kind: &str, key: &str) -> Result<Option<OrderId>> {
        let row = self.fetch_one(self.sql().find_unique, params![kind, key]).await?;
        row.map(|mut row| row.parse()).transpose()
    }

    /// Removes orders whose items are gone, and tells how many.
    pub(crate) async fn delete_orders(&mut self, orders: &[OrderId]) -> Result<u64> {
        let (values, mut removed) = (json(&orders)?, 0);
        for sql in self.sql().delete_orders {
            removed = self.execute(sql, params![values.clone()]).await?;
        }
        Ok(removed)
    }

    /// How many of an order's items are in each state.
    pub(crate) async fn item_counts(&mut self, id: OrderId) -> Result<ItemCounts> {
        let mut counts = ItemCounts::default();
        for mut row in self.fetch(self.sql().item_counts, params![id]).await? {
            counts.add(row.parse::<ItemState>()?, row.number()?);
        }
        Ok(counts)
    }
}

/// A row of `order_progress`: an order, its state, and whether one of its items is open.
pub(crate) fn progress_row(row: &mut super::Cells) -> Result<(OrderId, OrderState, bool)> {
    Ok((row.parse()?, row.parse()?, row.opt_text()?.is_some()))
}

/// Whether an order may have to move after its items went on: one in progress with open items has nowhere
/// to go by a submission, and one whose items are in goes on by a decision.
pub(crate) fn has_to_follow(state: OrderState, has_open_items: bool) -> bool {
    match state {
        OrderState::InProgress => !has_open_items,
        OrderState::Queued | OrderState::CheckedOut | OrderState::Applied => true,
        _ => false,
    }
}
