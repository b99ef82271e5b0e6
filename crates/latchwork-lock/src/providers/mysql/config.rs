//! From an address or a pool to a store.

use latchwork_sql::mysql::{self, JobConnections, Settings};
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
    Ok(Store::new(connections, renewals, SystemClock::shared()))
}
