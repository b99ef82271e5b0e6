//! One transaction.

use chrono::{DateTime, Utc};
use latchwork_sql::sqlite::explain_direct;
use rusqlite::types::Value;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row, Sqlite, Transaction, TypeInfo, ValueRef};

use super::error;
use super::query::LISTINGS;
use super::statements::STATEMENTS;
use super::writer::Turn;
use crate::store::{Cell, Cells, Listings, Param, Statements};
use crate::{Error, Result};

/// A transaction on a connection.
pub(crate) struct SqliteSession<'c> {
    connection: Connection<'c>,
    now: DateTime<Utc>,
}

/// Whose connection it is.
pub(super) enum Connection<'c> {
    /// Ours: dropped before its end it is rolled back. A writer has its turn until then.
    Own(Transaction<'static, Sqlite>, Option<Turn>),
    /// A savepoint of the transaction that this process shares.
    Shared(Turn),
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

    /// The driver's connection; none in a shared transaction.
    pub(crate) fn connection(&mut self) -> Option<&mut SqliteConnection> {
        match &mut self.connection {
            Connection::Own(transaction, _) => Some(transaction),
            Connection::Shared(_) => None,
            Connection::Callers(connection) => Some(connection),
        }
    }

    pub(crate) async fn fetch(&mut self, sql: &str, params: Vec<Param>) -> Result<Vec<Cells>> {
        let connection: &mut SqliteConnection = match &mut self.connection {
            Connection::Shared(turn) => return fetch_here(within(turn)?, sql, params),
            Connection::Own(transaction, _) => transaction,
            Connection::Callers(connection) => connection,
        };
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let rows = query.fetch_all(connection).await;
        rows.map_err(error::driver)?.iter().map(cells).collect()
    }

    pub(crate) async fn execute(&mut self, sql: &str, params: Vec<Param>) -> Result<u64> {
        let connection: &mut SqliteConnection = match &mut self.connection {
            Connection::Shared(turn) => return execute_here(within(turn)?, sql, params),
            Connection::Own(transaction, _) => transaction,
            Connection::Callers(connection) => connection,
        };
        let query = sqlx::query_with(AssertSqlSafe(sql.to_owned()), bind(params)?);
        let done = query.execute(connection).await;
        Ok(done.map_err(error::driver)?.rows_affected())
    }

    pub(crate) async fn commit(self) -> Result<()> {
        match self.connection {
            Connection::Own(transaction, _turn) => {
                transaction.commit().await.map_err(error::driver)
            }
            Connection::Shared(turn) => turn.commit().await,
            Connection::Callers(_) => Ok(()),
        }
    }

    /// Undoes it. An error means that what it has seen was undone as well.
    pub(crate) async fn rollback(self) -> Result<()> {
        match self.connection {
            Connection::Own(transaction, _turn) => {
                // What fails here is undone when the connection ends.
                let _ = transaction.rollback().await;
                Ok(())
            }
            Connection::Shared(turn) => turn.undo().await,
            Connection::Callers(_) => Ok(()),
        }
    }
}

/// The connection of a shared transaction. After some errors SQLite ends the transaction by itself, and
/// would take a statement that follows as a transaction of its own.
fn within(turn: &mut Turn) -> Result<&rusqlite::Connection> {
    let connection = turn.connection();
    if connection.is_autocommit() {
        return Err(Error::damaged("the transaction has ended before its time"));
    }
    Ok(connection)
}

/// One statement that reads, on this thread.
pub(super) fn fetch_here(
    connection: &rusqlite::Connection,
    sql: &str,
    params: Vec<Param>,
) -> Result<Vec<Cells>> {
    let fetch = || {
        let mut statement = connection.prepare_cached(sql)?;
        let columns = statement.column_count();
        bind_here(&mut statement, params)?;
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let cells: rusqlite::Result<Vec<Value>> = (0..columns).map(|at| row.get(at)).collect();
            found.push(cells?);
        }
        Ok(found)
    };
    let found = fetch().map_err(|error| error::sql(explain_direct(error)))?;
    let cells = |row: Vec<Value>| Ok(Cells::new(row.into_iter().map(cell).collect::<Result<_>>()?));
    found.into_iter().map(cells).collect()
}

/// One statement that writes, on this thread.
fn execute_here(connection: &rusqlite::Connection, sql: &str, params: Vec<Param>) -> Result<u64> {
    let execute = || {
        let mut statement = connection.prepare_cached(sql)?;
        bind_here(&mut statement, params)?;
        if statement.column_count() == 0 {
            return statement.raw_execute();
        }
        // Who does not want what it returns still wants all of it done.
        let mut rows = statement.raw_query();
        let mut count = 0;
        while rows.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    };
    Ok(execute().map_err(|error| error::sql(explain_direct(error)))? as u64)
}

/// `$2` is the second value wherever it stands: for SQLite it is a name, and names are numbered by their
/// first use.
fn bind_here(statement: &mut rusqlite::Statement<'_>, params: Vec<Param>) -> rusqlite::Result<()> {
    let mut values: Vec<_> = params.into_iter().map(|param| Some(value(param))).collect();
    for at in 1..=statement.parameter_count() {
        let name = statement.parameter_name(at).and_then(|name| name.get(1..)?.parse().ok());
        let wanted: usize = name.unwrap_or(at);
        let value = values.get_mut(wanted.wrapping_sub(1)).and_then(Option::take);
        let value = value.ok_or(rusqlite::Error::InvalidParameterCount(at, values.len()))?;
        statement.raw_bind_parameter(at, value)?;
    }
    Ok(())
}

fn value(param: Param) -> Value {
    match param {
        Param::Int(number) => number.map_or(Value::Null, Value::Integer),
        Param::Text(text) => text.map_or(Value::Null, Value::Text),
    }
}

fn cell(value: Value) -> Result<Cell> {
    match value {
        Value::Null => Ok(Cell::Null),
        Value::Integer(number) => Ok(Cell::Int(number)),
        Value::Text(text) => Ok(Cell::Text(text)),
        other => Err(Error::damaged(format!("a column has the type {}", other.data_type()))),
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
