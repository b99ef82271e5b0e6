//! From an address or a pool to a provider.

use std::sync::Arc;

use latchwork_sql::mysql::{self, Lines, Settings};
use sqlx::mysql::MySqlPool;

use super::provider::MySqlLockProvider;
use super::store::{BACKGROUND, Store};
use super::{error, schema};
use crate::desk::Desk;
use crate::{Error, Result, SystemClock};

const OPENING: &str = "opening the database";

/// Opens what `mysql://…` names.
pub(super) async fn connect(address: &str) -> Result<MySqlLockProvider> {
    let options = mysql::options(address).map_err(|e| Error::invalid_argument("url", e.message))?;
    BACKGROUND
        .run(OPENING, async move {
            let pool = mysql::open(options, &Settings::default())
                .await
                .map_err(|e| error::sql(OPENING, e))?;
            provider(&pool, Lines::own(pool.clone())).await
        })
        .await
}

/// Uses a pool that the caller has made.
pub(super) async fn from_pool(pool: MySqlPool) -> Result<MySqlLockProvider> {
    BACKGROUND
        .run(OPENING, async move {
            mysql::check(&pool).await.map_err(|e| error::sql(OPENING, e))?;
            provider(&pool, Lines::lent(pool.clone())).await
        })
        .await
}

async fn provider(pool: &MySqlPool, lines: Lines) -> Result<MySqlLockProvider> {
    mysql::migrate(pool, schema::LAYER, &schema::MIGRATIONS)
        .await
        .map_err(|e| error::sql(OPENING, e))?;
    Ok(MySqlLockProvider::of(Store::new(lines, SystemClock::shared(), Arc::new(Desk::default()))))
}
