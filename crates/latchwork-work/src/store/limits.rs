//! Limits on leases: of an agent, of a type, of a lane (the items that share a concurrency key).
//!
//! Each limit that is in force has a row that counts its leases. A claim locks the rows of its limits
//! in the order of their keys and adds to them only what they allow; the end of a lease takes it away
//! again. The sweep counts anew what a crash or a changed setting may have left wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::param::json;
use super::{MAX_ROWS, Session, params};
use crate::{Concurrency, Result};

/// The lease counts for the limit of its agent.
pub(crate) const AGENT: i64 = 1;
/// The lease counts for the limit of its type.
pub(crate) const TYPE: i64 = 2;
/// The lease counts for the limit of its lane.
pub(crate) const LANE: i64 = 4;

/// Names a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LimitKey(String);

impl LimitKey {
    pub(crate) fn agent(agent: &str) -> Self {
        LimitKey(format!("agent:{agent}"))
    }

    pub(crate) fn order_type(name: &str) -> Self {
        LimitKey(format!("type:{name}"))
    }

    pub(crate) fn lane(key: &str) -> Self {
        LimitKey(format!("key:{key}"))
    }

    pub(crate) fn from_text(text: String) -> Self {
        LimitKey(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    pub(crate) fn is_lane(&self) -> bool {
        self.0.starts_with("key:")
    }
}

/// What a transaction does with limits before it commits.
#[derive(Default)]
pub(crate) struct Deferred {
    /// How many leases have ended, by limit.
    pub(super) ended: BTreeMap<LimitKey, i64>,
    /// Lanes whose rows have changed.
    pub(super) rebalance: BTreeSet<LimitKey>,
}

/// How far a limit is used.
#[derive(Clone, Debug)]
pub(crate) struct LimitRow {
    pub(crate) held: i64,
    /// As the last proposal or claim has set it.
    pub(crate) max: i64,
    pub(crate) ordered: bool,
}

impl LimitRow {
    pub(crate) fn is_full(&self) -> bool {
        self.held >= self.max
    }
}

#[derive(Serialize)]
struct SetLimit<'a> {
    key: &'a str,
    max: u32,
    ordered: i64,
}

#[derive(Serialize)]
struct Change<'a> {
    key: &'a str,
    change: i64,
}

impl Session<'_> {
    /// Makes limits, or brings them up to date. Looks first: to write a row that is right already would
    /// lock it all the same.
    pub(crate) async fn set_limits(
        &mut self,
        limits: &BTreeMap<LimitKey, (u32, bool)>,
    ) -> Result<()> {
        let known = self.limits(limits.keys()).await?;
        let is_right = |(key, (max, ordered)): &(&LimitKey, &(u32, bool))| {
            let row = known.get(*key);
            row.is_some_and(|row| row.max == i64::from(*max) && row.ordered == *ordered)
        };
        let wrong: Vec<_> = limits.iter().filter(|limit| !is_right(limit)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        // Sorted by key, as everywhere, so that two who do this at once do not wait for each other.
        let rows: Vec<_> = (wrong.into_iter())
            .map(|(key, (max, ordered))| SetLimit {
                key: key.as_str(),
                max: *max,
                ordered: (*ordered).into(),
            })
            .collect();
        for some in rows.chunks(MAX_ROWS) {
            self.execute(self.sql().set_limits, params![json(&some)?]).await?;
        }
        Ok(())
    }

    /// Limits that nobody else changes until the transaction ends.
    pub(crate) async fn lock_limits<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k LimitKey>,
    ) -> Result<BTreeMap<LimitKey, LimitRow>> {
        self.read_limits(self.sql().lock_limits, keys).await
    }

    /// The same, as they are now.
    pub(crate) async fn limits<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k LimitKey>,
    ) -> Result<BTreeMap<LimitKey, LimitRow>> {
        self.read_limits(self.sql().limits, keys).await
    }

    async fn read_limits<'k>(
        &mut self,
        sql: &str,
        keys: impl IntoIterator<Item = &'k LimitKey>,
    ) -> Result<BTreeMap<LimitKey, LimitRow>> {
        // Each time the next ones in their order, as one statement would lock them.
        let mut keys: Vec<_> = keys.into_iter().map(LimitKey::as_str).collect();
        keys.sort_unstable();
        let mut found = BTreeMap::new();
        for some in keys.chunks(MAX_ROWS) {
            for row in self.fetch(sql, params![json(&some)?]).await? {
                let (key, limit) = limit_row(row)?;
                found.insert(key, limit);
            }
        }
        Ok(found)
    }

    /// Some lanes that hold back something of these types.
    pub(crate) async fn full_lanes(&mut self, types: &[&str]) -> Result<Vec<(LimitKey, LimitRow)>> {
        const SOME: i64 = 16;
        let rows = self.fetch(self.sql().full_lanes, params![json(&types)?, SOME]).await?;
        rows.into_iter().map(limit_row).collect()
    }

    /// Adds to the counts of locked limits, and takes away.
    pub(crate) async fn change_limits(&mut self, changes: &BTreeMap<LimitKey, i64>) -> Result<()> {
        let rows: Vec<_> = (changes.iter())
            .filter(|(_, change)| **change != 0)
            .map(|(key, change)| Change { key: key.as_str(), change: *change })
            .collect();
        for some in rows.chunks(MAX_ROWS) {
            self.execute(self.sql().change_limits, params![json(&some)?]).await?;
        }
        Ok(())
    }

    /// Takes ended leases off their limits, and opens what that lets in.
    pub(super) async fn settle_limits(&mut self, deferred: Deferred) -> Result<()> {
        let Deferred { ended, mut rebalance } = deferred;
        rebalance.extend(ended.keys().filter(|key| key.is_lane()).cloned());
        let keys: BTreeSet<_> = ended.keys().chain(&rebalance).collect();
        if keys.is_empty() {
            return Ok(());
        }
        self.lock_limits(keys).await?;
        let changes = ended.iter().map(|(key, count)| (key.clone(), -count)).collect();
        self.change_limits(&changes).await?;
        let lanes: Vec<_> = rebalance.into_iter().map(LimitKey::into_text).collect();
        self.rebalance(&lanes).await
    }

    /// Counts a limit's leases anew.
    pub(crate) async fn recount(&mut self, key: &LimitKey) -> Result<()> {
        self.lock_limits([key]).await?;
        self.execute(self.sql().recount, params![key.as_str()]).await?;
        if key.is_lane() {
            self.rebalance(&[key.as_str().to_owned()]).await?;
        }
        Ok(())
    }

    /// Limits behind a key, in the order of their keys, and whether each should be counted anew.
    pub(crate) async fn list_limits(
        &mut self,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(LimitKey, bool)>> {
        let rows = self.fetch(self.sql().list_limits, params![after, limit]).await?;
        rows.into_iter().map(|mut row| Ok((LimitKey(row.text()?), row.int()? != 0))).collect()
    }
}

impl From<&Concurrency> for LimitKey {
    fn from(concurrency: &Concurrency) -> Self {
        LimitKey::lane(&concurrency.key)
    }
}

fn limit_row(mut row: super::Cells) -> Result<(LimitKey, LimitRow)> {
    let key = LimitKey(row.text()?);
    let (held, max) = (row.int()?, row.opt_int()?.unwrap_or(i64::MAX));
    Ok((key, LimitRow { held, max, ordered: row.int()? != 0 }))
}
