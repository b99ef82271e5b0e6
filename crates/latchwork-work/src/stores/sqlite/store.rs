//! The file, and how a transaction begins in it.

use std::sync::Arc;

use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::sqlite::{BUSY_TIMEOUT, Options, Sqlite, explain_direct, migrate};
use parking_lot::Mutex;
use sqlx::{SqliteConnection, SqlitePool};

use super::clock::TimeLine;
use super::error;
use super::schema::{LAYER, STEPS};
use super::session::{Connection, SqliteSession, fetch_here};
use super::statements::STATEMENTS;
use super::writer::Writer;
use crate::store::{Cells, Param, Statements};
use crate::{Error, Result};

/// An SQLite file.
#[derive(Clone)]
pub(crate) struct SqliteStore {
    pub(super) sqlite: Sqlite,
    writer: Arc<Writer>,
    /// For reading single rows, without the way to the driver's thread.
    reader: Arc<Mutex<Option<rusqlite::Connection>>>,
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
        let direct = sqlite.direct().await.map_err(error::sql)?;
        let reader = direct.connect().map_err(error::sql)?;
        // Readers wait for nobody, but for the one that recovers the file after a crash.
        reader.busy_timeout(BUSY_TIMEOUT).map_err(|e| error::sql(explain_direct(e)))?;
        reader.set_prepared_statement_cache_capacity(16);
        let (writer, reader) = (Writer::new(direct), Arc::new(Mutex::new(Some(reader))));
        Ok(SqliteStore { sqlite, writer, reader, time })
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
        let turn = self.writer.alone().await?;
        let transaction = self.sqlite.begin().await.map_err(error::sql)?;
        // After the wait for the writer: a lease must not be judged by the time before it.
        Ok(SqliteSession::new(Connection::Own(transaction, Some(turn)), self.time.now()))
    }

    /// One that changes a few rows: its commit may be that of others too.
    pub(crate) async fn begin_short(&self) -> Result<SqliteSession<'static>> {
        self.sqlite.still_there().map_err(error::sql)?;
        let turn = self.writer.begin().await?;
        Ok(SqliteSession::new(Connection::Shared(turn), self.time.now()))
    }

    /// A statement that reads a few rows, by itself.
    pub(crate) fn fetch_few(&self, sql: &str, params: Vec<Param>) -> Result<Vec<Cells>> {
        self.sqlite.still_there().map_err(error::sql)?;
        match &*self.reader.lock() {
            Some(reader) => fetch_here(reader, sql, params),
            None => Err(super::writer::closed()),
        }
    }

    /// A transaction that reads one snapshot.
    pub(crate) async fn begin_read(&self) -> Result<SqliteSession<'static>> {
        self.sqlite.still_there().map_err(error::sql)?;
        let transaction = self.sqlite.readers().begin().await.map_err(error::driver)?;
        Ok(SqliteSession::new(Connection::Own(transaction, None), self.time.now()))
    }

    pub(crate) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.time.now()
    }

    pub(crate) fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    /// Works in the caller's own transaction, which must be one that writes.
    pub(crate) fn within<'c>(&self, connection: &'c mut SqliteConnection) -> SqliteSession<'c> {
        SqliteSession::new(Connection::Callers(connection), self.time.now())
    }

    pub(crate) async fn close(&self) {
        self.writer.close();
        drop(self.reader.lock().take());
        self.sqlite.close().await;
    }
}
