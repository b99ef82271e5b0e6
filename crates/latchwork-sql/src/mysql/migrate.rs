//! The migration runner. It only adds, and any number of processes may start at once.

use std::time::Duration;

use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlPool};
use tokio::time::timeout;

use super::error::is_missing_table;
use super::{JobConnection, JobConnections, explain, in_time};
use crate::{Error, Migration, Result};

/// What every starting process takes for the length of its migrations; of one database only,
/// since such names are the whole server's.
const TURN: &str = "SELECT GET_LOCK(CONCAT('latchwork:', SHA1(DATABASE())), 60)";
const TURN_IS_OVER: &str = "SELECT RELEASE_LOCK(CONCAT('latchwork:', SHA1(DATABASE())))";

/// How long all of it may take: longer than the wait for the turn.
const LIMIT: Duration = Duration::from_secs(90);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS latchwork_migrations (
    layer VARBINARY(64) NOT NULL,
    version BIGINT NOT NULL,
    name VARBINARY(255) NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (layer, version)
) ENGINE=InnoDB";

const DONE: &str = "SELECT MAX(version) FROM latchwork_migrations WHERE layer = ?";

const RECORD: &str = "INSERT IGNORE INTO latchwork_migrations (layer, version, name, applied_at) \
    VALUES (?, ?, ?, UTC_TIMESTAMP(6))";

/// All that [`migrate`] would do, as text for those who do it by hand: afterwards it finds everything
/// there, and needs no right to create.
pub fn script(layer: &str, steps: &[Migration]) -> String {
    let mut script = format!("{TABLE};\n\n");
    for Migration { version, name, sql } in steps {
        script += sql;
        // Names of layers and steps are ours, and have no quotes.
        script += &format!(
            "\nINSERT IGNORE INTO latchwork_migrations (layer, version, name, applied_at)\n    \
             VALUES ('{layer}', {version}, '{name}', UTC_TIMESTAMP(6));\n"
        );
    }
    script
}

/// Brings the schema of a layer up to date.
///
/// A table is committed as soon as it is made, so steps must be harmless when they are repeated
/// (`IF NOT EXISTS`, `INSERT IGNORE`): what an interrupted start left half done, the next one ends.
/// They come in turn where the server has locks by name; a cluster may refuse those, and then the
/// steps themselves are enough.
///
/// # Errors
/// Permanent for missing rights; what the server says otherwise.
pub async fn migrate(pool: &MySqlPool, layer: &str, steps: &[Migration]) -> Result<()> {
    let newest = steps.iter().map(|step| step.version).max().unwrap_or(0);
    let lines = JobConnections::lent(pool.clone());
    let mut line = JobConnection::open(&lines).await.map_err(explain)?;
    // Most starts find everything there, and need no right to create.
    let found = in_time(done(&mut line, layer)).await;
    line.mark_answered(&found);
    match found {
        Ok(found) if found >= newest => return Ok(()),
        Ok(_) => {}
        Err(error) if is_missing_table(&error) => {}
        // Whatever else it is, it says nothing about the tables.
        Err(error) => return Err(explain(error)),
    }
    drop(line);
    // Not given back whatever becomes of it, so that nobody gets a session that has the turn.
    let mut line = JobConnection::open(&lines).await.map_err(explain)?;
    timeout(LIMIT, make(&mut line, layer, steps))
        .await
        .map_err(|_| Error::temporary("the tables were not made in time", None))?
}

async fn make(connection: &mut MySqlConnection, layer: &str, steps: &[Migration]) -> Result<()> {
    if let Err(error) = sqlx::raw_sql(TURN).execute(&mut *connection).await {
        tracing::debug!(%error, "migrating without the migration lock");
    }
    sqlx::raw_sql(TABLE).execute(&mut *connection).await.map_err(explain)?;
    let done = done(connection, layer).await.map_err(explain)?;
    for step in steps.iter().filter(|step| step.version > done) {
        sqlx::raw_sql(step.sql).execute(&mut *connection).await.map_err(|e| {
            let cause = explain(e);
            let message =
                format!("migration {} of {layer} ({}) failed: {cause}", step.version, step.name);
            Error { message, ..cause }
        })?;
        sqlx::query(RECORD)
            .bind(layer)
            .bind(step.version)
            .bind(step.name)
            .execute(&mut *connection)
            .await
            .map_err(explain)?;
    }
    let _ = sqlx::raw_sql(TURN_IS_OVER).execute(&mut *connection).await;
    Ok(())
}

/// The newest step that was applied.
async fn done(connection: &mut MySqlConnection, layer: &str) -> sqlx::Result<i64> {
    let row = sqlx::query(DONE).bind(layer).fetch_one(&mut *connection).await?;
    Ok(row.try_get::<Option<i64>, _>(0)?.unwrap_or(0))
}
