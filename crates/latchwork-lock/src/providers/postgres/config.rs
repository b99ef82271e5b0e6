//! From an address or a pool to a store.

use latchwork_sql::postgres::{self, Settings};
use sqlx::postgres::PgPool;

use super::store::{BACKGROUND, Store};
use super::{error, schema};
use crate::{Error, Result, SystemClock};

const OPENING: &str = "opening the database";

/// Opens what `postgres://…` names.
pub(super) async fn connect(address: &str) -> Result<Store> {
    let settings = Settings::default();
    let options = postgres::options(address, &settings)
        .map_err(|e| Error::invalid_argument("url", e.message))?;
    // Only the address may tell that there is a pooler in between.
    let is_pooled = url::Url::parse(address).is_ok_and(|url| {
        url.query_pairs().any(|pair| pair == ("statement-cache-capacity".into(), "0".into()))
    });
    BACKGROUND
        .run(OPENING, async move {
            let (pool, server) =
                postgres::open(options, &settings).await.map_err(|e| error::sql(OPENING, e))?;
            store(pool.clone(), pool, !is_pooled && !server.lends_sessions).await
        })
        .await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: PgPool) -> Result<Store> {
    BACKGROUND
        .run(OPENING, async move {
            let server = postgres::check(&pool).await.map_err(|e| error::sql(OPENING, e))?;
            let renewals = postgres::separate(&pool, 1);
            store(pool, renewals, !server.lends_sessions).await
        })
        .await
}

async fn store(pool: PgPool, renewals: PgPool, own_sessions: bool) -> Result<Store> {
    postgres::migrate(&pool, schema::LAYER, &schema::MIGRATIONS)
        .await
        .map_err(|e| error::sql(OPENING, e))?;
    let store = Store::new(pool, renewals, own_sessions, SystemClock::shared());
    // Fences that are not compared with the clock go back after a restore, so this is no option.
    match store.raise_fences().await.map_err(|e| error::driver(OPENING, e))? {
        None => Ok(store),
        Some(missing) => Err(error::rights(OPENING, &missing)),
    }
}
