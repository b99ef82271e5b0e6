//! One transaction.

use chrono::{DateTime, Utc};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row, Sqlite, Transaction, TypeInfo, ValueRef};

use super::error;
use super::query::LISTINGS;
use super::statements::STATEMENTS;
use crate::store::{Cell, Cells, Listings, Param, Statements};
use crate::{Error, Result};

/// A transaction on a connection.
pub(crate) struct SqliteSession<'c> {
    connection: Connection<'c>,
    now: DateTime<Utc>,
}

/// Whose connection it is.
pub(super) enum Connection<'c> {
    /// Ours: dropped before its end it is rolled back.
    Own(Transaction<'static, Sqlite>),
    /// The caller's, in a transaction that the caller ends.
    Callers(&'c mut SqliteConnection),
}

impl<'c> SqliteSession<'c> {
    pub(super) fn new(connection: Connection<'c>, now: DateTime<Utc>) -> Self {
        SqliteSession { connection, now }
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

    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        match &mut self.connection {
            Connection::Own(transaction) => transaction,
            Connection::Callers(connection) => connection,
        }
    }

    pub(crate) async fn fetch(&mut self, sql: &str, params: Vec<Param>) -> Result<Vec<Cells>> {
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let rows = query.fetch_all(self.connection()).await;
        rows.map_err(error::driver)?.iter().map(cells).collect()
    }

    pub(crate) async fn execute(&mut self, sql: &str, params: Vec<Param>) -> Result<u64> {
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let done = query.execute(self.connection()).await;
        Ok(done.map_err(error::driver)?.rows_affected())
    }

    pub(crate) async fn commit(self) -> Result<()> {
        match self.connection {
            Connection::Own(transaction) => transaction.commit().await.map_err(error::driver),
            Connection::Callers(_) => Ok(()),
        }
    }

    pub(crate) async fn rollback(self) -> Result<()> {
        match self.connection {
            Connection::Own(transaction) => transaction.rollback().await.map_err(error::driver),
            Connection::Callers(_) => Ok(()),
        }
    }
}

fn bind(params: Vec<Param>) -> Result<SqliteArguments> {
    use sqlx::Arguments;
    let mut values = SqliteArguments::default();
    for param in params {
        let added = match param {
            Param::Int(number) => values.add(number),
            Param::Text(text) => values.add(text),
        };
        added.map_err(|e| error::driver(sqlx::Error::Encode(e)))?;
    }
    Ok(values)
}

fn cells(row: &SqliteRow) -> Result<Cells> {
    let cell = |at: usize| {
        let raw = row.try_get_raw(at).map_err(error::driver)?;
        if raw.is_null() {
            return Ok(Cell::Null);
        }
        let kind = raw.type_info().name().to_owned();
        match kind.as_str() {
            "INTEGER" => row.try_get_unchecked(at).map(Cell::Int).map_err(error::driver),
            "TEXT" => row.try_get_unchecked(at).map(Cell::Text).map_err(error::driver),
            other => Err(Error::damaged(format!("column {at} has the type {other}"))),
        }
    };
    Ok(Cells::new((0..row.len()).map(cell).collect::<Result<_>>()?))
}
