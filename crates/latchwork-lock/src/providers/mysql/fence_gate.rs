use sqlx::mysql::MySqlConnection;

use crate::{Fence, StaleFence};

/// A [`FenceGate`](crate::FenceGate) inside the user's own transaction (L20).
///
/// The gate's row is locked until that transaction ends: a write that passed cannot be overtaken
/// by a newer holder before it commits. The table `latchwork_fence_gate` comes with the
/// [provider](crate::MySqlLockProvider)'s tables; in another database, make it with
/// [`SCHEMA`](Self::SCHEMA).
///
/// ```no_run
/// # async fn example(pool: sqlx::MySqlPool, fence: latchwork_lock::Fence) -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_lock::MySqlFenceGate;
///
/// let mut tx = pool.begin().await?;
/// MySqlFenceGate::check(&mut tx, "order:1", fence).await??;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 1").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MySqlFenceGate;

impl MySqlFenceGate {
    /// The table, where the provider's own are not. Names are bytes: no two keys are taken for one
    /// because they differ in case, accents or spaces at the end.
    pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    name VARBINARY(640) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL
) ENGINE=InnoDB";

    /// The statement of [`check`](Self::check) and [`advance`](Self::advance) for other drivers: the
    /// values are the key, the fence, and the fence once more. The insert id that it answers (or
    /// `SELECT LAST_INSERT_ID()` after it) is the newest fence; when that is not the one that was
    /// given, roll back.
    pub const CHECK: &str = "INSERT INTO latchwork_fence_gate (name, fence) \
         VALUES (?, LAST_INSERT_ID(?)) \
         ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence, ?))";

    /// Lets a fence pass that is not older than the newest seen, and remembers it with the
    /// transaction.
    ///
    /// Cancel safe as far as the transaction is: roll it back.
    ///
    /// # Errors
    /// The driver's, a deadlock (1213) among them, after which the whole transaction may be tried
    /// again; inside, [`StaleFence`] for an older fence: roll back.
    pub async fn check(
        connection: &mut MySqlConnection,
        key: &str,
        fence: Fence,
    ) -> sqlx::Result<Result<(), StaleFence>> {
        let number = super::record::number(fence);
        let check = sqlx::query(Self::CHECK).bind(key.as_bytes()).bind(number).bind(number);
        let newest = Fence::new(check.execute(&mut *connection).await?.last_insert_id());
        if newest == fence {
            return Ok(Ok(()));
        }
        Ok(Err(StaleFence { key: key.to_owned(), fence, newest }))
    }

    /// The same, said on acquiring, in a transaction of its own: older holders are refused from
    /// now on, and not only from the first write on.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub async fn advance(
        connection: &mut MySqlConnection,
        key: &str,
        fence: Fence,
    ) -> sqlx::Result<Result<(), StaleFence>> {
        Self::check(connection, key, fence).await
    }
}
