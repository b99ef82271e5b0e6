//! Listings: a page of rows behind a place.
//!
//! Each database has the parts of its statements in [`Listings`]; here they are put together. A value
//! never becomes text of a statement: a part has a `?` where a value is bound.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::param::json;
use super::rows;
use super::{Cells, EventRow, LeaseRow, Param, Session, params};
use crate::query::{
    Comparison, Cursor, ItemQuery, LeaseQuery, OrderFilter, OrderQuery, Sort, SortField,
};
use crate::{Item, ItemCounts, ItemState, Order, OrderId, Result};

/// The parts of the listings of one database. The table of orders is `o`, of items `i`, of leases `l`.
pub(crate) struct Listings {
    /// All orders.
    pub(crate) orders: &'static str,
    /// Orders with one of these ids (JSON).
    pub(crate) order_ids: &'static str,
    /// Orders in one of these states (JSON).
    pub(crate) order_states: &'static str,
    /// Orders of one of these types (JSON).
    pub(crate) order_types: &'static str,
    /// Orders proposed by one of these types of actors (JSON).
    pub(crate) requested_by_types: &'static str,
    /// Orders proposed by one of these actors (JSON).
    pub(crate) requested_by_ids: &'static str,
    /// Orders with an item in one of these states (JSON).
    pub(crate) with_items_in: &'static str,
    /// Orders of which an item can be leased at a time.
    pub(crate) available: &'static str,
    /// The others, at that time.
    pub(crate) unavailable: &'static str,
    /// Orders whose meta contains an object.
    pub(crate) meta_contains: fn(&mut Select, &Map<String, Value>) -> Result<()>,
    /// Orders with a greater id.
    pub(crate) orders_after: &'static str,

    /// All items.
    pub(crate) items: &'static str,
    /// Items of an order.
    pub(crate) items_of_order: &'static str,
    /// Items of one of these types (JSON).
    pub(crate) items_of_types: &'static str,
    /// Items in one of these states (JSON).
    pub(crate) items_in_states: &'static str,
    /// Items with a lease of an agent.
    pub(crate) items_leased_by: &'static str,
    /// Items behind an order and a place in its plan.
    pub(crate) items_after: &'static str,
    /// Sorted so, and so many.
    pub(crate) items_sorted: &'static str,

    /// All leases.
    pub(crate) leases: &'static str,
    /// Leases of an agent.
    pub(crate) leases_of_agent: &'static str,
    /// Leases of an order.
    pub(crate) leases_of_order: &'static str,
    /// Leases of items behind an item.
    pub(crate) leases_after: &'static str,
    /// Sorted so, and so many.
    pub(crate) leases_sorted: &'static str,

    /// The items of orders (1: ids) up to a place in the plan (2).
    pub(crate) included_items: &'static str,
    /// The latest events of orders (1: ids), so many (2) of each.
    pub(crate) included_events: &'static str,
    /// The items of orders (1: ids): order, state, count.
    pub(crate) included_item_counts: &'static str,
    /// The events of orders (1: ids): order, count.
    pub(crate) included_event_counts: &'static str,

    /// What the queued items of an order (1) wait for at a time (2): a [`Wait`](super::Wait), count,
    /// the first `available_at`.
    pub(crate) waits: &'static str,
    /// The first queued items of an order (1) that wait for this (3) at a time (2), some (4).
    pub(crate) waiting_items: &'static str,
    /// What a queued item (1) waits for at a time (2): a [`Wait`](super::Wait), held, max and
    /// order of its lane's limit, the lane's first item.
    pub(crate) wait_of_item: &'static str,
    /// The leases of an order (1) that end first, some (2).
    pub(crate) first_leases: &'static str,
    /// How many leases of an order (1) are over at a time (2).
    pub(crate) expired_leases: &'static str,
    /// The first items of an order (1) in some states (2), some (3).
    pub(crate) first_items: &'static str,
}

/// A statement that is being put together, with its values.
pub(crate) struct Select {
    text: String,
    values: Vec<Param>,
}

impl Select {
    pub(crate) fn new(text: &str) -> Self {
        Select { text: text.to_owned(), values: Vec::new() }
    }

    /// Adds a part, with a value for each `?` in it.
    pub(crate) fn add(&mut self, part: &str, values: Vec<Param>) {
        debug_assert_eq!(part.matches('?').count(), values.len(), "{part}");
        let mut texts = part.split('?');
        self.text.push_str(texts.next().unwrap_or_default());
        for (text, value) in texts.zip(values) {
            self.values.push(value);
            self.text.push_str(&format!("${}{text}", self.values.len()));
        }
    }
}

impl Session<'_> {
    /// A page of orders, the place behind which it begins being told by the query.
    ///
    /// What stands behind a place is not one condition but several ranges, one after another: the rows
    /// that equal the place in all keys and have a greater id; those that equal it in all keys but the
    /// last, which is behind; and so on. Each is a range of an index where there is one, and together
    /// they are every row behind the place, once.
    pub(crate) async fn list_orders(&mut self, query: &OrderQuery) -> Result<Vec<Order>> {
        let wanted = query.page_size as usize;
        let ranges: Vec<_> = match &query.after {
            None => vec![None],
            Some(after) => (0..=query.sort.len()).rev().map(|same| Some((after, same))).collect(),
        };
        let mut orders = Vec::new();
        for range in ranges {
            if orders.len() == wanted {
                break;
            }
            let rest = i64::try_from(wanted - orders.len()).unwrap_or(i64::MAX);
            let Some(select) = self.orders_in(query, range, rest)? else { continue };
            for mut row in self.fetch(&select.text, select.values).await? {
                orders.push(rows::order(&mut row)?);
            }
        }
        Ok(orders)
    }

    /// The orders of one range; none where nothing can be in it.
    fn orders_in(
        &self,
        query: &OrderQuery,
        range: Option<(&Cursor, usize)>,
        limit: i64,
    ) -> Result<Option<Select>> {
        let parts = self.listings();
        let mut select = Select::new(parts.orders);
        for filter in &query.filters {
            add_filter(&mut select, parts, filter, self.now())?;
        }
        if let Some((after, same)) = range {
            let mut keys = query.sort.iter().zip(after.keys());
            for (key, value) in keys.by_ref().take(same) {
                match value {
                    Some(value) => {
                        select.add(&format!(" AND {} = ?", column(key)), params![*value])
                    }
                    None => select.add(&format!(" AND {} IS NULL", column(key)), params![]),
                }
            }
            match keys.next() {
                None => select.add(parts.orders_after, params![after.id()]),
                // Rows without a value are the last ones in both directions.
                Some((_, None)) => return Ok(None),
                Some((key, Some(value))) => {
                    let (column, sign) = (column(key), if key.descending { "<" } else { ">" });
                    let or_none = match is_optional(key) {
                        true => format!(" OR {column} IS NULL"),
                        false => String::new(),
                    };
                    select.add(&format!(" AND ({column} {sign} ?{or_none})"), params![*value]);
                }
            }
        }
        select.add(" ORDER BY ", params![]);
        for key in &query.sort {
            let direction = if key.descending { " DESC" } else { "" };
            let last = if is_optional(key) { " NULLS LAST" } else { "" };
            select.add(&format!("{}{direction}{last}, ", column(key)), params![]);
        }
        select.add("o.id LIMIT ?", params![limit]);
        Ok(Some(select))
    }

    pub(crate) async fn list_items(&mut self, query: &ItemQuery) -> Result<Vec<Item>> {
        let parts = self.listings();
        let mut select = Select::new(parts.items);
        if let Some(order) = query.order {
            select.add(parts.items_of_order, params![order]);
        }
        if !query.types.is_empty() {
            select.add(parts.items_of_types, params![json(&query.types)?]);
        }
        if !query.states.is_empty() {
            select.add(parts.items_in_states, params![json(&query.states)?]);
        }
        if let Some(agent) = &query.leased_by {
            select.add(parts.items_leased_by, params![agent.as_str()]);
        }
        if let Some(after) = &query.after {
            select.add(parts.items_after, params![after.order_id, i64::from(after.seq)]);
        }
        select.add(parts.items_sorted, params![i64::from(query.page_size)]);
        self.fetch(&select.text, select.values).await?.iter_mut().map(rows::item).collect()
    }

    pub(crate) async fn list_leases(&mut self, query: &LeaseQuery) -> Result<Vec<LeaseRow>> {
        let parts = self.listings();
        let mut select = Select::new(parts.leases);
        if let Some(agent) = &query.agent {
            select.add(parts.leases_of_agent, params![agent.as_str()]);
        }
        if let Some(order) = query.order {
            select.add(parts.leases_of_order, params![order]);
        }
        if let Some(after) = query.after {
            select.add(parts.leases_after, params![after]);
        }
        select.add(parts.leases_sorted, params![i64::from(query.page_size)]);
        self.fetch(&select.text, select.values).await?.iter_mut().map(rows::lease).collect()
    }

    /// The items of orders up to a place in the plan.
    pub(crate) async fn included_items(
        &mut self,
        orders: &[OrderId],
        up_to: u32,
    ) -> Result<HashMap<OrderId, Vec<Item>>> {
        let values = params![json(&orders)?, i64::from(up_to)];
        let mut found: HashMap<_, Vec<Item>> = HashMap::new();
        for mut row in self.fetch(self.listings().included_items, values).await? {
            let item = rows::item(&mut row)?;
            found.entry(item.order_id).or_default().push(item);
        }
        Ok(found)
    }

    /// The latest events of orders, the latest one last.
    pub(crate) async fn included_events(
        &mut self,
        orders: &[OrderId],
        latest: u32,
    ) -> Result<HashMap<OrderId, Vec<EventRow>>> {
        let values = params![json(&orders)?, i64::from(latest)];
        let mut found: HashMap<_, Vec<EventRow>> = HashMap::new();
        for mut row in self.fetch(self.listings().included_events, values).await? {
            let event = rows::event(&mut row)?;
            found.entry(event.event.order_id).or_default().push(event);
        }
        Ok(found)
    }

    pub(crate) async fn included_item_counts(
        &mut self,
        orders: &[OrderId],
    ) -> Result<HashMap<OrderId, ItemCounts>> {
        let mut found: HashMap<_, ItemCounts> = HashMap::new();
        let values = params![json(&orders)?];
        for mut row in self.fetch(self.listings().included_item_counts, values).await? {
            let order = row.parse()?;
            found.entry(order).or_default().add(row.parse::<ItemState>()?, row.number()?);
        }
        Ok(found)
    }

    pub(crate) async fn included_event_counts(
        &mut self,
        orders: &[OrderId],
    ) -> Result<HashMap<OrderId, u64>> {
        let rows = self.fetch(self.listings().included_event_counts, params![json(&orders)?]);
        let read = |mut row: Cells| Ok((row.parse()?, row.number()?));
        rows.await?.into_iter().map(read).collect()
    }
}

fn add_filter(
    select: &mut Select,
    parts: &Listings,
    filter: &OrderFilter,
    now: DateTime<Utc>,
) -> Result<()> {
    match filter {
        OrderFilter::Id(ids) => select.add(parts.order_ids, params![json(ids)?]),
        OrderFilter::State(states) => select.add(parts.order_states, params![json(states)?]),
        OrderFilter::Type(types) => select.add(parts.order_types, params![json(types)?]),
        OrderFilter::RequestedByType(types) => {
            select.add(parts.requested_by_types, params![json(types)?]);
        }
        OrderFilter::RequestedById(ids) => select.add(parts.requested_by_ids, params![json(ids)?]),
        OrderFilter::ItemState(states) => select.add(parts.with_items_in, params![json(states)?]),
        OrderFilter::Priority(comparison, priority) => {
            select.add(&compared("o.priority", *comparison), params![*priority]);
        }
        OrderFilter::Time(field, comparison, time) => {
            select.add(&compared(&format!("o.{field}"), *comparison), params![*time]);
        }
        OrderFilter::Meta(wanted) => (parts.meta_contains)(select, wanted)?,
        OrderFilter::HasAvailableItems(true) => select.add(parts.available, params![now]),
        OrderFilter::HasAvailableItems(false) => select.add(parts.unavailable, params![now]),
    }
    Ok(())
}

/// The names of comparisons are the signs of SQL.
fn compared(column: &str, comparison: Comparison) -> String {
    format!(" AND {column} {comparison} ?")
}

fn column(key: &Sort) -> &'static str {
    match key.field {
        SortField::Priority => "o.priority",
        SortField::CreatedAt => "o.created_at",
        SortField::LastTransitionedAt => "o.last_transitioned_at",
        SortField::AppliedAt => "o.applied_at",
        SortField::CompletedAt => "o.completed_at",
        SortField::ItemsCount => "o.items",
    }
}

/// Whether an order may be without it.
fn is_optional(key: &Sort) -> bool {
    matches!(key.field, SortField::AppliedAt | SortField::CompletedAt)
}
