//! The migration runner. It only adds, and any number of processes may start at once.

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Row};

use super::explain;
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

const DONE: &str = "SELECT coalesce(max(version), 0) FROM latchwork_migrations WHERE layer = $1";

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
    if done(pool, layer).await.unwrap_or(0) >= newest {
        return Ok(());
    }
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL client_min_messages = warning; \
         SELECT pg_advisory_xact_lock({TURN})"
    );
    let mut tx = pool.begin_with(AssertSqlSafe(begin)).await.map_err(explain)?;
    sqlx::raw_sql(TABLE).execute(&mut *tx).await.map_err(explain)?;
    let row = sqlx::query(DONE).bind(layer).persistent(false).fetch_one(&mut *tx).await;
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

/// The newest step that was applied. In a transaction, since behind a pooler the parts of one
/// statement may otherwise meet different servers.
async fn done(pool: &PgPool, layer: &str) -> sqlx::Result<i64> {
    let mut tx = pool.begin().await?;
    let row = sqlx::query(DONE).bind(layer).persistent(false).fetch_one(&mut *tx).await?;
    let done = row.try_get(0)?;
    tx.commit().await?;
    Ok(done)
}
