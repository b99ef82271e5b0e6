//! Rows as values, in the order of the columns of [`Statements`](super::Statements).

use chrono::{DateTime, Utc};

use super::Cells;
use crate::audit::StoredEvent;
use crate::store::events::EventRow;
use crate::store::leases::LeaseRow;
use crate::{Actor, Item, Order, Result, Seal};

pub(super) fn order(row: &mut Cells) -> Result<Order> {
    Ok(Order {
        id: row.parse()?,
        order_type: row.text()?,
        type_version: row.number()?,
        state: row.parse()?,
        version: row.int()?,
        priority: row.number()?,
        requested_by: Actor { actor_type: row.parse()?, id: row.opt_text()? },
        meta: row.opt_json()?,
        unique_key: row.opt_text()?,
        unique_states: row.json()?,
        items: row.number()?,
        settings: row.json()?,
        error: row.opt_json()?,
        created_at: row.time()?,
        last_transitioned_at: row.time()?,
        applied_at: row.opt_time()?,
        completed_at: row.opt_time()?,
    })
}

pub(crate) fn item(row: &mut Cells) -> Result<Item> {
    Ok(Item {
        id: row.parse()?,
        order_id: row.parse()?,
        seq: row.number()?,
        item_type: row.text()?,
        state: row.parse()?,
        version: row.int()?,
        priority: row.number()?,
        attempts: row.number()?,
        max_attempts: row.number()?,
        available_at: row.time()?,
        concurrency: row.opt_json()?,
        fence: row.number()?,
        leased_at: row.opt_time()?,
        accepted_at: row.opt_time()?,
        error: row.opt_json()?,
        results: row.number()?,
        created_at: row.time()?,
    })
}

pub(crate) fn lease(row: &mut Cells) -> Result<LeaseRow> {
    Ok(LeaseRow {
        id: row.parse()?,
        item_id: row.parse()?,
        order_id: row.parse()?,
        order_type: row.text()?,
        agent: row.text()?,
        fence: row.number()?,
        heartbeat_every: row.int()?,
        leased_at: row.time()?,
        expires_at: row.time()?,
        heartbeat_at: row.time()?,
        heartbeat_event_at: row.time()?,
    })
}

pub(super) fn event(row: &mut Cells) -> Result<EventRow> {
    let seq = row.int()?;
    let event = StoredEvent {
        id: row.parse()?,
        order_id: row.parse()?,
        item_id: row.opt_parse()?,
        event: row.text()?,
        actor_type: row.text()?,
        actor_id: row.opt_text()?,
        payload: row.opt_text()?,
        diff: row.opt_text()?,
        message: row.opt_text()?,
        provenance: row.opt_text()?,
        created_at: row.time()?,
    };
    let position: Option<i64> = row.opt_int()?;
    let seal = match (position, row.opt_text()?) {
        (Some(position), Some(hash)) => {
            Some(Seal { position: u64::try_from(position).unwrap_or(0), hash: hash.parse()? })
        }
        _ => None,
    };
    Ok(EventRow { seq, event, seal })
}

/// Seconds since 1970 in microseconds, as JSON rows hold it.
pub(super) fn at(time: DateTime<Utc>) -> i64 {
    time.timestamp_micros()
}
