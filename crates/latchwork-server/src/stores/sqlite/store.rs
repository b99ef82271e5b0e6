//! The operations on the table.

use latchwork_sql::Result;
use latchwork_sql::sqlite::{Options, Sqlite, explain, migrate};

use super::schema;
use crate::stores::record::{Columns, Row};
use crate::stores::statements;

/// Tokens in an SQLite file.
#[derive(Clone)]
pub(crate) struct SqliteTokens(Sqlite);

impl SqliteTokens {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let sqlite = Sqlite::open(&Options::parse(url)?).await?;
        migrate(&sqlite, schema::LAYER, &schema::STEPS).await?;
        Ok(SqliteTokens(sqlite))
    }

    pub(crate) async fn news(&self) -> Result<(bool, i64)> {
        let found = sqlx::query_as(statements::NEWS).fetch_one(self.0.readers()).await;
        found.map_err(explain)
    }

    pub(crate) async fn insert(&self, row: Row) -> Result<bool> {
        let mut writing = self.0.begin().await?;
        sqlx::query(statements::FREE_NAME)
            .bind(&row.name)
            .bind(row.created_at)
            .execute(&mut *writing)
            .await
            .map_err(explain)?;
        let done = sqlx::query(statements::INSERT)
            .bind(row.id)
            .bind(row.name)
            .bind(row.role)
            .bind(row.review_roles)
            .bind(row.types)
            .bind(row.key_prefixes)
            .bind(row.lookup)
            .bind(row.hash)
            .bind(row.created_at)
            .bind(row.created_by)
            .bind(row.expires_at)
            .execute(&mut *writing)
            .await
            .map_err(explain)?;
        writing.commit().await.map_err(explain)?;
        Ok(done.rows_affected() == 1)
    }

    pub(crate) async fn by_lookup(&self, lookup: String) -> Result<Vec<Row>> {
        let query = sqlx::query_as::<_, Columns>(statements::BY_LOOKUP).bind(lookup);
        rows(query.fetch_all(self.0.readers()).await)
    }

    pub(crate) async fn by_id(&self, id: String) -> Result<Option<Row>> {
        let query = sqlx::query_as::<_, Columns>(statements::BY_ID).bind(id);
        let row = query.fetch_optional(self.0.readers()).await.map_err(explain)?;
        Ok(row.map(Row::from))
    }

    pub(crate) async fn list(&self, after: String, limit: i64) -> Result<Vec<Row>> {
        let query = sqlx::query_as::<_, Columns>(statements::LIST).bind(after).bind(limit);
        rows(query.fetch_all(self.0.readers()).await)
    }

    pub(crate) async fn revoke(&self, id: String, now: i64) -> Result<()> {
        let query = sqlx::query(statements::REVOKE).bind(id).bind(now);
        query.execute(self.0.writer()).await.map(|_| ()).map_err(explain)
    }

    pub(crate) async fn touch(&self, id: String, now: i64) -> Result<()> {
        let query = sqlx::query(statements::TOUCH).bind(id).bind(now);
        query.execute(self.0.writer()).await.map(|_| ()).map_err(explain)
    }

    pub(crate) async fn close(&self) {
        self.0.close().await;
    }
}

fn rows(found: sqlx::Result<Vec<Columns>>) -> Result<Vec<Row>> {
    Ok(found.map_err(explain)?.into_iter().map(Row::from).collect())
}
