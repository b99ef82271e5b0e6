//! One edit's transaction, on a connection that is given back clean or not at all.

use latchwork_sql::mysql::{Line, in_time, is_broken};
use sqlx::mysql::{MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, Executor};

use super::schema;

/// The driver does not know of this transaction, since it begins and ends inside of longer
/// messages. So whoever drops one in the middle closes the connection, and the server undoes it.
pub(super) struct Transaction {
    line: Line,
}

impl Transaction {
    /// Says the [first words](schema::begin) and hears how the key stands.
    pub(super) async fn begin(
        pool: &MySqlPool,
        name: &[u8],
    ) -> sqlx::Result<(Self, Vec<MySqlRow>)> {
        let mut tx = Transaction { line: Line::open(pool).await? };
        match tx.say(schema::begin(name)).await {
            Ok(rows) => Ok((tx, rows)),
            Err(error) => Err(tx.fail(error).await),
        }
    }

    /// Says the last statements and commits, in one message.
    pub(super) async fn commit(mut self, last: String) -> sqlx::Result<()> {
        match self.say(last + schema::COMMIT).await {
            Ok(rows) => {
                self.line.heard(&Ok(rows));
                Ok(())
            }
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Undoes it.
    pub(super) async fn roll_back(mut self) -> sqlx::Result<()> {
        let undone = self.say(schema::ROLLBACK.to_owned()).await.map(drop);
        if undone.is_ok() {
            self.line.heard(&undone);
        }
        undone
    }

    /// The server has answered with an error: the session is still good for others.
    async fn fail(self, error: sqlx::Error) -> sqlx::Error {
        if matches!(error, sqlx::Error::Database(_)) && !is_broken(&error) {
            let _ = self.roll_back().await;
        }
        error
    }

    async fn say(&mut self, words: String) -> sqlx::Result<Vec<MySqlRow>> {
        in_time(self.line.fetch_all(sqlx::raw_sql(AssertSqlSafe(words)))).await
    }
}
