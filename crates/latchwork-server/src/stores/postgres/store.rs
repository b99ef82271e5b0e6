//! The operations on the table.

use latchwork_sql::Result;
use latchwork_sql::postgres::{self, Settings, explain, in_time, is_broken};
use sqlx::postgres::PgPool;

use super::schema;
use crate::stores::record::{Columns, Row};
use crate::stores::statements;

/// Tokens in a PostgreSQL database.
#[derive(Clone)]
pub(crate) struct PostgresTokens {
    pool: PgPool,
    /// Behind a pooler prepared statements must not outlive a transaction.
    persistent: bool,
}

/// A token is looked up once a second for each that is used: a few connections are enough.
const CONNECTIONS: u32 = 4;

/// Runs a statement, anew where the pool gave a connection that the server has ended meanwhile. Each
/// that fails is closed, so this ends; every statement here can be repeated.
macro_rules! run {
    ($statement:expr) => {{
        let mut left = CONNECTIONS;
        loop {
            match in_time($statement).await {
                Err(error) if left > 0 && is_broken(&error) => left -= 1,
                done => break done.map_err(explain),
            }
        }
    }};
}

impl PostgresTokens {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let mut settings = Settings::default();
        settings.max_connections = CONNECTIONS;
        let options = postgres::options(url, &settings)?;
        let told = url.contains("statement-cache-capacity=0");
        let (pool, server) = postgres::open(options, &settings).await?;
        postgres::migrate(&pool, schema::LAYER, &schema::STEPS).await?;
        Ok(PostgresTokens { pool, persistent: !told && !server.lends_sessions })
    }

    pub(crate) async fn news(&self) -> Result<(bool, i64)> {
        let query = || sqlx::query_as(statements::NEWS).persistent(self.persistent);
        run!(query().fetch_one(&self.pool))
    }

    /// Two statements: the first one says what is true anyway.
    pub(crate) async fn insert(&self, row: Row) -> Result<bool> {
        let free = || {
            let query = sqlx::query(statements::FREE_NAME).persistent(self.persistent);
            query.bind(&row.name).bind(row.created_at)
        };
        run!(free().execute(&self.pool))?;
        let insert = || {
            sqlx::query(statements::INSERT)
                .persistent(self.persistent)
                .bind(&row.id)
                .bind(&row.name)
                .bind(&row.role)
                .bind(&row.review_roles)
                .bind(&row.types)
                .bind(&row.key_prefixes)
                .bind(&row.lookup)
                .bind(&row.hash)
                .bind(row.created_at)
                .bind(&row.created_by)
                .bind(row.expires_at)
        };
        if run!(insert().execute(&self.pool))?.rows_affected() == 1 {
            return Ok(true);
        }
        // Whether it is our own, stored by a try whose answer was lost.
        Ok(self.by_id(row.id.clone()).await?.is_some())
    }

    pub(crate) async fn by_lookup(&self, lookup: String) -> Result<Vec<Row>> {
        let query = || {
            sqlx::query_as::<_, Columns>(statements::BY_LOOKUP)
                .persistent(self.persistent)
                .bind(&lookup)
        };
        Ok(run!(query().fetch_all(&self.pool))?.into_iter().map(Row::from).collect())
    }

    pub(crate) async fn by_id(&self, id: String) -> Result<Option<Row>> {
        let query = || {
            sqlx::query_as::<_, Columns>(statements::BY_ID).persistent(self.persistent).bind(&id)
        };
        Ok(run!(query().fetch_optional(&self.pool))?.map(Row::from))
    }

    pub(crate) async fn list(&self, after: String, limit: i64) -> Result<Vec<Row>> {
        let query = || {
            sqlx::query_as::<_, Columns>(statements::LIST)
                .persistent(self.persistent)
                .bind(&after)
                .bind(limit)
        };
        Ok(run!(query().fetch_all(&self.pool))?.into_iter().map(Row::from).collect())
    }

    pub(crate) async fn revoke(&self, id: String, now: i64) -> Result<()> {
        let query =
            || sqlx::query(statements::REVOKE).persistent(self.persistent).bind(&id).bind(now);
        run!(query().execute(&self.pool)).map(|_| ())
    }

    pub(crate) async fn touch(&self, id: String, now: i64) -> Result<()> {
        let query =
            || sqlx::query(statements::TOUCH).persistent(self.persistent).bind(&id).bind(now);
        run!(query().execute(&self.pool)).map(|_| ())
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}
