use latchwork_sql::sqlite::{explain, explain_direct};
use rusqlite::Connection;
use sqlx::SqliteConnection;

use super::error::{self, Failure, NAME};
use super::record::number;
use crate::{Error, Fence, Result, StaleFence};

/// Refuses late writes inside the user's own SQLite transaction (L20).
///
/// Call it first in the transaction that writes, with the fence of the lease under which the write
/// is made; on a refusal roll back. Begin with `BEGIN IMMEDIATE`. The table
/// `latchwork_fence_gate` is among those of
/// [`SqliteLockProvider`](crate::SqliteLockProvider); where the data is in another file, make it
/// there with [`SCHEMA`](Self::SCHEMA). For exclusive leases only.
///
/// The same for other drivers is one statement, [`ADVANCE`](Self::ADVANCE): a write may go on if it
/// changed one row.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_lock::{Fence, SqliteFenceGate};
/// # use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
/// # let dir = tempfile::tempdir()?;
/// # let options = SqliteConnectOptions::new().filename(dir.path().join("x.db")).create_if_missing(true);
/// # let pool = SqlitePool::connect_with(options).await?;
/// sqlx::raw_sql(SqliteFenceGate::SCHEMA).execute(&pool).await?;
///
/// let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
/// SqliteFenceGate::check(&mut transaction, "order:1", Fence::new(7)).await??;
/// // … the write …
/// transaction.commit().await?;
///
/// let mut late = pool.begin_with("BEGIN IMMEDIATE").await?;
/// assert!(SqliteFenceGate::check(&mut late, "order:1", Fence::new(6)).await?.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SqliteFenceGate;

impl SqliteFenceGate {
    /// The table, if it is not there.
    pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS latchwork_fence_gate (\
         key TEXT PRIMARY KEY, fence INTEGER NOT NULL) WITHOUT ROWID";

    /// Lets the fence (2) of a key (1) pass, and remembers it: one row is changed, or none when it
    /// is older than one already seen.
    pub const ADVANCE: &str = "INSERT INTO latchwork_fence_gate (key, fence) VALUES (?1, ?2) \
         ON CONFLICT (key) DO UPDATE SET fence = excluded.fence \
         WHERE excluded.fence >= latchwork_fence_gate.fence";

    /// The newest fence of a key (1).
    pub const NEWEST: &str = "SELECT fence FROM latchwork_fence_gate WHERE key = ?1";

    /// Lets a fence pass that is not older than the newest seen, and remembers it.
    ///
    /// Cancel safe as far as the transaction is: it is rolled back.
    ///
    /// # Errors
    /// The outer one when the database fails, the inner one for an older fence.
    pub async fn check(
        transaction: &mut SqliteConnection,
        key: &str,
        fence: Fence,
    ) -> Result<Result<(), StaleFence>> {
        const DURING: &str = "checking a fence";
        let wrong = |e| error::of(DURING, &explain(e));
        if i64::try_from(fence.get()).is_err() {
            return Err(Error::invalid_argument(
                "fence",
                format!("{fence} is over 2^63, and {NAME} has signed numbers"),
            ));
        }
        let query = sqlx::query(Self::ADVANCE).bind(key).bind(number(fence));
        if query.execute(&mut *transaction).await.map_err(wrong)?.rows_affected() == 1 {
            return Ok(Ok(()));
        }
        let newest: i64 = sqlx::query_scalar(Self::NEWEST)
            .bind(key)
            .fetch_one(transaction)
            .await
            .map_err(wrong)?;
        let newest = Fence::new(newest.unsigned_abs());
        Ok(Err(StaleFence { key: key.to_owned(), fence, newest }))
    }

    /// The same, said on acquiring, so that older holders are refused from now on and not only
    /// from the first write on.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub async fn advance(
        transaction: &mut SqliteConnection,
        key: &str,
        fence: Fence,
    ) -> Result<Result<(), StaleFence>> {
        Self::check(transaction, key, fence).await
    }
}

/// Lets a fence pass the gate, on the writer's connection and in a transaction of its own.
pub(super) fn pass(
    on: &Connection,
    name: &str,
    fence: Fence,
) -> Result<Result<(), StaleFence>, Failure> {
    let advance = on.prepare_cached(SqliteFenceGate::ADVANCE);
    let changed = advance.and_then(|mut it| it.execute((name, number(fence))));
    if changed.map_err(explain_direct)? == 1 {
        return Ok(Ok(()));
    }
    let newest = on.prepare_cached(SqliteFenceGate::NEWEST);
    let newest: i64 = newest
        .and_then(|mut it| it.query_row((name,), |row| row.get(0)))
        .map_err(explain_direct)?;
    Ok(Err(StaleFence { key: name.to_owned(), fence, newest: Fence::new(newest.unsigned_abs()) }))
}
