//! One row, read and written on the connection of the writer's thread.

use latchwork_sql::sqlite::boot::Now;
use rusqlite::Connection;

use super::boot::{DueStamp, Here};
use super::error;
use super::schema::{CREATE, LOAD, PUT, PUT_WITH_BODY};
use super::writer::Stop;
use crate::store::{ContextHead, StoredContext};
use crate::stores::columns::{COUNT, Columns};
use crate::{Result, TransitionId};

/// A row as it was read inside a transaction.
pub(super) struct Record {
    pub(super) row: StoredContext,
    now: Now,
    before: ContextHead,
}

impl Record {
    /// What is there of a context.
    pub(super) fn load(
        during: &'static str,
        on: &Connection,
        id: TransitionId,
        here: &Here,
    ) -> Result<Option<Self>, Stop> {
        let mut statement = on.prepare_cached(LOAD)?;
        let mut rows = statement.query([id.to_string()])?;
        let Some(found) = rows.next()? else { return Ok(None) };
        let read = || -> rusqlite::Result<_> {
            let due = DueStamp {
                clock: found.get(COUNT)?,
                ns: found.get(COUNT + 1)?,
                of: found.get(COUNT + 2)?,
            };
            Ok((Columns::read_direct(found)?, due))
        };
        let (columns, due) = read().map_err(|e| Stop::unreadable(during, e))?;
        // After the row was read: what was over then is over.
        let now = here.now();
        Ok(Some(Record::of(during, columns.stored()?, due, now)?))
    }

    /// A row that was read at this time.
    pub(super) fn of(
        during: &'static str,
        mut row: StoredContext,
        due: DueStamp,
        now: Now,
    ) -> Result<Self> {
        let id = row.head.id;
        due.correct(&mut row.head, now).map_err(|e| error::other_clock(during, id, e))?;
        Ok(Record { before: row.head.clone(), row, now })
    }

    /// When it was read.
    pub(super) fn now(&self) -> Now {
        self.now
    }

    /// Writes what has become of it.
    pub(super) fn put(&self, on: &Connection) -> Result<(), Stop> {
        if self.row.head == self.before {
            return Ok(());
        }
        // The body changes with the revision only.
        let with_body = self.row.head.revision != self.before.revision;
        let sql = if with_body { PUT_WITH_BODY } else { PUT };
        write(on, sql, &self.row, self.now, with_body).map(|_| ())
    }
}

/// Writes a row where there was none; false when there was one.
pub(super) fn create(on: &Connection, row: &StoredContext, now: Now) -> Result<bool, Stop> {
    Ok(write(on, CREATE, row, now, true)? == 1)
}

/// Executes a statement with the values of a row; gives how many rows it has written.
fn write(
    on: &Connection,
    sql: &str,
    row: &StoredContext,
    now: Now,
    with_body: bool,
) -> Result<usize, Stop> {
    let due = DueStamp::of(&row.head, now);
    let mut statement = on.prepare_cached(sql)?;
    let next = Columns::of(row)?.bind_direct(&mut statement)?;
    statement.raw_bind_parameter(next, due.clock)?;
    statement.raw_bind_parameter(next + 1, due.ns)?;
    statement.raw_bind_parameter(next + 2, due.of)?;
    if with_body {
        statement.raw_bind_parameter(next + 3, &row.body)?;
    }
    Ok(statement.raw_execute()?)
}
