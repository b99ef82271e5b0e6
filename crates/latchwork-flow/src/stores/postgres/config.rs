//! From an address or a pool to a store.

use latchwork_sql::postgres::{self, Settings};
use sqlx::postgres::PgPool;

use super::record::Rows;
use super::{error, schema};
use crate::{Error, Result};

const OPENING: &str = "opening the database";

/// Opens what `postgres://…` names.
pub(super) async fn connect(address: &str) -> Result<Rows> {
    let settings = Settings::default();
    let options = postgres::options(address, &settings)
        .map_err(|e| Error::invalid_argument("url", e.message))?;
    // The address alone may know that a pooler stands between, and the driver does not tell.
    let told = address.contains("statement-cache-capacity=0");
    let (pool, server) =
        postgres::open(options, &settings).await.map_err(|e| error::sql(OPENING, e))?;
    rows(pool, !told && !server.lends_sessions).await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: PgPool) -> Result<Rows> {
    let server = postgres::check(&pool).await.map_err(|e| error::sql(OPENING, e))?;
    rows(pool, !server.lends_sessions).await
}

async fn rows(pool: PgPool, own_sessions: bool) -> Result<Rows> {
    postgres::migrate(&pool, schema::LAYER, &schema::MIGRATIONS)
        .await
        .map_err(|e| error::sql(OPENING, e))?;
    Ok(Rows::new(pool, own_sessions))
}
