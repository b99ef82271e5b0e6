//! One time line for all processes that use a file.
//!
//! The first process of a boot writes down where the boot clock stands at the wall time. From then on
//! every process counts from there by the boot clock, which neither an administrator nor a time server
//! sets: a lease ends when its time is over, whatever happens to the wall clock. After a reboot the
//! wall clock is asked once more, and the line never goes back behind what it has reached.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::sqlite::boot::ClockId;
use sqlx::SqliteConnection;

use super::error;
use crate::store::micros_to_time;
use crate::{ErrorKind, Result};

/// Where the time line of this boot begins.
#[derive(Clone)]
pub(super) struct TimeLine {
    clock: Arc<dyn Clock>,
    wall: i64,
    boot: i64,
}

const ANCHOR: &str = "SELECT wall, boot FROM latchwork_work_clock WHERE clock = $1";

/// The anchors of other clocks of this boot: a time namespace has a boot clock of its own.
const OTHERS: &str = "SELECT count(*) FROM latchwork_work_clock \
    WHERE clock <> $1 AND (clock >> 32) = ($1 >> 32)";

/// A new boot begins where the wall clock stands, and never before anything that is stored.
const INSERT: &str = "INSERT INTO latchwork_work_clock (clock, wall, boot) \
    SELECT $1, max($2, coalesce((SELECT max(created_at) FROM latchwork_work_event), 0)), $3 \
    WHERE true ON CONFLICT (clock) DO NOTHING";

impl TimeLine {
    /// Finds the line of this boot, or begins it. Inside a write transaction.
    pub(super) async fn open(
        clock: Arc<dyn Clock>,
        connection: &mut SqliteConnection,
    ) -> Result<Self> {
        let id = SystemClock::boot_clock()
            .map_or(ClockId::UNKNOWN, |boot| ClockId::new(&boot.boot_id, boot.offset_ns));
        let others: i64 = sqlx::query_scalar(OTHERS)
            .bind(id.0)
            .fetch_one(&mut *connection)
            .await
            .map_err(error::driver)?;
        if others > 0 {
            let message = "it was written in another time namespace, whose boot clock is not that \
                of this process; let all processes that use the file run in one time namespace";
            let (store, message) = (error::NAME, message.to_owned());
            return Err(ErrorKind::StoreBackend { store, message, source: None }.into());
        }
        let boot = i64::try_from(clock.now().as_nanos() / 1_000).unwrap_or(i64::MAX);
        sqlx::query(INSERT)
            .bind(id.0)
            .bind(clock.wall().timestamp_micros())
            .bind(boot)
            .execute(&mut *connection)
            .await
            .map_err(error::driver)?;
        let (wall, boot) =
            sqlx::query_as(ANCHOR).bind(id.0).fetch_one(connection).await.map_err(error::driver)?;
        Ok(TimeLine { clock, wall, boot })
    }

    pub(super) fn now(&self) -> DateTime<Utc> {
        let boot = i64::try_from(self.clock.now().as_nanos() / 1_000).unwrap_or(i64::MAX);
        micros_to_time(self.wall.saturating_add(boot - self.boot)).unwrap_or_default()
    }
}
