//! Rows, read and written: one statement at a time, each a transaction of its own.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use latchwork_sql::postgres::{
    JobConnection, in_time, is_broken, is_mixed_up, is_unheard, separate,
};
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Connection, Row};

use super::error;
use super::schema::{LOAD, PUT, PUT_WITH_BODY};
use crate::store::{ContextHead, StoredContext};
use crate::stores::columns::{COUNT, Columns, stored, time};
use crate::{Result, TransitionId};

/// The table.
pub(super) struct Rows {
    pub(super) pool: PgPool,
    /// Whether a connection keeps its session; not so behind pgbouncer in transaction mode, where
    /// prepared statements must not outlive a transaction.
    own_sessions: AtomicBool,
}

/// Whether a statement may be said once more on another connection when one was found broken, and
/// perhaps had heard it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Again {
    Yes,
    No,
}

/// A statement: text and values.
pub(super) struct Statement {
    pub(super) during: &'static str,
    pub(super) sql: Cow<'static, str>,
    pub(super) values: PgArguments,
    pub(super) again: Again,
}

impl Rows {
    pub(super) fn new(pool: PgPool, own_sessions: bool) -> Self {
        Rows { pool, own_sessions: AtomicBool::new(own_sessions) }
    }

    /// The same table over two connections of its own, opened when they are needed, with the pool's
    /// settings: also with a pool of the user's own, all of whose connections may be in use.
    pub(super) fn separate(&self) -> Self {
        Rows::new(separate(&self.pool, 2), self.own_sessions.load(Ordering::Acquire))
    }

    /// One statement on any connection.
    pub(super) async fn execute(&self, statement: Statement) -> Result<Vec<PgRow>> {
        let mut connection = self.connection(statement.during).await?;
        self.execute_on(&mut connection, statement).await
    }

    /// A connection for several statements: the second one will not find it broken long ago.
    pub(super) async fn connection(&self, during: &'static str) -> Result<JobConnection> {
        JobConnection::open(&self.pool).await.map_err(|e| error::driver(during, e))
    }

    /// One statement on this connection, or on the one that replaces it.
    pub(super) async fn execute_on(
        &self,
        connection: &mut JobConnection,
        statement: Statement,
    ) -> Result<Vec<PgRow>> {
        let mut left = self.pool.options().get_max_connections();
        loop {
            let trusted = self.own_sessions.load(Ordering::Acquire);
            connection.mark_pending();
            let said = in_time(send(connection, &statement, trusted)).await;
            connection.mark_answered(&said);
            match said {
                Ok(rows) => return Ok(rows),
                // Nothing was done; from now on without what a session would have to remember.
                Err(error) if trusted && is_mixed_up(&error) => {
                    self.own_sessions.store(false, Ordering::Release);
                }
                Err(error)
                    if left > 0
                        && (is_unheard(&error)
                            || statement.again == Again::Yes && is_broken(&error)) =>
                {
                    left -= 1;
                    *connection = self.connection(statement.during).await?;
                }
                Err(error) => return Err(error::driver(statement.during, error)),
            }
        }
    }
}

async fn send(
    connection: &mut JobConnection,
    statement: &Statement,
    own_session: bool,
) -> sqlx::Result<Vec<PgRow>> {
    let values = statement.values.clone();
    if own_session {
        let sql = AssertSqlSafe(statement.sql.to_string());
        return sqlx::query_with(sql, values).fetch_all(&mut **connection).await;
    }
    // In a transaction, since the pooler may else give the parts of a statement to two servers. The
    // driver looks for a statement by its text among those it remembers, so the text differs too.
    let sql = AssertSqlSafe(format!("{} -- once", statement.sql));
    let mut tx = connection.begin().await?;
    let rows = sqlx::query_with(sql, values).persistent(false).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(rows)
}

/// A row as it was read, how often it had been changed, and when that was.
pub(super) struct Record {
    pub(super) row: StoredContext,
    pub(super) now: DateTime<Utc>,
    changes: i64,
    before: ContextHead,
}

impl Record {
    /// What is there of a context.
    pub(super) async fn load(
        during: &'static str,
        rows: &Rows,
        connection: &mut JobConnection,
        id: TransitionId,
    ) -> Result<Option<Self>> {
        let values = values(during, |to| to.add(id.to_string()))?;
        let statement = Statement { during, sql: LOAD.into(), values, again: Again::Yes };
        let found = rows.execute_on(connection, statement).await?;
        let Some(row) = found.first() else { return Ok(None) };
        let wrong = |e| error::driver(during, e);
        let now: i64 = row.try_get(COUNT + 1).map_err(wrong)?;
        let now = time(now).ok_or_else(|| error::no_answer(during))?;
        let changes = row.try_get(COUNT).map_err(wrong)?;
        let row = stored(row, wrong)?;
        Ok(Some(Record { before: row.head.clone(), row, now, changes }))
    }

    /// Writes what has become of it; false when somebody else has changed it since.
    pub(super) async fn put(
        &self,
        during: &'static str,
        rows: &Rows,
        connection: &mut JobConnection,
    ) -> Result<bool> {
        if self.row.head == self.before {
            return Ok(true);
        }
        // The body changes with the revision only.
        let with_body = self.row.head.revision != self.before.revision;
        let columns = Columns::of(&self.row)?;
        let values = values(during, |to| {
            columns.bind(to, with_body)?;
            to.add(self.changes)
        })?;
        let sql = if with_body { PUT_WITH_BODY } else { PUT }.into();
        let statement = Statement { during, sql, values, again: Again::No };
        Ok(rows.execute_on(connection, statement).await?.len() == 1)
    }
}

/// The values of a statement.
pub(super) fn values(
    during: &'static str,
    fill: impl FnOnce(&mut PgArguments) -> Result<(), sqlx::error::BoxDynError>,
) -> Result<PgArguments> {
    let mut values = PgArguments::default();
    fill(&mut values).map_err(|e| error::driver(during, sqlx::Error::Encode(e)))?;
    Ok(values)
}
