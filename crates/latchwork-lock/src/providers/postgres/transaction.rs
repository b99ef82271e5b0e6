use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{AssertSqlSafe, Encode, Row, Type};

use super::record::number_of;

/// Locks that live and die with the user's own transaction.
///
/// For work that is one transaction on one database there is nothing to lease: the database frees
/// the lock with the commit, the rollback or the death of the connection. They exclude only each
/// other, not the leases of a [provider](crate::PostgresLockProvider).
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> sqlx::Result<()> {
/// use latchwork_lock::TransactionLock;
///
/// let mut tx = pool.begin().await?;
/// TransactionLock::lock(&mut tx, "payment:7").await?;
/// // … read, decide, write …
/// tx.commit().await
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TransactionLock;

impl TransactionLock {
    /// Takes the advisory lock of this name, and waits for it.
    ///
    /// It waits as long as the connection's `lock_timeout` lets it. Cancel safe as far as the
    /// transaction is: roll it back.
    ///
    /// # Errors
    /// The driver's.
    pub async fn lock(transaction: &mut PgConnection, name: &str) -> sqlx::Result<()> {
        let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(Self::number(name));
        lock.execute(transaction).await.map(drop)
    }

    /// The same without waiting; false when somebody has it.
    ///
    /// # Errors
    /// The driver's.
    pub async fn try_lock(transaction: &mut PgConnection, name: &str) -> sqlx::Result<bool> {
        let lock = sqlx::query("SELECT pg_try_advisory_xact_lock($1)").bind(Self::number(name));
        lock.fetch_one(transaction).await?.try_get(0)
    }

    /// Locks one row of the user's own table until the transaction ends, and waits for it; false
    /// when there is no such row.
    ///
    /// The table may be named with its schema (`shop.orders`).
    ///
    /// # Errors
    /// The driver's.
    pub async fn lock_row<'q, T>(
        transaction: &mut PgConnection,
        table: &str,
        column: &str,
        value: T,
    ) -> sqlx::Result<bool>
    where
        T: Encode<'q, Postgres> + Type<Postgres> + 'q,
    {
        let table: Vec<String> = table.split('.').map(quoted).collect();
        let sql =
            format!("SELECT 1 FROM {} WHERE {} = $1 FOR UPDATE", table.join("."), quoted(column));
        let found = sqlx::query(AssertSqlSafe(sql)).bind(value);
        Ok(found.fetch_optional(transaction).await?.is_some())
    }

    /// The number of a name's advisory lock: the first 64 bits of its SHA-256, for those who take
    /// it with another driver. Shorter hashes collide among a few thousand names.
    pub fn number(name: &str) -> i64 {
        number_of("", name)
    }
}

/// An identifier that means itself.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
