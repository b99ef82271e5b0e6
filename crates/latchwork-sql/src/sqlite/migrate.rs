//! The steps that a database has seen, and the missing ones.

use sqlx::{Connection, SqliteConnection};

use super::error::explain;
use super::open::{BEGIN, Sqlite};
use crate::{Migration, Result};

/// Takes the steps of a layer that are missing, all or none. Many may do so at once: one does it.
///
/// Steps that the database has and this program does not know are fine: a newer program was here,
/// and steps only add.
///
/// # Errors
/// When the database cannot be written, or a step is wrong.
pub async fn migrate(sqlite: &Sqlite, layer: &str, steps: &[Migration]) -> Result<()> {
    let mut connection = sqlite.connect().await?;
    let done = run(&mut connection, layer, steps).await.map_err(explain);
    let _ = connection.close().await;
    done
}

async fn run(
    connection: &mut SqliteConnection,
    layer: &str,
    steps: &[Migration],
) -> sqlx::Result<()> {
    // By far the most common, and it needs no lock.
    let newest = steps.iter().map(|step| step.version).max().unwrap_or(0);
    if seen(connection, layer).await.is_ok_and(|seen| seen >= newest) {
        return Ok(());
    }
    let mut writing = connection.begin_with(BEGIN).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS latchwork_migrations (
             layer TEXT NOT NULL,
             version INTEGER NOT NULL,
             name TEXT NOT NULL,
             applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
             PRIMARY KEY (layer, version)
         ) WITHOUT ROWID",
    )
    .execute(&mut *writing)
    .await?;
    let seen = seen(&mut writing, layer).await?;
    for step in steps.iter().filter(|step| step.version > seen) {
        sqlx::raw_sql(step.sql).execute(&mut *writing).await?;
        sqlx::query("INSERT INTO latchwork_migrations (layer, version, name) VALUES (?1, ?2, ?3)")
            .bind(layer)
            .bind(step.version)
            .bind(step.name)
            .execute(&mut *writing)
            .await?;
        tracing::debug!(layer, step.version, step.name, "migrated");
    }
    writing.commit().await
}

/// The last step that was taken.
async fn seen(connection: &mut SqliteConnection, layer: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar(
        "SELECT coalesce(max(version), 0) FROM latchwork_migrations WHERE layer = ?1",
    )
    .bind(layer)
    .fetch_one(connection)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::Options;

    const ONE: Migration =
        Migration { version: 1, name: "one", sql: "CREATE TABLE latchwork_one (x INTEGER)" };
    const TWO: Migration =
        Migration { version: 2, name: "two", sql: "ALTER TABLE latchwork_one ADD y INTEGER" };

    async fn versions(sqlite: &Sqlite) -> Vec<(String, i64)> {
        sqlx::query_as("SELECT layer, version FROM latchwork_migrations ORDER BY 1, 2")
            .fetch_all(sqlite.readers())
            .await
            .expect("a table")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_may_start_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options::at(dir.path().join("a.db"));
        let start = |_| {
            let options = options.clone();
            tokio::spawn(async move {
                let sqlite = Sqlite::open(&options).await.expect("opened");
                migrate(&sqlite, "lock", &[ONE, TWO]).await.expect("migrated");
                sqlite
            })
        };
        for started in (0..8).map(start).collect::<Vec<_>>() {
            let sqlite = started.await.expect("no panic");
            assert_eq!(versions(&sqlite).await, [("lock".into(), 1), ("lock".into(), 2)]);
        }
    }

    #[tokio::test]
    async fn old_and_new_programs_live_side_by_side() {
        let dir = tempfile::tempdir().expect("a directory");
        let sqlite = Sqlite::open(&Options::at(dir.path().join("a.db"))).await.expect("opened");
        migrate(&sqlite, "lock", &[ONE]).await.expect("the old one");
        migrate(&sqlite, "lock", &[ONE, TWO]).await.expect("the new one");
        migrate(&sqlite, "lock", &[ONE]).await.expect("the old one again");
        migrate(&sqlite, "work", &[]).await.expect("another layer");
        assert_eq!(versions(&sqlite).await.len(), 2);
    }

    #[tokio::test]
    async fn a_wrong_step_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let sqlite = Sqlite::open(&Options::at(dir.path().join("a.db"))).await.expect("opened");
        let wrong = Migration { version: 2, name: "wrong", sql: "CREATE NONSENSE" };
        migrate(&sqlite, "lock", &[ONE, wrong]).await.expect_err("wrong");
        migrate(&sqlite, "lock", &[ONE, TWO]).await.expect("none of it was done");
    }
}
