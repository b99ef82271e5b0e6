//! From an address or a pool to a provider.

use std::sync::Arc;

use latchwork_sql::postgres::{self, Settings};
use sqlx::postgres::PgPool;

use super::provider::PostgresLockProvider;
use super::store::{BACKGROUND, Store};
use super::{error, schema};
use crate::desk::Desk;
use crate::{Error, Result, SystemClock};

const OPENING: &str = "opening the database";

/// Opens what `postgres://…` names.
pub(super) async fn connect(address: &str) -> Result<PostgresLockProvider> {
    let settings = Settings::default();
    let options = postgres::options(address, &settings)
        .map_err(|e| Error::invalid_argument("url", e.message))?;
    // The address alone may know that a pooler stands between, and the driver does not tell.
    let told = url::Url::parse(address).is_ok_and(|url| {
        url.query_pairs().any(|pair| pair == ("statement-cache-capacity".into(), "0".into()))
    });
    BACKGROUND
        .run(OPENING, async move {
            let (pool, server) =
                postgres::open(options, &settings).await.map_err(|e| error::sql(OPENING, e))?;
            provider(pool, !told && !server.lends_sessions).await
        })
        .await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: PgPool) -> Result<PostgresLockProvider> {
    BACKGROUND
        .run(OPENING, async move {
            let server = postgres::check(&pool).await.map_err(|e| error::sql(OPENING, e))?;
            provider(pool, !server.lends_sessions).await
        })
        .await
}

async fn provider(pool: PgPool, own_sessions: bool) -> Result<PostgresLockProvider> {
    postgres::migrate(&pool, schema::LAYER, &schema::MIGRATIONS)
        .await
        .map_err(|e| error::sql(OPENING, e))?;
    let store = Store::new(pool, own_sessions, SystemClock::shared(), Arc::new(Desk::default()));
    if let Err(error) = store.raise_fences().await {
        // It needs a right that locking does not, and is for the day after a disaster only.
        tracing::debug!(%error, "the fences were not compared with the clock");
    }
    Ok(PostgresLockProvider::of(store))
}
