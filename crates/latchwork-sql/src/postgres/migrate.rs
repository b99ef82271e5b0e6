//! The migration runner. It only adds, and any number of processes may start at once.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};

use super::{JobConnection, explain, in_time};
use crate::{Error, Migration, Result};

/// What every starting process takes for the length of its migrations: "latchwor" in ASCII.
const TURN: i64 = 0x6C61_7463_6877_6F72;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS latchwork_migrations (
    layer text NOT NULL,
    version bigint NOT NULL,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (layer, version)
)";

/// Names of layers are ours, and have no quotes: so it is one message, which passes any pooler.
fn newest_done(layer: &str) -> String {
    format!("SELECT coalesce(max(version), 0) FROM latchwork_migrations WHERE layer = '{layer}'")
}

const RECORD: &str = "INSERT INTO latchwork_migrations (layer, version, name) VALUES ($1, $2, $3)";

/// The same as SQL, for those who let nobody but themselves create tables: with the record of what
/// was done, so that nobody who starts then needs the right to create.
pub fn script(layer: &str, steps: &[Migration]) -> String {
    let mut script = format!("{TABLE};\n");
    for Migration { version, name, sql } in steps {
        script += sql;
        // Names of layers and steps are ours, and have no quotes.
        script += &format!(
            "\nINSERT INTO latchwork_migrations (layer, version, name)\n    \
             VALUES ('{layer}', {version}, '{name}');\n"
        );
    }
    script
}

/// Brings the schema of a layer up to date, in one transaction: all of it or nothing.
///
/// # Errors
/// Permanent for missing rights; what the server says otherwise.
pub async fn migrate(pool: &PgPool, layer: &str, steps: &[Migration]) -> Result<()> {
    let newest = steps.iter().map(|step| step.version).max().unwrap_or(0);
    // Most starts find everything there, and need no right to create.
    if done(pool, layer).await.map_err(explain)? >= newest {
        return Ok(());
    }
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL client_min_messages = warning; \
         SELECT pg_advisory_xact_lock({TURN})"
    );
    let mut tx = pool.begin_with(AssertSqlSafe(begin)).await.map_err(explain)?;
    sqlx::raw_sql(TABLE).execute(&mut *tx).await.map_err(explain)?;
    let row = sqlx::raw_sql(AssertSqlSafe(newest_done(layer))).fetch_one(&mut *tx).await;
    let done: i64 = row.and_then(|row| row.try_get(0)).map_err(explain)?;
    for step in steps.iter().filter(|step| step.version > done) {
        sqlx::raw_sql(step.sql).execute(&mut *tx).await.map_err(|e| {
            let cause = explain(e);
            let message =
                format!("migration {} of {layer} ({}) failed: {cause}", step.version, step.name);
            Error { message, ..cause }
        })?;
        sqlx::query(RECORD)
            .bind(layer)
            .bind(step.version)
            .bind(step.name)
            .persistent(false)
            .execute(&mut *tx)
            .await
            .map_err(explain)?;
    }
    tx.commit().await.map_err(explain)
}

/// The newest step that was applied; 0 where there is no table of them.
async fn done(pool: &PgPool, layer: &str) -> sqlx::Result<i64> {
    let mut connection = JobConnection::open(pool).await?;
    let row =
        in_time(sqlx::raw_sql(AssertSqlSafe(newest_done(layer))).fetch_one(&mut *connection)).await;
    connection.mark_answered(&row);
    connection.return_to_pool().await;
    match row {
        Ok(row) => row.try_get(0),
        Err(error) if is_missing_table(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

fn is_missing_table(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|told| told.code()).as_deref() == Some("42P01")
}
