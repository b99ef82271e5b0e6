//! Listings of orders, items and leases (W13).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::check_text;
use super::lookup::{event, lease_info};
use super::{WorkManager, read};
use crate::query::{
    Cursor, Include, ItemCursor, ItemQuery, LeaseQuery, MAX_PAGE_SIZE, OrderFilter, OrderQuery,
    Sort, SortField,
};
use crate::store::{LeaseRow, Session};
use crate::{Error, Event, Item, ItemCounts, ItemId, LeaseInfo, Order, Result};

/// A page of orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderPage {
    /// The orders.
    pub orders: Vec<ListedOrder>,
    /// Where the next page begins; none at the end.
    pub next: Option<Cursor>,
}

/// An order, and what was asked for besides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedOrder {
    /// The order.
    #[serde(flatten)]
    pub order: Order,
    /// With [`Include::Items`]: its first [`INCLUDED_ITEMS`] items in the order of the plan;
    /// [`list_items`](WorkManager::list_items) has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_items: Option<Vec<Item>>,
    /// With [`Include::Events`]: its latest [`INCLUDED_EVENTS`] events, the latest one last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Event>>,
    /// With [`Include::ItemsCount`]: how many items are in each state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_count: Option<ItemCounts>,
    /// With [`Include::EventsCount`]: how many events it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_count: Option<u64>,
}

/// So many items come with an order of a listing.
pub const INCLUDED_ITEMS: u32 = 100;

/// So many events come with an order of a listing.
pub const INCLUDED_EVENTS: u32 = 20;

/// A page of items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ItemPage {
    /// The items.
    pub items: Vec<ListedItem>,
    /// Where the next page begins; none at the end.
    pub next: Option<ItemCursor>,
}

/// An item, and who works on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedItem {
    /// The item.
    #[serde(flatten)]
    pub item: Item,
    /// Who works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseInfo>,
}

/// A page of leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeasePage {
    /// The leases.
    pub leases: Vec<ListedLease>,
    /// Where the next page begins; none at the end.
    pub next: Option<ItemId>,
}

/// A lease, and how long it lasts yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedLease {
    /// The lease.
    #[serde(flatten)]
    pub lease: LeaseInfo,
    /// The type of its order.
    #[serde(rename = "type")]
    pub order_type: String,
    /// How long it lasts without a heartbeat, by the store's clock; zero where it is over and the item
    /// was not taken back yet. In milliseconds as JSON.
    #[serde(rename = "remaining_ms", with = "crate::lease::millis")]
    pub remaining: Duration,
}

impl WorkManager {
    /// A page of the orders that a query wants.
    ///
    /// A page is one snapshot. Pass its `next` as the [`after`](OrderQuery::after) of the next one: orders
    /// that are made, moved or removed meanwhile neither repeat others nor hide them. An order whose own
    /// sort key changes meanwhile stands where it stands when its page is read.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an illegal page size, a cursor of another
    /// sorting, or a text that no database keeps.
    pub async fn orders(&self, query: &OrderQuery) -> Result<OrderPage> {
        check(query)?;
        // One more than wanted says whether there is a next page.
        let mut wider = query.clone();
        wider.page_size += 1;
        let (orders, next) = read!(self, session => {
            let mut orders = session.list_orders(&wider).await?;
            let more = orders.len() > query.page_size as usize;
            orders.truncate(query.page_size as usize);
            let next = orders.last().filter(|_| more).map(|last| place_of(&query.sort, last));
            Ok((with_includes(session, orders, &query.include).await?, next))
        })?;
        Ok(OrderPage { orders, next })
    }

    /// A page of the items that a query wants, with their leases.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an illegal page size or a text that no
    /// database keeps.
    pub async fn list_items(&self, query: &ItemQuery) -> Result<ItemPage> {
        check_size(query.page_size)?;
        for name in &query.types {
            check_text("type", name, MAX_TEXT)?;
        }
        check_text("leased_by", query.leased_by.as_deref().unwrap_or_default(), MAX_TEXT)?;
        let mut wider = query.clone();
        wider.page_size += 1;
        read!(self, session => {
            let mut items = session.list_items(&wider).await?;
            let more = items.len() > query.page_size as usize;
            items.truncate(query.page_size as usize);
            let place = |item: &Item| ItemCursor { order_id: item.order_id, seq: item.seq };
            let next = items.last().filter(|_| more).map(place);
            let ids: Vec<_> = items.iter().map(|item| item.id).collect();
            let leases = session.leases_of_items(&ids).await?;
            let listed = |item: Item| {
                let lease = leases.iter().find(|row| row.item_id == item.id).map(lease_info);
                ListedItem { item, lease }
            };
            Ok(ItemPage { items: items.into_iter().map(listed).collect(), next })
        })
    }

    /// A page of the leases that a query wants, with how long they last yet.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an illegal page size or a text that no
    /// database keeps.
    pub async fn list_leases(&self, query: &LeaseQuery) -> Result<LeasePage> {
        check_size(query.page_size)?;
        check_text("agent", query.agent.as_deref().unwrap_or_default(), MAX_TEXT)?;
        let mut wider = query.clone();
        wider.page_size += 1;
        read!(self, session => {
            let mut rows = session.list_leases(&wider).await?;
            let more = rows.len() > query.page_size as usize;
            rows.truncate(query.page_size as usize);
            let next = rows.last().filter(|_| more).map(|row| row.item_id);
            let now = session.now();
            let listed = |row: LeaseRow| ListedLease {
                lease: lease_info(&row),
                remaining: (row.expires_at - now).to_std().unwrap_or_default(),
                order_type: row.order_type,
            };
            Ok(LeasePage { leases: rows.into_iter().map(listed).collect(), next })
        })
    }
}

/// The longest text of a filter, in bytes.
const MAX_TEXT: usize = 4 << 10;

/// The largest object of a meta filter: so many values, and so deep.
const MAX_META: (usize, usize) = (100, 8);

fn check(query: &OrderQuery) -> Result<()> {
    check_size(query.page_size)?;
    for filter in &query.filters {
        match filter {
            OrderFilter::Type(texts) => each_text("type", texts)?,
            OrderFilter::RequestedById(texts) => each_text("requested_by_id", texts)?,
            OrderFilter::Meta(wanted) => {
                let mut left = MAX_META.0;
                for (key, value) in wanted {
                    check_text("meta", key, MAX_TEXT)?;
                    check_meta(value, 1, &mut left)?;
                }
            }
            _ => {}
        }
    }
    let Some(after) = &query.after else { return Ok(()) };
    after.check(&query.sort)?;
    let optional = |key: &Sort| matches!(key.field, SortField::AppliedAt | SortField::CompletedAt);
    let mut keys = query.sort.iter().zip(after.keys());
    match keys.find(|(key, value)| value.is_none() && !optional(key)) {
        None => Ok(()),
        Some((key, _)) => {
            Err(Error::invalid("page[cursor]", format!("every order has a {}", key.field)))
        }
    }
}

fn check_size(size: u32) -> Result<()> {
    if (1..=MAX_PAGE_SIZE).contains(&size) {
        return Ok(());
    }
    let reason = format!("{size} is not a number from 1 to {MAX_PAGE_SIZE}");
    Err(Error::invalid("page[size]", reason))
}

fn each_text(name: &'static str, texts: &[String]) -> Result<()> {
    texts.iter().try_for_each(|text| check_text(name, text, MAX_TEXT))
}

fn check_meta(value: &Value, depth: usize, left: &mut usize) -> Result<()> {
    if *left == 0 || depth > MAX_META.1 {
        let (values, depth) = MAX_META;
        let reason = format!("it has more than {values} values, or more than {depth} levels");
        return Err(Error::invalid("meta", reason));
    }
    *left -= 1;
    match value {
        Value::String(text) => check_text("meta", text, MAX_TEXT),
        Value::Array(elements) => {
            elements.iter().try_for_each(|element| check_meta(element, depth + 1, left))
        }
        Value::Object(members) => members.iter().try_for_each(|(key, value)| {
            check_text("meta", key, MAX_TEXT)?;
            check_meta(value, depth + 1, left)
        }),
        _ => Ok(()),
    }
}

/// The place behind an order.
fn place_of(sort: &[Sort], order: &Order) -> Cursor {
    let key = |key: &Sort| match key.field {
        SortField::Priority => Some(order.priority.into()),
        SortField::CreatedAt => Some(order.created_at.timestamp_micros()),
        SortField::LastTransitionedAt => Some(order.last_transitioned_at.timestamp_micros()),
        SortField::AppliedAt => order.applied_at.map(|time| time.timestamp_micros()),
        SortField::CompletedAt => order.completed_at.map(|time| time.timestamp_micros()),
        SortField::ItemsCount => Some(order.items.into()),
    };
    Cursor::new(sort, sort.iter().map(key).collect(), order.id)
}

/// What was asked for with the orders, one statement each for the whole page.
async fn with_includes(
    session: &mut Session<'_>,
    orders: Vec<Order>,
    include: &[Include],
) -> Result<Vec<ListedOrder>> {
    let ids: Vec<_> = orders.iter().map(|order| order.id).collect();
    let bare = |order| ListedOrder {
        order,
        order_items: None,
        events: None,
        items_count: None,
        events_count: None,
    };
    let mut listed: Vec<_> = orders.into_iter().map(bare).collect();
    if listed.is_empty() {
        return Ok(listed);
    }
    if include.contains(&Include::Items) {
        let mut found = session.included_items(&ids, INCLUDED_ITEMS).await?;
        for one in &mut listed {
            one.order_items = Some(found.remove(&one.order.id).unwrap_or_default());
        }
    }
    if include.contains(&Include::Events) {
        let mut found = session.included_events(&ids, INCLUDED_EVENTS).await?;
        for one in &mut listed {
            let rows = found.remove(&one.order.id).unwrap_or_default();
            one.events = Some(rows.into_iter().map(event).collect::<Result<_>>()?);
        }
    }
    if include.contains(&Include::ItemsCount) {
        let mut found = session.included_item_counts(&ids).await?;
        for one in &mut listed {
            one.items_count = Some(found.remove(&one.order.id).unwrap_or_default());
        }
    }
    if include.contains(&Include::EventsCount) {
        let mut found = session.included_event_counts(&ids).await?;
        for one in &mut listed {
            one.events_count = Some(found.remove(&one.order.id).unwrap_or_default());
        }
    }
    Ok(listed)
}
