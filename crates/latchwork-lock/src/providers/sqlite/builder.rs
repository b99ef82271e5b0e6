//! From a database to a provider with its thread.

use std::sync::Arc;
use std::sync::mpsc::channel;

use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use sqlx::SqlitePool;
use tokio::sync::oneshot;

use super::boot::Here;
use super::error::{self, NAME};
use super::provider::SqliteLockProvider;
use super::schema::{LAYER, STEPS};
use super::watcher::{Failure, Watcher, connect, version};
use crate::{Error, Moment, Result};

/// Where the database comes from.
pub(super) enum Source {
    File(Options),
    Pool(SqlitePool),
}

impl SqliteLockProvider {
    /// Opens it on the thread that will use it, so that no runtime of the caller is needed.
    pub(super) async fn start(source: Source) -> Result<Self> {
        const DURING: &str = "opening the database";
        let (tell, told) = oneshot::channel();
        let here = Here::new()
            .map_err(|e| Error::backend(NAME, DURING, e.to_string(), Some(Box::new(e))))?;
        let here = Arc::new(here);
        let (orders, queue) = channel();
        let provider = SqliteLockProvider { here: here.clone(), orders };
        let no_thread = |e| Error::unavailable(NAME, DURING, format!("no thread: {e}"), None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(no_thread)?;
        let opened = async move {
            let sqlite = match source {
                Source::File(options) => Sqlite::open(&options).await?,
                Source::Pool(pool) => Sqlite::from_pool(&pool).await?,
            };
            migrate(&sqlite, LAYER, STEPS).await?;
            let direct = sqlite.direct().await?;
            let connection = connect(&direct)?;
            Ok::<_, Failure>(Watcher {
                version: version(&connection)?,
                connection: Some(connection),
                desk: Default::default(),
                later: Default::default(),
                failed: Moment::default(),
                beat: Moment::default(),
                ticked: Moment::default(),
                made: 0,
                swept: Moment::default(),
                sqlite,
                direct,
                here,
                orders: queue,
            })
        };
        let run = move || {
            let opened = runtime.block_on(opened);
            // Only opening needs it.
            drop(runtime);
            match opened {
                Ok(watcher) => {
                    let _ = tell.send(Ok(()));
                    watcher.run();
                }
                Err(failure) => {
                    let _ = tell.send(Err(error::of(DURING, &failure)));
                }
            }
        };
        std::thread::Builder::new()
            .name("latchwork-sqlite".into())
            .spawn(run)
            .map_err(no_thread)?;
        told.await.unwrap_or_else(|_| Err(error::gone(DURING)))?;
        Ok(provider)
    }
}
