//! Reading: one order or item with what belongs to it, counts, timelines.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{WorkManager, read};
use crate::store::{EventRow, LeaseRow, json, params};
use crate::{
    Actor, Error, Event, Item, ItemCounts, ItemId, LeaseInfo, Order, OrderId, Provenance, Result,
};

/// An order with its payload and the states of its items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderDetails {
    /// The order.
    pub order: Order,
    /// What it carries.
    pub payload: Value,
    /// How many of its items are in each state.
    pub item_counts: ItemCounts,
}

/// An item with its input, latest result and lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ItemDetails {
    /// The item.
    pub item: Item,
    /// What the agent is given.
    pub input: Value,
    /// Its latest result.
    pub result: Option<ItemResult>,
    /// Who works on it.
    pub lease: Option<LeaseInfo>,
}

/// A version of an item's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ItemResult {
    /// Which version, from 1.
    pub version: u32,
    /// Who submitted it, or edited it.
    pub actor: Actor,
    /// The result.
    pub result: Value,
    /// When.
    pub created_at: DateTime<Utc>,
    /// The version that a reviewer edited; none for an agent's own result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_from: Option<u32>,
}

/// The events of an order, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Timeline {
    /// The events; those at the end may not be sealed yet.
    pub events: Vec<Event>,
    /// Pass it on for the next page; none at the end.
    pub next: Option<i64>,
}

/// How many orders or items of a type are in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StateCount {
    /// The type.
    #[serde(rename = "type")]
    pub order_type: String,
    /// The state.
    pub state: String,
    /// How many.
    pub count: u64,
}

/// An agent that holds leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Agent {
    /// Its name.
    pub id: String,
    /// How many items it has leased.
    pub leases: u64,
    /// Its latest heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
}

/// The largest page of items or events.
const MAX_PAGE: u32 = 1_000;

impl WorkManager {
    /// An order with its payload and the states of its items.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound).
    pub async fn order(&self, id: OrderId) -> Result<OrderDetails> {
        read!(self, session => {
            Ok(OrderDetails {
                order: session.order(id).await?,
                payload: session.payload(id).await?,
                item_counts: session.item_counts(id).await?,
            })
        })
    }

    /// An item with its input, latest result and lease.
    ///
    /// # Errors
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound).
    pub async fn item(&self, id: ItemId) -> Result<ItemDetails> {
        let mut found = read!(self, session => {
            let item = session.item(id).await?;
            details(session, vec![item]).await
        })?;
        found.pop().ok_or_else(|| crate::ErrorKind::ItemNotFound { id }.into())
    }

    /// A page of the items of an order in the order of the plan, behind the item with this `seq`.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound), and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a page of more than 1,000.
    pub async fn items(
        &self,
        order: OrderId,
        after: Option<u32>,
        limit: u32,
    ) -> Result<Vec<ItemDetails>> {
        check_page(limit)?;
        read!(self, session => {
            session.order(order).await?;
            let after = after.map_or(-1, i64::from);
            let items = session.order_items(order, after, limit.into()).await?;
            details(session, items).await
        })
    }

    /// A page of the events of an order, which may be gone, behind the `next` of the page before.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a page of more than 1,000.
    pub async fn timeline(
        &self,
        order: OrderId,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Timeline> {
        check_page(limit)?;
        let rows = read!(self, session => {
            session.order_events(order, after.unwrap_or(0), limit.into()).await
        })?;
        let full = rows.len() == limit as usize;
        let next = rows.last().map(|row| row.seq).filter(|_| full);
        let events = rows.into_iter().map(event).collect::<Result<_>>()?;
        Ok(Timeline { events, next })
    }

    /// Sealed events of all orders behind a position, in the order of their positions (W10).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a page of more than 1,000.
    pub async fn events(&self, after: u64, limit: u32) -> Result<Vec<Event>> {
        check_page(limit)?;
        let rows = read!(self, session => { session.events_after(after, limit.into()).await })?;
        rows.into_iter().map(event).collect()
    }

    /// How many orders of each type are in each state.
    ///
    /// # Errors
    /// The store's.
    pub async fn order_states(&self) -> Result<Vec<StateCount>> {
        let rows = read!(self, session => {
            session.fetch(session.sql().order_states, params![]).await
        })?;
        rows.into_iter().map(state_count).collect()
    }

    /// How many items of each type are in each state.
    ///
    /// # Errors
    /// The store's.
    pub async fn item_states(&self) -> Result<Vec<StateCount>> {
        let rows = read!(self, session => {
            session.fetch(session.sql().item_states, params![]).await
        })?;
        rows.into_iter().map(state_count).collect()
    }

    /// The agents that hold leases.
    ///
    /// # Errors
    /// The store's.
    pub async fn agents(&self) -> Result<Vec<Agent>> {
        let rows = read!(self, session => {
            session.fetch(session.sql().agents, params![]).await
        })?;
        rows.into_iter().map(agent).collect()
    }

    /// The agents that hold leases on items of these order types, counting those leases only.
    ///
    /// # Errors
    /// The store's.
    pub async fn agents_of_types(&self, types: &[String]) -> Result<Vec<Agent>> {
        let rows = read!(self, session => {
            session.fetch(session.sql().agents_of_types, params![json(&types)?]).await
        })?;
        rows.into_iter().map(agent).collect()
    }

    /// Answers an order of another type than these like one that does not exist: for a caller who may
    /// see these only. Of an order that is gone, the trail knows the type.
    ///
    /// # Errors
    /// [`OrderNotFound`](crate::ErrorKind::OrderNotFound).
    pub async fn check_order_type(&self, id: OrderId, types: &[String]) -> Result<()> {
        let rows = read!(self, session => {
            session.fetch(session.sql().type_of_order, params![id]).await
        })?;
        match has_type(rows, types)? {
            true => Ok(()),
            false => Err(crate::ErrorKind::OrderNotFound { id }.into()),
        }
    }

    /// Answers an item of another type than these like one that does not exist.
    ///
    /// # Errors
    /// [`ItemNotFound`](crate::ErrorKind::ItemNotFound).
    pub async fn check_item_type(&self, id: ItemId, types: &[String]) -> Result<()> {
        let rows = read!(self, session => {
            session.fetch(session.sql().type_of_item, params![id]).await
        })?;
        match has_type(rows, types)? {
            true => Ok(()),
            false => Err(crate::ErrorKind::ItemNotFound { id }.into()),
        }
    }

    /// The store's time: what leases are judged by.
    ///
    /// # Errors
    /// The store's.
    pub async fn now(&self) -> Result<DateTime<Utc>> {
        read!(self, session => { Ok(session.now()) })
    }
}

pub(super) fn check_page(limit: u32) -> Result<()> {
    if (1..=MAX_PAGE).contains(&limit) {
        return Ok(());
    }
    Err(Error::invalid("limit", format!("a page has 1 to {MAX_PAGE} entries")))
}

fn state_count(mut row: crate::store::Cells) -> Result<StateCount> {
    Ok(StateCount { order_type: row.text()?, state: row.text()?, count: row.number()? })
}

fn has_type(rows: Vec<crate::store::Cells>, types: &[String]) -> Result<bool> {
    let Some(mut row) = rows.into_iter().next() else { return Ok(false) };
    Ok(types.contains(&row.text()?))
}

fn agent(mut row: crate::store::Cells) -> Result<Agent> {
    Ok(Agent { id: row.text()?, leases: row.number()?, last_heartbeat_at: row.time()? })
}

async fn details(
    session: &mut crate::store::Session<'_>,
    items: Vec<Item>,
) -> Result<Vec<ItemDetails>> {
    let ids: Vec<_> = items.iter().map(|item| item.id).collect();
    let mut inputs = session.inputs(&ids).await?;
    let results = session.results(&ids).await?;
    let leases = session.leases_of_items(&ids).await?;
    let one = |item: Item| ItemDetails {
        input: inputs.remove(&item.id).unwrap_or_default(),
        result: results.iter().find(|result| result.item_id == item.id).map(|row| ItemResult {
            version: row.version,
            actor: row.actor.clone(),
            result: row.result.clone(),
            created_at: row.created_at,
            edited_from: row.edited_from,
        }),
        lease: leases.iter().find(|row| row.item_id == item.id).map(lease_info),
        item,
    };
    Ok(items.into_iter().map(one).collect())
}

/// A lease as others see it.
pub(super) fn lease_info(row: &LeaseRow) -> LeaseInfo {
    LeaseInfo {
        item_id: row.item_id,
        order_id: row.order_id,
        leased_by_agent_id: row.agent.clone(),
        leased_at: row.leased_at,
        lease_expires_at: row.expires_at,
        last_heartbeat_at: row.heartbeat_at,
        fence: row.fence,
    }
}

pub(super) fn event(row: EventRow) -> Result<Event> {
    let json = |text: Option<String>| -> Result<Option<Value>> {
        let read = text.map(|text| serde_json::from_str(&text)).transpose();
        read.map_err(|error| Error::damaged(format!("an event: {error}")))
    };
    let provenance = match &row.event.provenance {
        None => Provenance::default(),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| Error::damaged(format!("an event: {error}")))?,
    };
    Ok(Event {
        id: row.event.id,
        order_id: row.event.order_id,
        item_id: row.event.item_id,
        event: row.event.event.parse()?,
        actor: Actor { actor_type: row.event.actor_type.parse()?, id: row.event.actor_id },
        payload: json(row.event.payload)?,
        diff: json(row.event.diff)?,
        message: row.event.message,
        provenance,
        created_at: row.event.created_at,
        seal: row.seal,
    })
}
