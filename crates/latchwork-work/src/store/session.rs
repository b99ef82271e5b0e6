//! One transaction of any database.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::{Cells, Listings, Param, Statements};
use crate::Result;

/// One transaction: it is [committed](Self::commit), or nothing of it has happened.
///
/// Dropped before its end it is rolled back. Every method that writes is therefore cancel safe as long
/// as the session is dropped with the future.
///
/// What ends leases or changes what a lane may have open is collected, and done as the last thing
/// before the commit: so a transaction locks limits after everything else, all at once and in the
/// order of their keys, and no two transactions wait for each other.
pub(crate) struct Session<'c> {
    connection: Connection<'c>,
    pub(super) deferred: super::limits::Deferred,
    /// Types of which something can be leased that a lane held back.
    pub(super) opened: BTreeSet<String>,
}

/// The transaction of whichever database it is.
pub(crate) enum Connection<'c> {
    #[cfg(feature = "sqlite")]
    Sqlite(crate::stores::sqlite::SqliteSession<'c>),
    #[cfg(feature = "postgres")]
    Postgres(crate::stores::postgres::PostgresSession<'c>),
}

/// The same call on whichever database it is.
macro_rules! on {
    ($session:expr, $inner:ident => $call:expr) => {
        match $session {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite($inner) => $call,
            #[cfg(feature = "postgres")]
            Connection::Postgres($inner) => $call,
        }
    };
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: Connection<'c>) -> Self {
        Session { connection, deferred: Default::default(), opened: BTreeSet::new() }
    }

    /// The database's time at the beginning of the transaction.
    pub(crate) fn now(&self) -> DateTime<Utc> {
        on!(&self.connection, session => session.now())
    }

    pub(crate) fn sql(&self) -> &'static Statements {
        on!(&self.connection, session => session.statements())
    }

    pub(crate) fn listings(&self) -> &'static Listings {
        on!(&self.connection, session => session.listings())
    }

    pub(crate) async fn fetch(&mut self, sql: &str, params: Vec<Param>) -> Result<Vec<Cells>> {
        on!(&mut self.connection, session => session.fetch(sql, params).await)
    }

    pub(crate) async fn fetch_one(
        &mut self,
        sql: &str,
        params: Vec<Param>,
    ) -> Result<Option<Cells>> {
        Ok(self.fetch(sql, params).await?.into_iter().next())
    }

    pub(crate) async fn execute(&mut self, sql: &str, params: Vec<Param>) -> Result<u64> {
        on!(&mut self.connection, session => session.execute(sql, params).await)
    }

    /// Gives up waiting for another transaction's rows after this many milliseconds. SQLite has one
    /// writer and its own limit.
    pub(crate) async fn limit_lock_waits(&mut self, millis: u32) -> Result<()> {
        match &mut self.connection {
            #[cfg(feature = "postgres")]
            Connection::Postgres(session) => session.limit_lock_waits(millis).await,
            #[allow(unreachable_patterns, reason = "depends on the features")]
            _ => {
                let _ = millis;
                Ok(())
            }
        }
    }

    /// The connection of an SQLite transaction.
    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite(&mut self) -> Option<&mut sqlx::SqliteConnection> {
        match &mut self.connection {
            Connection::Sqlite(session) => session.connection(),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => None,
        }
    }

    /// The connection of a PostgreSQL transaction.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&mut self) -> Option<&mut sqlx::PgConnection> {
        match &mut self.connection {
            #[cfg(feature = "sqlite")]
            Connection::Sqlite(_) => None,
            Connection::Postgres(session) => Some(session.connection()),
        }
    }

    /// Commits, and tells of which types something can be leased now that a lane held back.
    pub(crate) async fn commit(mut self) -> Result<BTreeSet<String>> {
        self.finish().await?;
        on!(self.connection, session => session.commit().await)?;
        Ok(self.opened)
    }

    /// Does what was deferred. The caller's own transaction ends without our commit, and needs it.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        let deferred = std::mem::take(&mut self.deferred);
        self.settle_limits(deferred).await
    }

    /// Undoes it. An error means that what it has seen was undone as well, so that whatever it was
    /// refused for may not be so.
    pub(crate) async fn rollback(self) -> Result<()> {
        on!(self.connection, session => session.rollback().await)
    }
}
