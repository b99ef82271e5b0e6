use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::{Fence, StaleFence};

/// A [`FenceGate`](crate::FenceGate) inside the user's own transaction (L20).
///
/// The gate's row is locked until that transaction ends: a write that passed cannot be overtaken
/// by a newer holder before it commits. The table `latchwork_fence_gate` comes with the
/// [provider](crate::PostgresLockProvider)'s tables; in another database, make it with
/// [`SCHEMA`](Self::SCHEMA).
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, fence: latchwork_lock::Fence) -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_lock::PostgresFenceGate;
///
/// let mut tx = pool.begin().await?;
/// PostgresFenceGate::check(&mut tx, "order:1", fence).await??;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 1").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PostgresFenceGate;

impl PostgresFenceGate {
    /// The table, where the provider's own are not.
    pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    key text COLLATE \"C\" PRIMARY KEY,
    fence bigint NOT NULL
)";

    /// The statement of [`check`](Self::check) and [`advance`](Self::advance) for other drivers:
    /// `$1` is the key and `$2` the fence. A row comes back when the write may go on; when none
    /// does, roll back.
    pub const CHECK: &str = "INSERT INTO latchwork_fence_gate (key, fence) VALUES ($1, $2) \
         ON CONFLICT (key) DO UPDATE SET fence = excluded.fence \
         WHERE latchwork_fence_gate.fence <= excluded.fence RETURNING fence";

    const NEWEST: &str = "SELECT fence FROM latchwork_fence_gate WHERE key = $1";

    /// Lets a fence pass that is not older than the newest seen, and remembers it with the
    /// transaction.
    ///
    /// Cancel safe as far as the transaction is: roll it back.
    ///
    /// # Errors
    /// The driver's; inside, [`StaleFence`] for an older fence: roll back.
    pub async fn check(
        connection: &mut PgConnection,
        key: &str,
        fence: Fence,
    ) -> sqlx::Result<Result<(), StaleFence>> {
        let number = super::record::number(fence);
        let passed = sqlx::query(Self::CHECK).bind(key).bind(number);
        if passed.fetch_optional(&mut *connection).await?.is_some() {
            return Ok(Ok(()));
        }
        let row = sqlx::query(Self::NEWEST).bind(key).fetch_one(&mut *connection).await?;
        let newest = super::record::fence_of(row.try_get(0)?);
        Ok(Err(StaleFence { key: key.to_owned(), fence, newest }))
    }

    /// The same, said on acquiring, in a transaction of its own: older holders are refused from
    /// now on, and not only from the first write on.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub async fn advance(
        connection: &mut PgConnection,
        key: &str,
        fence: Fence,
    ) -> sqlx::Result<Result<(), StaleFence>> {
        Self::check(connection, key, fence).await
    }
}
