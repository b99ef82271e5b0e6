//! The database, and how a transaction begins in it.

use std::sync::Arc;

use latchwork_sql::postgres::{JobConnection, in_time};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgPool};

use super::batches::{Batches, ClaimRequest, SubmitAnswer, SubmitRequest};
use super::scripts::{Claimed, Scripts};
use super::session::{Connection, PostgresSession};
use super::statements::STATEMENTS;
use super::{config, error, schema};
use crate::store::{Cells, Param, Statements, micros_to_time};
use crate::{Error, Result};

/// A PostgreSQL database.
#[derive(Clone)]
pub(crate) struct PostgresStore {
    pub(super) pool: PgPool,
    /// Whether a pooler stands between, so that prepared statements must not outlive a transaction.
    pub(super) lends_sessions: bool,
    scripts: Scripts,
    batches: Arc<Batches>,
}

/// Begins, and asks for the time in the same message. Connections of a pooler and of the caller's pool may
/// compile plans, which would take seconds for very many items.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL jit = off; \
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL jit = off; \
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

impl PostgresStore {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        config::connect(address).await
    }

    pub(crate) async fn from_pool(pool: PgPool) -> Result<Self> {
        config::from_pool(pool).await
    }

    pub(super) fn new(pool: PgPool, lends_sessions: bool) -> Self {
        let scripts = Scripts::new(pool.clone());
        let batches = Arc::new(Batches::new(&scripts));
        PostgresStore { pool, lends_sessions, scripts, batches }
    }

    /// Whether a statement may be asked by itself: behind a pooler its parts could meet two servers.
    pub(crate) fn has_scripts(&self) -> bool {
        !self.lends_sessions
    }

    pub(crate) fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    /// One statement, which is a transaction by itself.
    pub(crate) async fn once(&self, sql: &'static str, params: Vec<Param>) -> Result<Vec<Cells>> {
        self.scripts.once(sql, params).await
    }

    /// Leases by one statement, which claims that come together share.
    pub(crate) async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        self.batches.claim(request).await
    }

    /// Submits by one statement, which submissions that come together share.
    pub(crate) async fn submit(&self, request: SubmitRequest) -> Result<SubmitAnswer> {
        self.batches.submit(request).await
    }

    /// The tables as SQL.
    pub(crate) fn schema() -> String {
        latchwork_sql::postgres::script(schema::LAYER, &schema::MIGRATIONS)
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A transaction that may write.
    pub(crate) async fn begin(&self) -> Result<PostgresSession<'static>> {
        self.begin_with(BEGIN).await
    }

    /// A transaction that reads one snapshot.
    pub(crate) async fn begin_read(&self) -> Result<PostgresSession<'static>> {
        self.begin_with(BEGIN_READ).await
    }

    async fn begin_with(&self, begin: &'static str) -> Result<PostgresSession<'static>> {
        // A pool may hand out a connection that the server has ended meanwhile. Nothing was asked on
        // it yet, so the next one is as good; each that fails is closed, so this ends.
        let mut left = self.pool.options().get_max_connections();
        loop {
            let mut connection = JobConnection::open(&self.pool).await.map_err(error::driver)?;
            match in_time(sqlx::raw_sql(begin).fetch_all(&mut *connection)).await {
                Ok(rows) => {
                    let now = rows.first().map(|row| row.try_get::<i64, _>(0));
                    let now = now.transpose().map_err(error::driver)?;
                    let now =
                        now.and_then(micros_to_time).ok_or_else(|| Error::damaged("no time"))?;
                    let connection = Connection::Own(connection);
                    return Ok(PostgresSession::new(connection, now, self.lends_sessions));
                }
                Err(sqlx::Error::Io(_) | sqlx::Error::Database(_)) if left > 0 => left -= 1,
                Err(error) => return Err(error::driver(error)),
            }
        }
    }

    /// Works in the caller's own transaction.
    pub(crate) async fn within<'c>(
        &self,
        connection: &'c mut PgConnection,
    ) -> Result<PostgresSession<'c>> {
        let row = sqlx::raw_sql(NOW).fetch_one(&mut *connection).await.map_err(error::driver)?;
        let now = row.try_get::<i64, _>(0).map_err(error::driver)?;
        let now = micros_to_time(now).ok_or_else(|| Error::damaged("no time"))?;
        let connection = Connection::Callers(connection);
        Ok(PostgresSession::new(connection, now, self.lends_sessions))
    }
}
