//! From an address or a pool to a store.

use latchwork_sql::mysql::{self, JobConnections, Settings};
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlPool;

use super::store::{BACKGROUND, Store};
use super::{error, schema};
use crate::{Error, Result, SystemClock};

const OPENING: &str = "opening the database";

/// Opens what `mysql://…` names.
pub(super) async fn connect(address: &str) -> Result<Store> {
    let options = mysql::options(address).map_err(|e| Error::invalid_argument("url", e.message))?;
    let opened = async move {
        let pool =
            mysql::open(options, &Settings::default()).await.map_err(|e| error::sql(OPENING, e))?;
        let connections = JobConnections::own(pool.clone());
        store(&pool, connections.clone(), connections).await
    };
    BACKGROUND.run(OPENING, opened).await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: MySqlPool) -> Result<Store> {
    let opened = async move {
        mysql::check(&pool).await.map_err(|e| error::sql(OPENING, e))?;
        let renewals = JobConnections::own(mysql::separate(&pool, 1));
        store(&pool, JobConnections::lent(pool.clone()), renewals).await
    };
    BACKGROUND.run(OPENING, opened).await
}

async fn store(
    pool: &MySqlPool,
    connections: JobConnections,
    renewals: JobConnections,
) -> Result<Store> {
    mysql::migrate(pool, schema::LAYER, &schema::MIGRATIONS)
        .await
        .map_err(|e| error::sql(OPENING, e))?;
    check_rights(pool).await?;
    Ok(Store::new(connections, renewals, SystemClock::shared()))
}

/// Refuses a user who has some of the rights that locks need: all would go well until somebody waits, or
/// a lease must be given back. One who may only read can look at the locks, and is refused a lease.
async fn check_rights(pool: &MySqlPool) -> Result<()> {
    let attempts: Vec<_> = schema::attempts().collect();
    // In one message, since nearly everybody has them all.
    let all = attempts.iter().map(|(_, attempt)| &**attempt).collect::<Vec<_>>().join("; ");
    match sqlx::raw_sql(AssertSqlSafe(all)).execute(pool).await {
        Ok(_) => return Ok(()),
        Err(error) if error::is_right_missing(&error) => {}
        Err(error) => return Err(error::driver(OPENING, error)),
    }
    let mut missing = Vec::new();
    for (right, attempt) in &attempts {
        match sqlx::raw_sql(AssertSqlSafe(attempt.clone())).execute(pool).await {
            Ok(_) => {}
            Err(error) if error::is_right_missing(&error) => missing.push(&**right),
            Err(error) => return Err(error::driver(OPENING, error)),
        }
    }
    if missing.is_empty() || missing.len() == attempts.len() {
        return Ok(());
    }
    Err(error::rights(OPENING, &missing.join(", ")))
}
