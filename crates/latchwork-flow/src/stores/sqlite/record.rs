//! One row, read and written.

use latchwork_sql::sqlite::boot::Now;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, Row, SqliteExecutor};

use super::boot::DueStamp;
use super::error;
use super::schema::{CREATE, LOAD, PUT, PUT_WITH_BODY};
use crate::store::{ContextHead, StoredContext};
use crate::stores::columns::{COUNT, Columns, stored};
use crate::{BoxError, Result, TransitionId};

/// A row as it was read, and how often it had been changed.
pub(super) struct Record {
    pub(super) row: StoredContext,
    now: Now,
    changes: i64,
    before: ContextHead,
}

impl Record {
    /// What is there of a context.
    pub(super) async fn load(
        during: &'static str,
        on: impl SqliteExecutor<'_>,
        id: TransitionId,
        now: impl FnOnce() -> Now,
    ) -> Result<Option<Self>> {
        let found = sqlx::query(LOAD).bind(id.to_string()).fetch_optional(on).await;
        let found = found.map_err(|e| error::driver(during, e))?;
        let Some(found) = found else { return Ok(None) };
        let wrong = |e| error::driver(during, e);
        let due = DueStamp {
            clock: found.try_get(COUNT + 1).map_err(wrong)?,
            ns: found.try_get(COUNT + 2).map_err(wrong)?,
            of: found.try_get(COUNT + 3).map_err(wrong)?,
        };
        let mut row = stored(&found, wrong)?;
        // After the row was read: what was over then is over.
        let now = now();
        due.correct(&mut row.head, now).map_err(|e| error::other_clock(during, id, e))?;
        let changes = found.try_get(COUNT).map_err(wrong)?;
        Ok(Some(Record { before: row.head.clone(), row, now, changes }))
    }

    /// When it was read.
    pub(super) fn now(&self) -> Now {
        self.now
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
        let arguments = arguments(during, &self.row, self.now, with_body)?;
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
    now: Now,
) -> Result<bool> {
    let query = sqlx::query_with(CREATE, arguments(during, row, now, true)?);
    let done = query.execute(on).await.map_err(|e| error::driver(during, e))?;
    Ok(done.rows_affected() == 1)
}

fn arguments(
    during: &'static str,
    row: &StoredContext,
    now: Now,
    with_body: bool,
) -> Result<SqliteArguments> {
    let due = DueStamp::of(&row.head, now);
    let mut arguments = SqliteArguments::default();
    let mut fill = || {
        Columns::of(row)?.bind(&mut arguments, false)?;
        arguments.add(due.clock)?;
        arguments.add(due.ns)?;
        arguments.add(due.of)?;
        if with_body {
            arguments.add(row.body.clone())?;
        }
        Ok(())
    };
    fill().map_err(|e: BoxError| error::driver(during, sqlx::Error::Encode(e)))?;
    Ok(arguments)
}
