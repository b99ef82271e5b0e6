//! The file, and how a transaction begins in it.

use std::sync::Arc;

use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use sqlx::{SqliteConnection, SqlitePool};

use super::clock::TimeLine;
use super::error;
use super::schema::{LAYER, STEPS};
use super::session::{Connection, SqliteSession};
use crate::{Error, Result};

/// An SQLite file.
#[derive(Clone)]
pub(crate) struct SqliteStore {
    pub(super) sqlite: Sqlite,
    time: TimeLine,
}

impl SqliteStore {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let options = Options::parse(url).map_err(|e| Error::invalid("url", e.message))?;
        let opened = Sqlite::open(&options).await.map_err(error::sql)?;
        Self::open(opened, SystemClock::shared()).await
    }

    pub(crate) async fn from_pool(pool: &SqlitePool) -> Result<Self> {
        let opened = Sqlite::from_pool(pool).await.map_err(error::sql)?;
        Self::open(opened, SystemClock::shared()).await
    }

    async fn open(sqlite: Sqlite, clock: Arc<dyn Clock>) -> Result<Self> {
        migrate(&sqlite, LAYER, STEPS).await.map_err(error::sql)?;
        let mut writing = sqlite.begin().await.map_err(error::sql)?;
        let time = TimeLine::open(clock, &mut writing).await?;
        writing.commit().await.map_err(error::driver)?;
        Ok(SqliteStore { sqlite, time })
    }

    /// The same file by another clock, for tests.
    pub(crate) async fn with_clock(self, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::open(self.sqlite, clock).await
    }

    /// The tables as SQL.
    pub(crate) fn schema() -> String {
        STEPS.iter().map(|step| step.sql).collect()
    }

    /// A transaction that may write.
    pub(crate) async fn begin(&self) -> Result<SqliteSession<'static>> {
        self.sqlite.still_there().map_err(error::sql)?;
        let transaction = self.sqlite.begin().await.map_err(error::sql)?;
        // After the wait for the writer: a lease must not be judged by the time before it.
        Ok(SqliteSession::new(Connection::Own(transaction), self.time.now()))
    }

    /// A transaction that reads one snapshot.
    pub(crate) async fn begin_read(&self) -> Result<SqliteSession<'static>> {
        self.sqlite.still_there().map_err(error::sql)?;
        let transaction = self.sqlite.readers().begin().await.map_err(error::driver)?;
        Ok(SqliteSession::new(Connection::Own(transaction), self.time.now()))
    }

    /// Works in the caller's own transaction, which must be one that writes.
    pub(crate) fn within<'c>(&self, connection: &'c mut SqliteConnection) -> SqliteSession<'c> {
        SqliteSession::new(Connection::Callers(connection), self.time.now())
    }

    pub(crate) async fn close(&self) {
        self.sqlite.close().await;
    }
}
