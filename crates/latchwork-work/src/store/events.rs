//! The audit trail: writing events, and what the sealer needs.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::param::json;
use super::rows::{self, at};
use super::{Session, params, span};
use crate::audit::{Checkpoint, StoredEvent};
use crate::{Actor, EventHash, EventId, EventType, ItemId, OrderId, Provenance, Result, Seal};

/// An event as it is stored, with its place among the written ones.
#[derive(Clone, Debug)]
pub(crate) struct EventRow {
    pub(crate) seq: i64,
    pub(crate) event: StoredEvent,
    pub(crate) seal: Option<Seal>,
}

/// An event to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewEvent {
    pub(crate) order_id: OrderId,
    pub(crate) item_id: Option<ItemId>,
    pub(crate) event: EventType,
    pub(crate) actor: Actor,
    pub(crate) payload: Option<Value>,
    pub(crate) diff: Option<Value>,
    pub(crate) message: Option<String>,
    pub(crate) provenance: Provenance,
}

#[derive(Serialize)]
struct StoredRow<'a> {
    id: EventId,
    order_id: OrderId,
    item_id: Option<ItemId>,
    event: EventType,
    actor_type: &'a str,
    actor_id: Option<&'a str>,
    payload: Option<String>,
    diff: Option<String>,
    message: Option<&'a str>,
    provenance: Option<String>,
    created_at: i64,
}

#[derive(Serialize)]
struct SealRow {
    seq: i64,
    position: u64,
    hash: EventHash,
}

#[derive(Serialize)]
struct ChainRow {
    order_id: OrderId,
    position: u64,
    hash: EventHash,
    r#type: Option<String>,
}

impl Session<'_> {
    /// Writes events in this order, without seals.
    pub(crate) async fn insert_events(&mut self, events: &[NewEvent]) -> Result<Vec<EventId>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now();
        let mut ids = Vec::with_capacity(events.len());
        let mut rows = Vec::with_capacity(events.len());
        for event in events {
            let id = EventId::new(now);
            ids.push(id);
            let provenance = (!event.provenance.is_empty()).then_some(&event.provenance);
            rows.push(json(&StoredRow {
                id,
                order_id: event.order_id,
                item_id: event.item_id,
                event: event.event,
                actor_type: event.actor.actor_type.as_str(),
                actor_id: event.actor.id.as_deref(),
                payload: event.payload.as_ref().map(json).transpose()?,
                diff: event.diff.as_ref().map(json).transpose()?,
                message: event.message.as_deref(),
                provenance: provenance.map(json).transpose()?,
                created_at: at(now),
            })?);
        }
        self.execute(self.sql().insert_events, params![format!("[{}]", rows.join(","))]).await?;
        Ok(ids)
    }

    /// The position of the last sealed event; no other sealer goes on until the transaction ends.
    pub(crate) async fn lock_sealer(&mut self) -> Result<u64> {
        let row = self.fetch_one(self.sql().lock_sealer, params![]).await?;
        row.ok_or_else(|| crate::Error::damaged("the sealer's row is missing"))?.number()
    }

    /// The same without a lock.
    pub(crate) async fn sealed_position(&mut self) -> Result<u64> {
        let row = self.fetch_one(self.sql().sealed_position, params![]).await?;
        row.ok_or_else(|| crate::Error::damaged("the sealer's row is missing"))?.number()
    }

    pub(crate) async fn unsealed(&mut self, limit: i64) -> Result<Vec<EventRow>> {
        self.read_events(self.sql().unsealed, params![limit]).await
    }

    /// The hashes at the ends of the chains of these orders.
    pub(crate) async fn chains(
        &mut self,
        orders: &[OrderId],
    ) -> Result<HashMap<OrderId, EventHash>> {
        let rows = self.fetch(self.sql().chains, params![json(&orders)?]).await?;
        rows.into_iter().map(|mut row| Ok((row.parse()?, row.parse()?))).collect()
    }

    /// Writes seals, the ends of the chains, and the position of the last one.
    pub(crate) async fn put_seals(&mut self, sealed: &[(EventRow, Seal)]) -> Result<u64> {
        let Some((_, last)) = sealed.last() else { return Ok(0) };
        let seal = |(row, seal): &(EventRow, Seal)| SealRow {
            seq: row.seq,
            position: seal.position,
            hash: seal.hash,
        };
        let seals: Vec<_> = sealed.iter().map(seal).collect();
        let mut ends = HashMap::<OrderId, ChainRow>::new();
        for (row, seal) in sealed {
            let order_id = row.event.order_id;
            let chain = ends.entry(order_id).or_insert_with(|| ChainRow {
                order_id,
                position: 0,
                hash: EventHash::FIRST,
                r#type: row.event.proposed_type(),
            });
            (chain.position, chain.hash) = (seal.position, seal.hash);
        }
        let mut chains: Vec<_> = ends.into_values().collect();
        chains.sort_by_key(|chain| chain.order_id);
        let written = self.execute(self.sql().put_seals, params![json(&seals)?]).await?;
        self.execute(self.sql().put_chains, params![json(&chains)?]).await?;
        let position = i64::try_from(last.position).unwrap_or(i64::MAX);
        self.execute(self.sql().put_sealer, params![position]).await?;
        Ok(written)
    }

    /// Sealed events behind a position.
    pub(crate) async fn events_after(
        &mut self,
        position: u64,
        limit: i64,
    ) -> Result<Vec<EventRow>> {
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        self.read_events(self.sql().events_after, params![position, limit]).await
    }

    /// The events of an order in the order in which they were written, sealed or not.
    pub(crate) async fn order_events(
        &mut self,
        order: OrderId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<EventRow>> {
        self.read_events(self.sql().order_events, params![order, after, limit]).await
    }

    /// How many events have no seal yet, and when the oldest of them was written.
    pub(crate) async fn unsealed_tail(&mut self) -> Result<(u64, Option<DateTime<Utc>>)> {
        let row = self.fetch_one(self.sql().unsealed_tail, params![]).await?;
        let mut row = row.ok_or_else(|| crate::Error::damaged("no count"))?;
        Ok((row.number()?, row.opt_time()?))
    }

    /// The positions and times of the oldest sealed events.
    pub(crate) async fn oldest_events(&mut self, limit: i64) -> Result<Vec<(u64, DateTime<Utc>)>> {
        let rows = self.fetch(self.sql().oldest_events, params![limit]).await?;
        rows.into_iter().map(|mut row| Ok((row.number()?, row.time()?))).collect()
    }

    /// Removes sealed events up to a position, and keeps where each chain stood.
    pub(crate) async fn prune_events(&mut self, position: u64) -> Result<u64> {
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        self.execute(self.sql().keep_checkpoints, params![position]).await?;
        self.execute(self.sql().prune_events, params![position]).await
    }

    pub(crate) async fn checkpoints(&mut self) -> Result<Vec<Checkpoint>> {
        let rows = self.fetch(self.sql().checkpoints, params![]).await?;
        let read = |mut row: super::Cells| {
            let order_id = row.parse()?;
            let seal = Seal { position: row.number()?, hash: row.parse()? };
            Ok(Checkpoint { order_id, seal })
        };
        rows.into_iter().map(read).collect()
    }

    /// Counts a refusal, and says how many there were besides since the last event of them; none where
    /// an event of the same actor and code is recent enough.
    pub(crate) async fn count_refusal(
        &mut self,
        order: OrderId,
        item: Option<ItemId>,
        actor: &Actor,
        code: &str,
        every: Duration,
    ) -> Result<bool> {
        let now = self.now();
        let item = item.map(|id| id.to_string()).unwrap_or_default();
        let values = params![order, item, actor.to_string(), code, now, span(every)];
        let row = self.fetch_one(self.sql().count_refusal, values).await?;
        Ok(row.ok_or_else(|| crate::Error::damaged("no count"))?.int()? == 0)
    }

    pub(super) async fn read_events(
        &mut self,
        sql: &str,
        values: Vec<super::Param>,
    ) -> Result<Vec<EventRow>> {
        self.fetch(sql, values).await?.iter_mut().map(rows::event).collect()
    }
}
