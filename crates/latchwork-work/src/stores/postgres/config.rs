//! From an address or a pool to a store.

use latchwork_sql::postgres::{self, Settings};
use sqlx::postgres::PgPool;

use super::store::PostgresStore;
use super::{error, schema};
use crate::{Error, Result};

/// Opens what `postgres://…` names.
pub(super) async fn connect(address: &str) -> Result<PostgresStore> {
    let settings = Settings::default();
    let options =
        postgres::options(address, &settings).map_err(|e| Error::invalid("url", e.message))?;
    // The address alone may know that a pooler stands between, and the driver does not tell.
    let told = address.contains("statement-cache-capacity=0");
    let (pool, server) = postgres::open(options, &settings).await.map_err(error::sql)?;
    open(pool, told || server.lends_sessions).await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: PgPool) -> Result<PostgresStore> {
    let server = postgres::check(&pool).await.map_err(error::sql)?;
    open(pool, server.lends_sessions).await
}

async fn open(pool: PgPool, lends_sessions: bool) -> Result<PostgresStore> {
    postgres::migrate(&pool, schema::LAYER, &schema::MIGRATIONS).await.map_err(error::sql)?;
    Ok(PostgresStore::new(pool, lends_sessions))
}
