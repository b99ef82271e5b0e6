//! What must be done again and again: reclaim, dead-letter, alert, prune, seal (W11).
//!
//! Every process may run it. One at a time does, elected by our own lock; each step is also right when
//! two do it at once, so an election that errs costs time and nothing else. Steps go in bounded
//! batches, from a place that moves on: a batch full of rows that cannot move hides none that can.

use std::collections::BTreeSet;
use std::time::Duration;

use latchwork_lock::Locks;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{WorkClient, WorkManager, read, transact};
use crate::store::{OrderEdit, params, span};
use crate::{Actor, Item, ItemId, OrderId, OrderState, Result};

/// How maintenance goes about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MaintenanceSettings {
    /// How often expired leases are looked for, and everything else that is due.
    pub every: Duration,
    /// How often new events are sealed.
    pub seal_every: Duration,
    /// When a failed order is given up; `None` for never.
    pub dead_letter_after: Option<Duration>,
    /// When an order that is not over is reported as stale; `None` for never.
    pub stale_after: Option<Duration>,
    /// When orders that are over are removed, with their items; `None` for never. Their events stay.
    pub prune_orders_after: Option<Duration>,
    /// When sealed events are removed; `None` for never. A checkpoint of each chain stays.
    pub prune_events_after: Option<Duration>,
    /// How many rows a step takes at a time.
    pub batch: u32,
    /// How many batches of each kind a round removes at most, so that it keeps up with what comes in.
    pub prune_batches: u32,
}

impl Default for MaintenanceSettings {
    fn default() -> Self {
        const HOUR: u64 = 3_600;
        MaintenanceSettings {
            every: Duration::from_secs(1),
            seal_every: Duration::from_millis(100),
            dead_letter_after: Some(Duration::from_secs(48 * HOUR)),
            stale_after: Some(Duration::from_secs(24 * HOUR)),
            prune_orders_after: None,
            prune_events_after: None,
            batch: 200,
            prune_batches: 50,
        }
    }
}

/// What one round of maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MaintenanceReport {
    /// Items whose lease had run out.
    pub reclaimed: u64,
    /// Orders that were given up.
    pub dead_lettered: u64,
    /// Orders that were reported as stale.
    pub stale: u64,
    /// Idempotency keys that had expired.
    pub keys: u64,
    /// Orders that were removed.
    pub orders_pruned: u64,
    /// Events that were removed.
    pub events_pruned: u64,
    /// Orders whose review was late and that were rejected, escalated, or noted.
    pub late: u64,
    /// Orders that an auto-approve rule has judged.
    pub judged: u64,
}

/// Maintenance of a manager's database; run it in every process.
///
/// ```no_run
/// # async fn example(work: latchwork_work::WorkManager, locks: latchwork_lock::Locks) {
/// use latchwork_work::{Maintenance, MaintenanceSettings};
///
/// tokio::spawn(Maintenance::new(work, locks, MaintenanceSettings::default()).run());
/// # }
/// ```
pub struct Maintenance {
    manager: WorkManager,
    locks: Locks,
    settings: MaintenanceSettings,
    limits_from: String,
}

/// The key of the election.
const LEADER: &str = "work:maintenance";

impl Maintenance {
    /// Maintenance with an election by these locks, which all processes must share.
    pub fn new(manager: WorkManager, locks: Locks, settings: MaintenanceSettings) -> Self {
        Maintenance { manager, locks, settings, limits_from: String::new() }
    }

    /// Runs until it is dropped. Errors are logged and tried again.
    pub async fn run(mut self) {
        loop {
            let ttl = Duration::from_secs(15);
            let elected = self.locks.lock(LEADER).ttl(ttl).wait_forever().acquire().await;
            match elected {
                Ok(guard) => {
                    self.lead(&guard).await;
                    let _ = guard.release().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "no election for maintenance; trying again");
                    tokio::time::sleep(self.settings.every).await;
                }
            }
        }
    }

    /// Seals and makes rounds side by side: a round may take long, and listeners wait for the seals.
    async fn lead(&mut self, guard: &latchwork_lock::Guard) {
        let (manager, settings) = (self.manager.clone(), self.settings.clone());
        let sealing = async {
            while guard.is_held() {
                if let Err(error) = manager.seal().await {
                    tracing::warn!(%error, "sealing failed; trying again");
                }
                tokio::time::sleep(settings.seal_every).await;
                if guard.refresh().await.is_err() && !guard.is_held() {
                    return;
                }
            }
        };
        let rounds = async {
            while guard.is_held() {
                if let Err(error) = self.round().await {
                    tracing::warn!(%error, "maintenance failed; trying again");
                }
                tokio::time::sleep(settings.every).await;
            }
        };
        futures::future::join(sealing, rounds).await;
    }

    /// One round of everything but sealing. A step that fails keeps no other one from its turn.
    ///
    /// # Errors
    /// The store's, of the first step that failed; what was done stays done.
    pub async fn round(&mut self) -> Result<MaintenanceReport> {
        let (manager, settings) = (self.manager.clone(), self.settings.clone());
        let batch = i64::from(settings.batch.max(1));
        let batches = settings.prune_batches.max(1);
        let mut failed = None;
        let mut count = |done: Result<u64>| {
            done.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                0
            })
        };
        let mut report = MaintenanceReport {
            reclaimed: count(manager.reclaim_expired().await),
            late: count(manager.deal_with_late(batch).await),
            judged: count(manager.judge_all(batch).await),
            keys: count(manager.prune_keys(batch, batches).await),
            ..Default::default()
        };
        if let Some(after) = settings.dead_letter_after {
            report.dead_lettered = count(manager.dead_letter_failed(after, batch).await);
        }
        if let Some(after) = settings.stale_after {
            report.stale = count(manager.report_stale(after, batch).await);
        }
        if let Some(after) = settings.prune_orders_after {
            report.orders_pruned = count(manager.prune_orders(after, batch, batches).await);
        }
        if let Some(after) = settings.prune_events_after {
            report.events_pruned = count(manager.prune_events(after, batch, batches).await);
        }
        count(self.recount(batch).await.map(|()| 0));
        failed.map_or(Ok(report), Err)
    }

    /// Counts some limits anew, from where the last round stopped.
    async fn recount(&mut self, batch: i64) -> Result<()> {
        let from = self.limits_from.clone();
        let keys = read!(self.manager, session => { session.list_limits(&from, batch).await })?;
        for (key, _) in keys.iter().filter(|(_, is_due)| *is_due) {
            transact!(self.manager, session => { session.recount(key).await })?;
        }
        self.limits_from = match keys.last() {
            Some((last, _)) if keys.len() as i64 == batch => last.as_str().to_owned(),
            _ => String::new(),
        };
        Ok(())
    }
}

impl WorkManager {
    /// Takes back all items whose leases have run out: each waits for its retry, or fails at the last
    /// attempt.
    ///
    /// # Errors
    /// The store's; what was taken back stays so.
    pub async fn reclaim_expired(&self) -> Result<u64> {
        const BATCH: i64 = 100;
        let mut after = (i64::MIN, ItemId::from_uuid(Uuid::nil()));
        let mut total = 0;
        loop {
            let expired = read!(self, session => { session.expired(after, BATCH).await })?;
            let Some(last) = expired.last().copied() else { return Ok(total) };
            let ids: Vec<_> = expired.iter().map(|(_, item)| *item).collect();
            let moved = match self.reclaim_some(&ids).await {
                // One that cannot be read hides none that can.
                Err(error) if error.is_damage() => {
                    let mut moved = Vec::new();
                    for id in &ids {
                        match self.reclaim_some(&[*id]).await {
                            Err(error) if error.is_damage() => {
                                tracing::warn!(item = %id, %error, "an item cannot be taken back");
                            }
                            one => moved.extend(one?),
                        }
                    }
                    moved
                }
                moved => moved?,
            };
            after = last;
            total += moved.len() as u64;
            moved.iter().for_each(|item| crate::metrics::expired(&item.item_type));
            let orders: BTreeSet<_> = moved.iter().map(|item| item.order_id).collect();
            let types: BTreeSet<_> = moved.into_iter().map(|item| item.item_type).collect();
            self.follow_all(orders).await;
            self.wake_freed(types);
        }
    }

    async fn reclaim_some(&self, ids: &[ItemId]) -> Result<Vec<Item>> {
        transact!(self, session => {
            // Those that somebody is changing right now are for the next round.
            let items = session.lock_free_items(ids).await?;
            self.reclaim_items(session, items).await
        })
    }

    async fn dead_letter_failed(&self, after: Duration, batch: i64) -> Result<u64> {
        let client = WorkClient::new(self.clone(), Actor::system());
        let mut from = OrderId::from_uuid(Uuid::nil());
        let mut total = 0;
        loop {
            let found = self.orders_since(OrderState::Failed, after, from, batch).await?;
            for id in &found {
                let done = transact!(self, session => {
                    let before = session.now() - after;
                    let order = session.lock_order(*id).await?;
                    if order.state != OrderState::Failed || order.last_transitioned_at >= before {
                        return Ok(false);
                    }
                    let reason = "it failed, and nobody retried it in time";
                    client.bury(session, OrderEdit::new(order), reason).await?;
                    Ok(true)
                });
                match done {
                    Ok(done) => total += u64::from(done),
                    // One that cannot be moved hides none that can.
                    Err(error) => {
                        tracing::warn!(order = %id, %error, "an order could not be given up")
                    }
                }
            }
            match found.last() {
                Some(last) => from = *last,
                None => return Ok(total),
            }
        }
    }

    async fn orders_since(
        &self,
        state: OrderState,
        after: Duration,
        from: OrderId,
        batch: i64,
    ) -> Result<Vec<OrderId>> {
        let rows = read!(self, session => {
            let before = session.now().timestamp_micros().saturating_sub(span(after));
            let values = params![state.as_str(), before, from, batch];
            session.fetch(session.sql().orders_since, values).await
        })?;
        rows.into_iter().map(|mut row| row.parse()).collect()
    }

    async fn report_stale(&self, after: Duration, batch: i64) -> Result<u64> {
        let rows = transact!(self, session => {
            let now = session.now();
            let before = now.timestamp_micros().saturating_sub(span(after));
            session.fetch(session.sql().stale_orders, params![before, batch, now]).await
        })?;
        let count = rows.len() as u64;
        for mut row in rows {
            let order: OrderId = row.parse()?;
            tracing::warn!(%order, "an order is not over long after it was proposed");
        }
        Ok(count)
    }

    /// Removes orders that are over, their items first and some at a time: however many items an order has,
    /// no transaction removes many. What a crash interrupts is gone on with.
    async fn prune_orders(&self, after: Duration, batch: i64, batches: u32) -> Result<u64> {
        let mut total = 0;
        for state in OrderState::TERMINAL {
            for _ in 0..batches {
                let from = OrderId::from_uuid(Uuid::nil());
                let orders = self.orders_since(state, after, from, batch).await?;
                if orders.is_empty() {
                    break;
                }
                while transact!(self, session => { session.delete_some_items(&orders).await })? {}
                total += transact!(self, session => { session.delete_orders(&orders).await })?;
                if (orders.len() as i64) < batch {
                    break;
                }
            }
        }
        Ok(total)
    }

    /// Removes the oldest sealed events, as far as all of them are old enough.
    async fn prune_events(&self, after: Duration, batch: i64, batches: u32) -> Result<u64> {
        let mut total = 0;
        for _ in 0..batches {
            let pruned = transact!(self, session => {
                session.lock_sealer().await?;
                let before = session.now() - after;
                let oldest = session.oldest_events(batch).await?;
                let old = oldest.into_iter().take_while(|(_, at)| *at < before).last();
                match old {
                    Some((position, _)) => session.prune_events(position).await,
                    None => Ok(0),
                }
            })?;
            total += pruned;
            if pruned < batch.unsigned_abs() {
                break;
            }
        }
        Ok(total)
    }

    async fn prune_keys(&self, batch: i64, batches: u32) -> Result<u64> {
        let mut total = 0;
        for _ in 0..batches {
            let pruned = transact!(self, session => { session.prune_keys(batch).await })?;
            total += pruned;
            if pruned < batch.unsigned_abs() {
                break;
            }
        }
        Ok(total)
    }
}
