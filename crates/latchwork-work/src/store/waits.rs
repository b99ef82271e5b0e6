//! What queued items wait for.

use chrono::{DateTime, Utc};

use super::param::json;
use super::rows;
use super::{Cells, LeaseRow, LimitRow, Session, params};
use crate::{Error, Item, ItemId, ItemState, OrderId, Result};

/// What a queued item of a live order waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For an agent that asks.
    Open = 0,
    /// For its time.
    Later = 1,
    /// For the limit of its lane.
    Limit = 2,
    /// For an item before it in an ordered lane.
    Ordered = 3,
}

/// What one queued item waits for.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) wait: Wait,
    /// The limit of its lane.
    pub(crate) limit: Option<LimitRow>,
    /// The first item of its lane.
    pub(crate) first: Option<ItemId>,
}

impl Session<'_> {
    /// What the queued items of an order wait for: how many, and when the first of them is due.
    pub(crate) async fn waits(
        &mut self,
        order: OrderId,
    ) -> Result<Vec<(Wait, u32, DateTime<Utc>)>> {
        let now = self.now();
        let rows = self.fetch(self.listings().waits, params![order, now]).await?;
        let read = |mut row: Cells| Ok((wait(row.int()?)?, row.number()?, row.time()?));
        rows.into_iter().map(read).collect()
    }

    /// The first queued items of an order that wait for this.
    pub(crate) async fn waiting_items(
        &mut self,
        order: OrderId,
        wait: Wait,
        limit: i64,
    ) -> Result<Vec<Item>> {
        let values = params![order, self.now(), wait as i64, limit];
        let found = self.fetch(self.listings().waiting_items, values).await?;
        found.into_iter().map(|mut row| rows::item(&mut row)).collect()
    }

    /// What a queued item waits for; none where it cannot be leased at all.
    pub(crate) async fn wait_of_item(&mut self, item: ItemId) -> Result<Option<Waiting>> {
        let now = self.now();
        let row = self.fetch_one(self.listings().wait_of_item, params![item, now]).await?;
        let Some(mut row) = row else { return Ok(None) };
        let wait = wait(row.int()?)?;
        let (held, max, ordered) = (row.opt_int()?, row.opt_int()?, row.opt_int()? == Some(1));
        let limit = held.zip(max).map(|(held, max)| LimitRow { held, max, ordered });
        Ok(Some(Waiting { wait, limit, first: row.opt_parse()? }))
    }

    /// The leases of an order that end first.
    pub(crate) async fn first_leases(
        &mut self,
        order: OrderId,
        limit: i64,
    ) -> Result<Vec<LeaseRow>> {
        let found = self.fetch(self.listings().first_leases, params![order, limit]).await?;
        found.into_iter().map(|mut row| rows::lease(&mut row)).collect()
    }

    /// How many leases of an order are over.
    pub(crate) async fn expired_leases(&mut self, order: OrderId) -> Result<u32> {
        let now = self.now();
        let row = self.fetch_one(self.listings().expired_leases, params![order, now]).await?;
        row.ok_or_else(|| Error::damaged("no count"))?.number()
    }

    /// The first items of an order in these states.
    pub(crate) async fn first_items(
        &mut self,
        order: OrderId,
        states: &[ItemState],
        limit: i64,
    ) -> Result<Vec<Item>> {
        let values = params![order, json(&states)?, limit];
        let found = self.fetch(self.listings().first_items, values).await?;
        found.into_iter().map(|mut row| rows::item(&mut row)).collect()
    }
}

fn wait(number: i64) -> Result<Wait> {
    let all = [Wait::Open, Wait::Later, Wait::Limit, Wait::Ordered];
    let found = all.into_iter().find(|wait| *wait as i64 == number);
    found.ok_or_else(|| Error::damaged(format!("{number} is nothing to wait for")))
}
