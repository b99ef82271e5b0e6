//! Reading and making items, their inputs and results.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::limits::LimitKey;
use super::orders::Body;
use super::param::json;
use super::rows::{self, at};
use super::{MAX_ROWS, Session, params};
use crate::{Actor, ErrorKind, Item, ItemId, ItemState, OrderId, Result};

/// An item to be stored, with its input.
pub(crate) struct NewItem<'a> {
    pub(crate) item: Item,
    pub(crate) input: &'a Value,
}

/// A version of an item's result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResultRow {
    pub(crate) item_id: ItemId,
    pub(crate) version: u32,
    pub(crate) actor: Actor,
    pub(crate) result: Value,
    pub(crate) created_at: DateTime<Utc>,
    /// The version that a reviewer edited.
    pub(crate) edited_from: Option<u32>,
}

#[derive(Serialize)]
struct ItemRow<'a> {
    id: ItemId,
    order_id: OrderId,
    seq: u32,
    r#type: &'a str,
    state: ItemState,
    version: i64,
    priority: i32,
    attempts: u16,
    max_attempts: u16,
    available_at: i64,
    concurrency: Option<String>,
    lane: Option<String>,
    fence: u64,
    results: u32,
    created_at: i64,
}

#[derive(Serialize)]
struct StoredResult<'a> {
    item_id: ItemId,
    version: u32,
    actor_type: &'a str,
    actor_id: Option<&'a str>,
    result: String,
    created_at: i64,
    edited_from: Option<u32>,
}

impl Session<'_> {
    /// Stores items of a new order, and makes them leasable.
    pub(crate) async fn insert_items(&mut self, items: &[NewItem<'_>]) -> Result<()> {
        let row = |new: &NewItem<'_>| {
            let item = &new.item;
            json(&ItemRow {
                id: item.id,
                order_id: item.order_id,
                seq: item.seq,
                r#type: &item.item_type,
                state: item.state,
                version: item.version,
                priority: item.priority,
                attempts: item.attempts,
                max_attempts: item.max_attempts,
                available_at: at(item.available_at),
                concurrency: item.concurrency.as_ref().map(json).transpose()?,
                lane: item.concurrency.as_ref().map(|c| LimitKey::lane(&c.key).into_text()),
                fence: item.fence,
                results: item.results,
                created_at: at(item.created_at),
            })
        };
        let body = |new: &NewItem<'_>| Ok(Body { id: new.item.id, body: json(new.input)? });
        let rows = items.iter().map(row).collect::<Result<Vec<_>>>()?;
        let bodies = items.iter().map(body).collect::<Result<Vec<_>>>()?;
        let rows = format!("[{}]", rows.join(","));
        self.execute(self.sql().insert_items, params![rows.clone()]).await?;
        self.insert_new_ready(rows, items.iter().map(|new| &new.item)).await?;
        self.execute(self.sql().insert_inputs, params![json(&bodies)?]).await?;
        Ok(())
    }

    pub(crate) async fn item(&mut self, id: ItemId) -> Result<Item> {
        let found = self.items(&[id]).await?;
        found.into_iter().next().ok_or_else(|| ErrorKind::ItemNotFound { id }.into())
    }

    pub(crate) async fn items(&mut self, ids: &[ItemId]) -> Result<Vec<Item>> {
        self.read_items(self.sql().items, params![json(&ids)?]).await
    }

    /// Items that nobody else changes until the transaction ends, in the order of their ids.
    pub(crate) async fn lock_items(&mut self, ids: &[ItemId]) -> Result<Vec<Item>> {
        self.read_items(self.sql().lock_items, params![json(&ids)?]).await
    }

    /// The same, without those that somebody else is changing.
    pub(crate) async fn lock_free_items(&mut self, ids: &[ItemId]) -> Result<Vec<Item>> {
        self.read_items(self.sql().lock_free_items, params![json(&ids)?]).await
    }

    /// The items of an order that are in these states, locked. The order must be locked before.
    pub(crate) async fn lock_order_items(
        &mut self,
        order: OrderId,
        states: &[ItemState],
    ) -> Result<Vec<Item>> {
        self.read_items(self.sql().lock_order_items, params![order, json(&states)?]).await
    }

    /// A page of the items of an order, behind a place in the plan.
    pub(crate) async fn order_items(
        &mut self,
        order: OrderId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Item>> {
        self.read_items(self.sql().order_items, params![order, after, limit]).await
    }

    /// Removes some of the items of orders that are over, with what belongs to them; false where none is left.
    pub(crate) async fn delete_some_items(&mut self, orders: &[OrderId]) -> Result<bool> {
        let some = i64::try_from(MAX_ROWS).unwrap_or(i64::MAX);
        let found = self.fetch(self.sql().item_ids, params![json(&orders)?, some]).await?;
        let ids: Result<Vec<ItemId>> = found.into_iter().map(|mut row| row.parse()).collect();
        let ids = ids?;
        if ids.is_empty() {
            return Ok(false);
        }
        let values = json(&ids)?;
        for sql in self.sql().delete_items {
            self.execute(sql, params![values.clone()]).await?;
        }
        Ok(true)
    }

    async fn read_items(&mut self, sql: &str, values: Vec<super::Param>) -> Result<Vec<Item>> {
        self.fetch(sql, values).await?.iter_mut().map(rows::item).collect()
    }

    pub(crate) async fn inputs(&mut self, ids: &[ItemId]) -> Result<HashMap<ItemId, Value>> {
        let rows = self.fetch(self.sql().inputs, params![json(&ids)?]).await?;
        rows.into_iter().map(|mut row| Ok((row.parse()?, row.json()?))).collect()
    }

    /// Adds versions of results; the items' counts are written by their edits.
    pub(crate) async fn insert_results(&mut self, results: &[ResultRow]) -> Result<()> {
        let row = |row: &ResultRow| {
            json(&StoredResult {
                item_id: row.item_id,
                version: row.version,
                actor_type: row.actor.actor_type.as_str(),
                actor_id: row.actor.id.as_deref(),
                result: json(&row.result)?,
                created_at: at(row.created_at),
                edited_from: row.edited_from,
            })
        };
        let rows = results.iter().map(row).collect::<Result<Vec<_>>>()?;
        self.execute(self.sql().insert_results, params![format!("[{}]", rows.join(","))]).await?;
        Ok(())
    }

    /// The latest results of items; none of an item without one.
    pub(crate) async fn results(&mut self, ids: &[ItemId]) -> Result<Vec<ResultRow>> {
        let rows = self.fetch(self.sql().results, params![json(&ids)?]).await?;
        rows.into_iter().map(result_row).collect()
    }

    /// All results of an item, the oldest first.
    pub(crate) async fn result_versions(&mut self, id: ItemId) -> Result<Vec<ResultRow>> {
        let rows = self.fetch(self.sql().result_versions, params![id]).await?;
        rows.into_iter().map(result_row).collect()
    }
}

fn result_row(mut row: super::Cells) -> Result<ResultRow> {
    Ok(ResultRow {
        item_id: row.parse()?,
        version: row.number()?,
        actor: Actor { actor_type: row.parse()?, id: row.opt_text()? },
        result: row.json()?,
        created_at: row.time()?,
        edited_from: row.opt_number()?,
    })
}
