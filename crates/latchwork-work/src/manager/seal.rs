//! Sealing the audit trail, and verifying it (W10).

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{WorkManager, read, transact};
use crate::audit::{Checkpoint, ExportedEvent, Finding, Verifier};
use crate::store::EventRow;
use crate::{ErrorKind, EventHash, EventType, OrderId, Result};

/// So many events are sealed by one transaction.
const BATCH: i64 = 1_000;

/// What an item does when it does not go on.
const MOVED_BACK: [EventType; 6] = [
    EventType::Failed,
    EventType::LeaseExpired,
    EventType::Requeued,
    EventType::Released,
    EventType::Snoozed,
    EventType::DeadLettered,
];

/// What a sealing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sealed {
    /// How many events it sealed.
    pub events: u64,
    /// The position of the last sealed event.
    pub position: u64,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verification {
    /// How many sealed events were checked.
    pub events: u64,
    /// The position of the last one.
    pub position: u64,
    /// What is wrong; nothing for a trail that verifies.
    pub findings: Vec<Finding>,
    /// How many events have no seal yet.
    pub unsealed: u64,
    /// When the oldest of them was written.
    pub unsealed_since: Option<DateTime<Utc>>,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_intact(&self) -> bool {
        self.findings.is_empty()
    }
}

impl WorkManager {
    /// Seals all events that are committed by now. [`Maintenance`](super::Maintenance) does it all the
    /// time; two at once are serialised by one row.
    ///
    /// Before events are sealed their orders are looked at: one that lags behind its items, because the
    /// process that should have moved it died, is moved.
    ///
    /// # Errors
    /// The store's. What is sealed stays sealed.
    pub async fn seal(&self) -> Result<Sealed> {
        let mut total = Sealed::default();
        loop {
            let sealed = self.seal_batch().await?;
            total.events += sealed.events;
            crate::metrics::sealed(sealed.events);
            total.position = sealed.position;
            if sealed.events == 0 {
                return Ok(total);
            }
            self.inner.wake.notify_sealed();
        }
    }

    async fn seal_batch(&self) -> Result<Sealed> {
        let (mut waiting, now) = read!(self, session => {
            Ok((session.unsealed(BATCH).await?, session.now()))
        })?;
        let oldest = waiting.first().map_or(now, |row| row.event.created_at);
        crate::metrics::sealing_lag((now - oldest).to_std().unwrap_or_default());
        waiting.retain(|row| row.event.item_id.is_some());
        let mut orders: BTreeMap<OrderId, bool> = BTreeMap::new();
        for row in &waiting {
            // A cheap look does not see that an item failed or lost its agent while others are open.
            let moved_back = MOVED_BACK.iter().any(|event| event.as_str() == row.event.event);
            *orders.entry(row.event.order_id).or_default() |= moved_back;
        }
        // Orders that could not be moved now, since something else has them: their events wait.
        let mut lagging = BTreeSet::new();
        for (order, moved_back) in orders {
            let Some(state) = self.state_to_follow(order, moved_back).await? else { continue };
            if let Err(error) = self.follow(order).await {
                match error.kind() {
                    // Its rows may be pruned, or cannot be read; its trail is sealed all the same.
                    ErrorKind::OrderNotFound { .. } => {}
                    _ if error.is_damage() => {
                        tracing::warn!(%order, %error, "an order cannot be read, and does not follow its items");
                    }
                    _ => {
                        tracing::warn!(%order, %state, %error, "an order lags behind its items; its events are sealed later");
                        lagging.insert(order);
                    }
                }
            }
        }
        let looked_at: BTreeSet<i64> = waiting.iter().map(|row| row.seq).collect();
        transact!(self, session => {
            let mut position = session.lock_sealer().await?;
            let mut rows = session.unsealed(BATCH).await?;
            // What was committed after the look waits for the next one, since its order may lag behind, and
            // so does what comes after it in the same order.
            let mut held = lagging.clone();
            rows.retain(|row| {
                let (order, looked_at) = (row.event.order_id, looked_at.contains(&row.seq));
                if row.event.item_id.is_some() && !looked_at {
                    held.insert(order);
                }
                !held.contains(&order)
            });
            let orders: BTreeSet<_> = rows.iter().map(|row| row.event.order_id).collect();
            let orders: Vec<_> = orders.into_iter().collect();
            let mut chains = session.chains(&orders).await?;
            let mut sealed = Vec::with_capacity(rows.len());
            for row in rows {
                position += 1;
                let chain = chains.entry(row.event.order_id).or_insert(EventHash::FIRST);
                let seal = row.event.seal(*chain, position);
                *chain = seal.hash;
                sealed.push((row, seal));
            }
            let events = session.put_seals(&sealed).await?;
            if events != sealed.len() as u64 {
                return Err(ErrorKind::Conflict { entity: "event" }.into());
            }
            Ok(Sealed { events, position })
        })
    }

    /// Checks the whole trail: gaps, order, and every hash.
    ///
    /// # Errors
    /// The store's. What is wrong with the trail is in the answer.
    pub async fn verify(&self) -> Result<Verification> {
        // Before the events: what is sealed meanwhile may be missing here, and nothing else.
        let (checkpoints, sealed) = read!(self, session => {
            Ok((session.checkpoints().await?, session.sealed_position().await?))
        })?;
        let first = checkpoints.iter().map(|at| at.seal.position).max().unwrap_or(0);
        let mut verifier = Verifier::new(first + 1, checkpoints);
        let (mut position, mut events) = (first, 0);
        loop {
            let rows = read!(self, session => { session.events_after(position, BATCH).await })?;
            let Some(last) = rows.last().and_then(|row| row.seal) else { break };
            for EventRow { event, seal, .. } in &rows {
                if let Some(seal) = seal {
                    verifier.event(event, *seal);
                    events += 1;
                }
            }
            position = last.position;
        }
        let (unsealed, unsealed_since) = read!(self, session => { session.unsealed_tail().await })?;
        let mut findings = verifier.finish();
        if position < sealed {
            findings.push(Finding::Gap { from: position + 1, to: sealed });
        }
        Ok(Verification { events, position, findings, unsealed, unsealed_since })
    }

    /// How many events are not sealed yet, and the age of the oldest of them.
    ///
    /// # Errors
    /// The store's.
    pub async fn sealing_lag(&self) -> Result<(u64, std::time::Duration)> {
        read!(self, session => {
            let (unsealed, since) = session.unsealed_tail().await?;
            let age = since.map(|since| session.now() - since);
            Ok((unsealed, age.and_then(|age| age.to_std().ok()).unwrap_or_default()))
        })
    }

    /// Sealed events behind a position, as lines that `docs/verify.py` reads.
    ///
    /// # Errors
    /// The store's.
    pub async fn export(&self, after: u64, limit: u32) -> Result<Vec<ExportedEvent>> {
        let rows = read!(self, session => { session.events_after(after, limit.into()).await })?;
        let line = |row: EventRow| Some(ExportedEvent { event: row.event, seal: row.seal? });
        Ok(rows.into_iter().filter_map(line).collect())
    }

    /// Where the chains of orders stood whose events were pruned.
    ///
    /// # Errors
    /// The store's.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        read!(self, session => { session.checkpoints().await })
    }
}
