//! One edit's transaction, on a connection that is given back clean or not at all.

use latchwork_sql::mysql::{acquire, is_broken};
use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Executor};

use super::schema;

/// The driver does not know of this transaction, since it begins and ends inside of longer
/// messages. So whoever drops one in the middle closes the connection, and the server undoes it.
pub(super) struct Transaction {
    connection: Option<PoolConnection<MySql>>,
}

impl Transaction {
    /// Says the [first words](schema::begin) and hears how the key stands.
    pub(super) async fn begin(
        pool: &MySqlPool,
        name: &[u8],
    ) -> sqlx::Result<(Self, Vec<MySqlRow>)> {
        let mut tx = Transaction { connection: Some(acquire(pool).await?) };
        match tx.say(schema::begin(name)).await {
            Ok(rows) => Ok((tx, rows)),
            Err(error) => Err(tx.fail(error).await),
        }
    }

    /// Says the last statements and commits, in one message.
    pub(super) async fn commit(mut self, last: String) -> sqlx::Result<()> {
        match self.say(last + schema::COMMIT).await {
            Ok(_) => {
                drop(self.connection.take()); // back into the pool
                Ok(())
            }
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Undoes it.
    pub(super) async fn roll_back(mut self) -> sqlx::Result<()> {
        self.say(schema::ROLLBACK.to_owned()).await?;
        drop(self.connection.take()); // back into the pool
        Ok(())
    }

    /// The server has answered with an error: the session is still good for others.
    async fn fail(self, error: sqlx::Error) -> sqlx::Error {
        if error.as_database_error().is_some() && !is_broken(&error) {
            let _ = self.roll_back().await;
        }
        error
    }

    async fn say(&mut self, words: String) -> sqlx::Result<Vec<MySqlRow>> {
        let connection = self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)?;
        connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(words))).await
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.close_on_drop();
        }
    }
}
