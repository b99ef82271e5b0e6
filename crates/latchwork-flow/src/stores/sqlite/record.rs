//! One row, read and written.

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, SqliteExecutor};

use super::error;
use super::schema::{CREATE, LOAD, PUT, PUT_WITH_BODY};
use crate::store::{ContextHead, StoredContext};
use crate::stores::columns::{COUNT, Columns, stored};
use crate::{Result, TransitionId};

/// A row as it was read, and how often it had been changed.
pub(super) struct Record {
    pub(super) row: StoredContext,
    changes: i64,
    before: ContextHead,
}

impl Record {
    /// What is there of a context.
    pub(super) async fn load(
        during: &'static str,
        on: impl SqliteExecutor<'_>,
        id: TransitionId,
    ) -> Result<Option<Self>> {
        let found = sqlx::query(LOAD).bind(id.to_string()).fetch_optional(on).await;
        let found = found.map_err(|e| error::driver(during, e))?;
        found.map(|row| Self::read(during, &row)).transpose()
    }

    /// A row of a statement that asked for all columns and the changes.
    pub(super) fn read(during: &'static str, row: &SqliteRow) -> Result<Self> {
        let wrong = |e| error::driver(during, e);
        let changes = row.try_get(COUNT).map_err(wrong)?;
        let row = stored(row, wrong)?;
        Ok(Record { before: row.head.clone(), row, changes })
    }

    /// Writes what has become of it; false when somebody else has changed it since.
    pub(super) async fn put(
        &self,
        during: &'static str,
        on: impl SqliteExecutor<'_>,
    ) -> Result<bool> {
        if self.row.head == self.before {
            return Ok(true);
        }
        // The body changes with the revision only.
        let with_body = self.row.head.revision != self.before.revision;
        let (sql, changes) = match with_body {
            true => (PUT_WITH_BODY, self.changes),
            false => (PUT, self.changes),
        };
        let arguments = arguments(during, &self.row, with_body)?;
        let query = sqlx::query_with(sql, arguments).bind(changes);
        let done = query.execute(on).await.map_err(|e| error::driver(during, e))?;
        Ok(done.rows_affected() == 1)
    }
}

/// Writes a row where there was none; false when there was one.
pub(super) async fn create(
    during: &'static str,
    on: impl SqliteExecutor<'_>,
    row: &StoredContext,
) -> Result<bool> {
    let query = sqlx::query_with(CREATE, arguments(during, row, true)?);
    let done = query.execute(on).await.map_err(|e| error::driver(during, e))?;
    Ok(done.rows_affected() == 1)
}

fn arguments(
    during: &'static str,
    row: &StoredContext,
    with_body: bool,
) -> Result<SqliteArguments> {
    let mut arguments = SqliteArguments::default();
    Columns::of(row)?
        .bind(&mut arguments, with_body)
        .map_err(|e| error::driver(during, sqlx::Error::Encode(e)))?;
    Ok(arguments)
}
