//! One edit's transaction, on a connection that is given back clean or not at all.

use futures::TryStreamExt;
use latchwork_sql::mysql::{JobConnection, JobConnections, in_time, is_broken};
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor};

use super::schema;

/// The driver does not know of this transaction, since it begins and ends inside of longer
/// messages. So a transaction that is dropped in the middle closes its connection, and the server undoes it.
pub(super) struct Transaction {
    connection: JobConnection,
}

/// What the server has answered to a whole transaction.
#[derive(Default)]
pub(super) struct TransactionReply {
    pub(super) rows: Vec<MySqlRow>,
    /// One for each statement.
    done: Vec<MySqlQueryResult>,
}

impl TransactionReply {
    async fn add(mut self, part: Either<MySqlQueryResult, MySqlRow>) -> sqlx::Result<Self> {
        match part {
            Either::Left(done) => self.done.push(done),
            Either::Right(row) => self.rows.push(row),
        }
        Ok(self)
    }

    /// Whether this statement has changed something.
    pub(super) fn has_changed(&self, statement: usize) -> bool {
        self.done.get(statement).is_some_and(|done| done.rows_affected() > 0)
    }

    /// The insert id that this statement has told.
    pub(super) fn insert_id(&self, statement: usize) -> Option<u64> {
        self.done.get(statement).map(MySqlQueryResult::last_insert_id).filter(|id| *id > 0)
    }
}

impl Transaction {
    /// Says the [first words](schema::begin) and hears how the key stands.
    pub(super) async fn begin(
        connections: &JobConnections,
        name: &[u8],
    ) -> sqlx::Result<(Self, Vec<MySqlRow>)> {
        let mut tx = Transaction { connection: JobConnection::open(connections).await? };
        match tx.send(schema::begin(name)).await {
            Ok(rows) => Ok((tx, rows)),
            Err(error) => Err(tx.fail(error).await),
        }
    }

    /// All of one in one message.
    pub(super) async fn whole(
        connections: &JobConnections,
        words: String,
    ) -> sqlx::Result<TransactionReply> {
        let mut tx = Transaction { connection: JobConnection::open(connections).await? };
        let words = sqlx::raw_sql(AssertSqlSafe(words));
        let said = in_time(
            tx.connection
                .fetch_many(words)
                .try_fold(TransactionReply::default(), TransactionReply::add),
        )
        .await;
        match &said {
            Ok(_) => tx.connection.mark_answered(&said),
            // The server has answered with an error: the session is still good for others.
            Err(error @ sqlx::Error::Database(_)) if !is_broken(error) => {
                let undone = tx.send(schema::UNDO.to_owned()).await;
                if undone.is_ok() {
                    tx.connection.mark_answered(&undone);
                }
            }
            Err(_) => {}
        }
        said
    }

    /// All of one in one message, whose words set and restore what [`begin`](schema::begin) does;
    /// the rows that it answers.
    pub(super) async fn in_one(
        connections: &JobConnections,
        words: String,
    ) -> sqlx::Result<Vec<MySqlRow>> {
        let mut tx = Transaction { connection: JobConnection::open(connections).await? };
        match tx.send(words).await {
            Ok(rows) => {
                tx.connection.mark_answered(&Ok(()));
                Ok(rows)
            }
            Err(error) => Err(tx.fail(error).await),
        }
    }

    /// Says the last statements and commits, in one message.
    pub(super) async fn commit(mut self, last: String) -> sqlx::Result<()> {
        match self.send(last + schema::COMMIT).await {
            Ok(rows) => {
                self.connection.mark_answered(&Ok(rows));
                Ok(())
            }
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Undoes it.
    pub(super) async fn roll_back(mut self) -> sqlx::Result<()> {
        let undone = self.send(schema::ROLLBACK.to_owned()).await.map(drop);
        if undone.is_ok() {
            self.connection.mark_answered(&undone);
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

    async fn send(&mut self, words: String) -> sqlx::Result<Vec<MySqlRow>> {
        in_time(self.connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(words)))).await
    }
}
