//! How the waiters of this process learn of changes that other processes made: by reading.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _};

use super::record::ALIVE;
use super::store::Store;
use super::{error, schema};
use crate::coordination::deferred_release::release_with_retry;
use crate::coordination::polling::StatusSource;
use crate::coordination::waiters::{WaiterRegistry, WaiterStatus};
use crate::rules::Id;
use crate::{Clock, Key, Moment, Result};

const DURING: &str = "reading the queue positions";

/// The longest pause between two reads: a grant must be seen well within its claim window.
const LONGEST: Duration = Duration::from_millis(500);

/// The shortest one.
const SHORTEST: Duration = Duration::from_millis(5);

/// Reads the statuses of the waiters of this process.
pub(super) struct Notifier {
    store: Arc<Store>,
    last: LastRead,
}

impl Notifier {
    pub(super) fn new(store: Arc<Store>) -> Self {
        let changed_at = store.clock.now();
        Notifier { store, last: LastRead { positions: Vec::new(), changed_at } }
    }

    async fn heartbeat(&self) -> sqlx::Result<()> {
        let now = self.store.clock.now();
        if self.store.heartbeat.is_due(now) {
            let beat = schema::beat(self.store.client, ALIVE.as_micros());
            self.store.execute(sqlx::raw_sql(AssertSqlSafe(beat))).await?;
            self.store.heartbeat.sent(now);
        }
        Ok(())
    }

    async fn statuses(&self) -> sqlx::Result<(Vec<WaiterStatus<Vec<u8>>>, Vec<Position>)> {
        self.heartbeat().await?;
        let sent_at = self.store.clock.now();
        let rows = self.store.read(schema::waiter_statuses(self.store.client)).await?;
        if let Some(row) = rows.first() {
            self.store.observe_time(row.try_get_unchecked(5)?, sent_at);
        }
        let (mut statuses, mut positions) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            let id: Vec<u8> = row.try_get_unchecked(0)?;
            let ahead: Option<i64> = row.try_get_unchecked(3)?;
            let left: i64 = row.try_get_unchecked(4)?;
            let id = Id::from_be_bytes(id.try_into().unwrap_or_default());
            let ahead = ahead.map_or(0, |ahead| u32::try_from(ahead.max(0)).unwrap_or(u32::MAX));
            positions.push((id, ahead));
            statuses.push(WaiterStatus {
                id,
                key: row.try_get_unchecked(1)?,
                granted: row.try_get_unchecked::<i64, _>(2)? != 0,
                left: Duration::from_micros(left.max(0).unsigned_abs()),
            });
        }
        Ok((statuses, positions))
    }
}

impl StatusSource for Notifier {
    type Key = Vec<u8>;

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.store.waiters
    }

    fn clock(&self) -> &dyn Clock {
        &*self.store.clock
    }

    fn pause(&self, interval: Duration) -> Duration {
        self.last.pause(interval, self.store.clock.now())
    }

    async fn read(&mut self) -> Result<Vec<WaiterStatus<Vec<u8>>>> {
        let (statuses, positions) = self.statuses().await.map_err(|e| error::driver(DURING, e))?;
        self.last.update(positions, self.store.clock.now());
        Ok(statuses)
    }

    fn release_unclaimed(&self, key: Key, id: Id) -> impl Future<Output = ()> + Send + 'static {
        let store = self.store.clone();
        async move { release_with_retry(&*store, &key, id).await }
    }
}

/// The result of the last read, which decides how soon the next one is worth while.
struct LastRead {
    positions: Vec<Position>,
    changed_at: Moment,
}

/// A waiter, and how many may be ahead of it: some of them may have left the queue.
type Position = (Id, u32);

impl LastRead {
    fn update(&mut self, positions: Vec<Position>, now: Moment) {
        if positions != self.positions {
            self.changed_at = now;
        }
        self.positions = positions;
    }

    /// A quarter of the time for which nothing has changed, so that short holds are followed quickly
    /// and long ones cost little; at most half of the interval that a waiter asked for; and longer
    /// the more waiters are ahead of all of ours.
    fn pause(&self, interval: Duration, now: Moment) -> Duration {
        let most = (interval / 2).clamp(SHORTEST, LONGEST);
        let quiet = (now.since(self.changed_at) / 4).clamp(SHORTEST, most);
        let ahead = self.positions.iter().map(|(_, ahead)| *ahead).min().unwrap_or(0);
        // Within a process a key is handed over much sooner than the next read.
        (quiet + (quiet / 4).saturating_mul(ahead)).min(LONGEST)
    }
}
