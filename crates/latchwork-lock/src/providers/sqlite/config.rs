//! From an address or a pool to a running writer.

use std::sync::Arc;
use std::sync::mpsc::channel;

use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use sqlx::SqlitePool;
use tokio::sync::oneshot;

use super::boot::LocalProcess;
use super::error::{self, Failure, NAME};
use super::handle::WriterHandle;
use super::schema::{LAYER, STEPS};
use super::writer::{Writer, connect, version};
use crate::coordination::waiters::WaiterRegistry;
use crate::{Error, Moment, Result};

/// Where the database comes from.
pub(super) enum Source {
    File(Options),
    Pool(SqlitePool),
}

impl Source {
    /// Opens it on the thread that will use it, so that no runtime of the caller is needed.
    pub(super) async fn open(self) -> Result<WriterHandle> {
        const DURING: &str = "opening the database";
        let (tell, told) = oneshot::channel();
        let here = LocalProcess::new()
            .map_err(|e| Error::backend(NAME, DURING, e.to_string(), Some(Box::new(e))))?;
        let here = Arc::new(here);
        let (orders, queue) = channel();
        let waiters = Arc::new(WaiterRegistry::default());
        let handle = WriterHandle { here: here.clone(), waiters: waiters.clone(), orders };
        let no_thread = |e| Error::unavailable(NAME, DURING, format!("no thread: {e}"), None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(no_thread)?;
        let opened = async move {
            let sqlite = match self {
                Source::File(options) => Sqlite::open(&options).await?,
                Source::Pool(pool) => Sqlite::from_pool(&pool).await?,
            };
            migrate(&sqlite, LAYER, STEPS).await?;
            let direct = sqlite.direct().await?;
            let connection = connect(&direct)?;
            Ok::<_, Failure>(Writer {
                version: version(&connection)?,
                connection: Some(connection),
                waiters,
                waited: Default::default(),
                kept: Default::default(),
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
                Ok(writer) => {
                    let _ = tell.send(Ok(()));
                    writer.run();
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
        Ok(handle)
    }
}
