//! Leases: a row for each item that an agent works on, and for no other.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::limits::{AGENT, LANE, LimitKey, TYPE};
use super::param::json;
use super::rows::{self, at};
use super::{Session, params, span};
use crate::{Heartbeat, Item, ItemId, LeaseId, OrderId, Result};

/// A lease as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRow {
    pub(crate) id: LeaseId,
    pub(crate) item_id: ItemId,
    pub(crate) order_id: OrderId,
    pub(crate) order_type: String,
    pub(crate) agent: String,
    pub(crate) fence: u64,
    pub(crate) heartbeat_every: i64,
    pub(crate) leased_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) heartbeat_at: DateTime<Utc>,
    pub(crate) heartbeat_event_at: DateTime<Utc>,
}

/// A lease to be made with the move of an item to `leased`.
#[derive(Clone, Debug)]
pub(crate) struct NewLease {
    pub(crate) id: LeaseId,
    pub(crate) agent: String,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat_every: Duration,
    /// For which limits it counts: [`AGENT`], [`TYPE`], [`LANE`].
    pub(crate) counted: i64,
}

#[derive(Serialize)]
struct StoredLease<'a> {
    id: LeaseId,
    item_id: ItemId,
    order_id: OrderId,
    r#type: &'a str,
    agent: &'a str,
    lane: Option<String>,
    counted: i64,
    fence: u64,
    ttl: i64,
    heartbeat_every: i64,
    leased_at: i64,
    expires_at: i64,
}

impl Session<'_> {
    pub(super) async fn insert_leases(&mut self, leases: &[(&Item, &NewLease)]) -> Result<()> {
        let now = at(self.now());
        let row = |(item, lease): &(&Item, &NewLease)| {
            json(&StoredLease {
                id: lease.id,
                item_id: item.id,
                order_id: item.order_id,
                r#type: &item.item_type,
                agent: &lease.agent,
                lane: item.concurrency.as_ref().map(|c| LimitKey::from(c).into_text()),
                counted: lease.counted,
                fence: item.fence,
                ttl: span(lease.ttl),
                heartbeat_every: span(lease.heartbeat_every),
                leased_at: now,
                expires_at: now.saturating_add(span(lease.ttl)),
            })
        };
        let rows = leases.iter().map(row).collect::<Result<Vec<_>>>()?;
        self.execute(self.sql().insert_leases, params![format!("[{}]", rows.join(","))]).await?;
        Ok(())
    }

    pub(crate) async fn leases(&mut self, ids: &[LeaseId]) -> Result<Vec<LeaseRow>> {
        let found = self.fetch(self.sql().leases, params![json(&ids)?]).await?;
        found.into_iter().map(|mut row| rows::lease(&mut row)).collect()
    }

    pub(crate) async fn leases_of_items(&mut self, items: &[ItemId]) -> Result<Vec<LeaseRow>> {
        let found = self.fetch(self.sql().leases_of_items, params![json(&items)?]).await?;
        found.into_iter().map(|mut row| rows::lease(&mut row)).collect()
    }

    /// The same, and nobody extends them until the transaction ends. The items must be locked before.
    pub(crate) async fn lock_leases_of_items(&mut self, items: &[ItemId]) -> Result<Vec<LeaseRow>> {
        let found = self.fetch(self.sql().lock_leases_of_items, params![json(&items)?]).await?;
        found.into_iter().map(|mut row| rows::lease(&mut row)).collect()
    }

    /// Extends those of the leases that are not over.
    pub(crate) async fn extend_leases(&mut self, ids: &[LeaseId]) -> Result<Vec<Heartbeat>> {
        let now = self.now();
        let rows = self.fetch(self.sql().extend_leases, params![json(&ids)?, now]).await?;
        let read = |mut row: super::Cells| {
            Ok(Heartbeat {
                id: row.parse()?,
                expires_at: row.time()?,
                heartbeat_every: Duration::from_micros(row.number()?),
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// Notes that the heartbeats of these leases stand in the trail.
    pub(crate) async fn note_heartbeats(&mut self, ids: &[LeaseId]) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().note_heartbeats, params![json(&ids)?, now]).await?;
        Ok(())
    }

    /// Ends the leases of items; what they count for is freed before the commit.
    pub(super) async fn remove_leases(&mut self, items: &[ItemId]) -> Result<()> {
        let rows = self.fetch(self.sql().remove_leases, params![json(&items)?]).await?;
        let ended = &mut self.deferred.ended;
        for mut row in rows {
            let (agent, order_type, lane) = (row.text()?, row.text()?, row.opt_text()?);
            let counted = row.int()?;
            let mut count = |key| *ended.entry(key).or_default() += 1;
            if counted & AGENT != 0 {
                count(LimitKey::agent(&agent));
            }
            if counted & TYPE != 0 {
                count(LimitKey::order_type(&order_type));
            }
            if let (true, Some(lane)) = (counted & LANE != 0, lane) {
                count(LimitKey::from_text(lane));
            }
        }
        Ok(())
    }

    /// Items whose leases are over, the longest over first, behind a place in that order.
    pub(crate) async fn expired(
        &mut self,
        after: (i64, ItemId),
        limit: i64,
    ) -> Result<Vec<(i64, ItemId)>> {
        let now = self.now();
        let values = params![now, limit, after.0, after.1];
        let rows = self.fetch(self.sql().expired, values).await?;
        let read = |mut row: super::Cells| {
            let item = row.parse()?;
            Ok((row.int()?, item))
        };
        rows.into_iter().map(read).collect()
    }

    /// Items whose leases are over, of lanes that hold back something of these types.
    pub(crate) async fn expired_of_full_lanes(
        &mut self,
        types: &[&str],
        some: i64,
    ) -> Result<Vec<ItemId>> {
        let values = params![self.now(), json(&types)?, some];
        let rows = self.fetch(self.sql().expired_of_full_lanes, values).await?;
        rows.into_iter().map(|mut row| row.parse()).collect()
    }

    /// Items of one limit whose leases are over.
    pub(crate) async fn expired_of(&mut self, limit: &LimitKey, some: i64) -> Result<Vec<ItemId>> {
        let now = self.now();
        let part = |prefix: &str| limit.as_str().strip_prefix(prefix).map(str::to_owned);
        let lane = limit.is_lane().then(|| limit.as_str().to_owned());
        let values = params![now, part("agent:"), part("type:"), lane, some];
        let rows = self.fetch(self.sql().expired_of, values).await?;
        rows.into_iter().map(|mut row| row.parse()).collect()
    }
}
