//! What agents may lease: the narrow table that claims look at.
//!
//! Each queued item of a live order has a row there. A row is *open*, *held back* by the limit of its
//! lane, or *later*: not due yet. Claims look at open rows only, so neither a hundred thousand items
//! behind a limit nor those that wait for their retry cost them anything. Whether a row is held back
//! is a hint: the limit itself is counted in [`limits`](super::limits) when the lease is made, and
//! [`rebalance`](Session::rebalance) makes the rows agree with it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::limits::LimitKey;
use super::param::json;
use super::{MAX_ROWS, Session, Store, params};
use crate::{Item, ItemId, OrderId, OrderState, Result};

/// Which items a claim may take.
#[derive(Clone, Debug)]
pub(crate) struct Pick<'a> {
    /// Of one type, or of one order.
    pub(crate) from: PickFrom<'a>,
    pub(crate) min_priority: i64,
    /// Not behind an item of this priority that was queued then: another type's turn comes first.
    pub(crate) before: Option<(i64, i64)>,
    pub(crate) meta: Option<&'a Map<String, Value>>,
    pub(crate) limit: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PickFrom<'a> {
    Type(&'a str),
    Order(OrderId),
}

/// The first open item of a type.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) order_type: String,
    pub(crate) priority: i64,
    pub(crate) queued_at: i64,
}

/// So many rows become due by one claim: more would make it slow, and the next one goes on.
const PROMOTED: i64 = 256;

impl Session<'_> {
    /// Makes new items leasable. Their rows are known and not read again: inside of the transaction that
    /// adds a hundred thousand items the database has no statistics that would make the reading quick.
    pub(super) async fn insert_new_ready<'i>(
        &mut self,
        rows: String,
        items: impl Iterator<Item = &'i Item>,
    ) -> Result<()> {
        self.execute(self.sql().insert_new_ready, params![rows]).await?;
        let lanes = items.filter_map(|item| item.concurrency.as_ref());
        self.deferred.rebalance.extend(lanes.map(|lane| LimitKey::lane(&lane.key)));
        Ok(())
    }

    /// Makes queued items leasable if their order is live.
    pub(super) async fn insert_ready(&mut self, items: &[ItemId]) -> Result<()> {
        let sql = self.sql().insert_ready;
        let now = self.now();
        let lanes = self.fetch(sql, params![json(&items)?, now]).await?;
        self.rebalance_later(lanes)
    }

    /// Makes all queued items of an order leasable.
    pub(super) async fn insert_ready_of_order(&mut self, order: OrderId) -> Result<()> {
        let sql = self.sql().insert_ready_of_order;
        let now = self.now();
        let lanes = self.fetch(sql, params![order, now]).await?;
        self.rebalance_later(lanes)
    }

    pub(super) async fn remove_ready(&mut self, items: &[ItemId]) -> Result<()> {
        self.execute(self.sql().remove_ready, params![json(&items)?]).await?;
        Ok(())
    }

    /// Makes the items of an order unleasable. Waits for claims that are under way.
    pub(super) async fn remove_ready_of_order(&mut self, order: OrderId) -> Result<()> {
        let lanes = self.fetch(self.sql().remove_ready_of_order, params![order]).await?;
        self.rebalance_later(lanes)
    }

    /// Opens what has become due.
    pub(crate) async fn promote(&mut self) -> Result<()> {
        let now = self.now();
        self.execute(self.sql().promote, params![now, PROMOTED]).await?;
        Ok(())
    }

    /// The first open item of each of these types, the most urgent type first.
    pub(crate) async fn heads(&mut self, types: &[&str]) -> Result<Vec<Head>> {
        let rows = self.fetch(self.sql().heads, params![json(&types)?]).await?;
        let head = |mut row: super::Cells| {
            Ok(Head { order_type: row.text()?, priority: row.int()?, queued_at: row.int()? })
        };
        rows.into_iter().map(head).collect()
    }

    /// Open items in the order of their turn, locked, with the states of their orders.
    pub(crate) async fn pick(&mut self, pick: &Pick<'_>) -> Result<Vec<(ItemId, OrderState)>> {
        let (sql, from) = match pick.from {
            PickFrom::Type(name) => (self.sql().pick, name.to_owned()),
            PickFrom::Order(id) => (self.sql().pick_of_order, id.to_string()),
        };
        let (priority, queued_at) = pick.before.unwrap_or((i64::MIN, i64::MAX));
        let meta = pick.meta.map(json).transpose()?;
        let limit = i64::try_from(pick.limit).unwrap_or(i64::MAX);
        let values = params![from, pick.min_priority, priority, queued_at, meta, limit];
        let rows = self.fetch(sql, values).await?;
        rows.into_iter().map(|mut row| Ok((row.parse()?, row.parse()?))).collect()
    }

    fn rebalance_later(&mut self, rows: Vec<super::Cells>) -> Result<()> {
        for mut row in rows {
            self.deferred.rebalance.extend(row.opt_text()?.map(LimitKey::from_text));
        }
        Ok(())
    }

    /// Opens the first items of each lane, as many as its limit leaves, and holds the others back.
    /// The lanes' limits must be locked.
    pub(crate) async fn rebalance(&mut self, lanes: &[String]) -> Result<()> {
        let sql = self.sql();
        let size = if sql.many_lanes { MAX_ROWS } else { 1 };
        for lanes in lanes.chunks(size) {
            let lanes = json(&lanes)?;
            self.execute(sql.hold_back, params![lanes.clone()]).await?;
            for mut row in self.fetch(sql.open_up, params![lanes]).await? {
                self.opened.insert(row.text()?);
            }
        }
        Ok(())
    }
}

/// What a claim might find.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    /// Types that have open items.
    pub(crate) open: Vec<String>,
    /// Whether something has become due.
    pub(crate) is_due: bool,
    /// Whether a lease is over that holds something back.
    pub(crate) is_expired: bool,
    /// How many leases count for each of the limits that are known.
    pub(crate) held: BTreeMap<LimitKey, i64>,
}

impl Store {
    /// Looks whether a claim of these types could find something, under these limits; takes no lock.
    pub(crate) async fn glance(&self, types: &[&str], limits: &[&LimitKey]) -> Result<Glance> {
        let keys: Vec<_> = limits.iter().map(|key| key.as_str()).collect();
        let values = params![self.time_of_reads(), json(&types)?, json(&keys)?];
        let found = self.fetch_once(|sql| sql.glance, values).await?;
        let Some(mut row) = found.into_iter().next() else { return Ok(Glance::default()) };
        let (open, is_due, is_expired) =
            (row.opt_json()?.unwrap_or_default(), row.int()? != 0, row.int()? != 0);
        let held: Vec<(String, i64)> = row.opt_json()?.unwrap_or_default();
        let held = held.into_iter().map(|(key, held)| (LimitKey::from_text(key), held)).collect();
        Ok(Glance { open, is_due, is_expired, held })
    }

    /// How long until something of these types is due that is not yet.
    pub(crate) async fn next_due(&self, types: &[&str]) -> Result<Option<Duration>> {
        let values = params![self.time_of_reads(), json(&types)?];
        let found = self.fetch_once(|sql| sql.next_due, values).await?;
        let left = found.into_iter().next().map(|mut row| row.opt_int()).transpose()?.flatten();
        Ok(left.map(|left| Duration::from_micros(left.max(0).unsigned_abs())))
    }
}
