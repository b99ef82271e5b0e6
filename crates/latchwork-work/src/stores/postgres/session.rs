//! One transaction.

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use latchwork_sql::postgres::{JobConnection, in_time};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Column, Row, TypeInfo, ValueRef};

use super::error;
use super::query::LISTINGS;
use super::statements::STATEMENTS;
use crate::store::{Cell, Cells, Listings, Param, Statements};
use crate::{Error, Result};

/// A transaction on a connection.
pub(crate) struct PostgresSession<'c> {
    connection: Connection<'c>,
    now: DateTime<Utc>,
    lends_sessions: bool,
}

/// Whose connection it is.
pub(super) enum Connection<'c> {
    /// Ours: dropped before its end it is closed, and the server rolls back.
    Own(JobConnection),
    /// The caller's, in a transaction that the caller ends.
    Callers(&'c mut PgConnection),
}

impl<'c> PostgresSession<'c> {
    pub(super) fn new(
        connection: Connection<'c>,
        now: DateTime<Utc>,
        lends_sessions: bool,
    ) -> Self {
        PostgresSession { connection, now, lends_sessions }
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.now
    }

    pub(crate) fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    pub(crate) fn listings(&self) -> &'static Listings {
        &LISTINGS
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Connection::Own(connection) => connection,
            Connection::Callers(connection) => connection,
        }
    }

    /// The server has its few seconds for each row and not for all of them: an order may have a hundred
    /// thousand items, and as long as rows come it is there.
    pub(crate) async fn fetch(&mut self, sql: &str, params: Vec<Param>) -> Result<Vec<Cells>> {
        let persistent = !self.lends_sessions;
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let mut rows = query.persistent(persistent).fetch(self.connection());
        let mut found = Vec::new();
        while let Some(row) = in_time(rows.try_next()).await.map_err(error::driver)? {
            found.push(row);
        }
        drop(rows);
        found.iter().map(cells).collect()
    }

    pub(crate) async fn execute(&mut self, sql: &str, params: Vec<Param>) -> Result<u64> {
        let persistent = !self.lends_sessions;
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let done = in_time(query.persistent(persistent).execute(self.connection())).await;
        Ok(done.map_err(error::driver)?.rows_affected())
    }

    /// Waits at most this long for a lock from now on, until the transaction ends.
    pub(crate) async fn limit_lock_waits(&mut self, millis: u32) -> Result<()> {
        let sql = AssertSqlSafe(format!("SET LOCAL lock_timeout = {millis}"));
        let done = in_time(sqlx::raw_sql(sql).execute(self.connection())).await;
        done.map(|_| ()).map_err(error::driver)
    }

    /// Ends it. If the answer is lost, nobody knows whether it was done.
    pub(crate) async fn commit(self) -> Result<()> {
        self.end("COMMIT").await
    }

    /// Undoes it, so that the connection can serve again.
    pub(crate) async fn rollback(self) -> Result<()> {
        // What fails here is undone when the connection ends.
        let _ = self.end("ROLLBACK").await;
        Ok(())
    }

    async fn end(self, how: &'static str) -> Result<()> {
        let Connection::Own(mut connection) = self.connection else { return Ok(()) };
        let ended = in_time(sqlx::raw_sql(how).execute(&mut *connection)).await;
        connection.mark_answered(&ended);
        ended.map(|_| ()).map_err(error::driver)
    }
}

pub(super) fn bind(params: Vec<Param>) -> Result<PgArguments> {
    use sqlx::Arguments;
    let mut values = PgArguments::default();
    for param in params {
        let added = match param {
            Param::Int(number) => values.add(number),
            Param::Text(text) => values.add(text),
        };
        added.map_err(|e| error::driver(sqlx::Error::Encode(e)))?;
    }
    Ok(values)
}

pub(super) fn cells(row: &PgRow) -> Result<Cells> {
    let cell = |column: &sqlx::postgres::PgColumn| {
        let at = column.ordinal();
        let raw = row.try_get_raw(at).map_err(error::driver)?;
        if raw.is_null() {
            return Ok(Cell::Null);
        }
        match column.type_info().name() {
            "INT8" => row.try_get(at).map(Cell::Int).map_err(error::driver),
            "TEXT" => row.try_get(at).map(Cell::Text).map_err(error::driver),
            other => Err(Error::damaged(format!("column {at} has the type {other}"))),
        }
    };
    Ok(Cells::new(row.columns().iter().map(cell).collect::<Result<_>>()?))
}
