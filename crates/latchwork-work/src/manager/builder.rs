//! From order types and an address to a manager.

use std::sync::Arc;

use latchwork_lock::SystemClock;
use parking_lot::Mutex;

use super::wake::Wake;
use super::{Inner, WorkManager};
use crate::store::{Store, params};
use crate::{Error, OrderTypes, Result, TransitionTables};

/// Settings of a [`WorkManager`].
pub struct WorkManagerBuilder {
    types: OrderTypes,
    tables: TransitionTables,
    max_leases_per_agent: Option<u32>,
}

impl WorkManagerBuilder {
    pub(super) fn new(types: OrderTypes) -> Self {
        let tables = TransitionTables::default();
        WorkManagerBuilder { types, tables, max_leases_per_agent: None }
    }

    /// Other transition tables than the default ones. All programs on one database must agree.
    #[must_use]
    pub fn tables(mut self, tables: TransitionTables) -> Self {
        self.tables = tables;
        self
    }

    /// How many items one agent may have leased at a time, over all processes; no limit unless told.
    #[must_use]
    pub fn max_leases_per_agent(mut self, leases: u32) -> Self {
        self.max_leases_per_agent = Some(leases);
        self
    }

    /// Opens a database by its address, and makes the tables where they are missing:
    /// `sqlite:///directory/file.db` or `postgres://user:password@host:port/database`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`StoreBackend`](crate::ErrorKind::StoreBackend) for a database that cannot be used,
    /// [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable) when it does not answer.
    pub async fn connect(self, url: &str) -> Result<WorkManager> {
        let scheme = url.split(':').next().unwrap_or_default();
        match scheme {
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let store = crate::stores::sqlite::SqliteStore::connect(url).await?;
                self.finish(Store::Sqlite(Box::new(store))).await
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let store = crate::stores::postgres::PostgresStore::connect(url).await?;
                self.finish(Store::Postgres(store)).await
            }
            #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
            "sqlite" | "postgres" | "postgresql" => {
                let reason =
                    format!("this build has no {scheme}; turn on the feature of that name");
                Err(Error::invalid("url", reason))
            }
            // The address may hold a password, and is not shown.
            _ => {
                let reason = "orders are kept in sqlite:///file.db or postgres://host/database";
                Err(Error::invalid("url", reason))
            }
        }
    }

    /// Uses the database of the caller's own pool, over connections of its own.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "sqlite")]
    pub async fn sqlite_pool(self, pool: &sqlx::SqlitePool) -> Result<WorkManager> {
        let store = crate::stores::sqlite::SqliteStore::from_pool(pool).await?;
        self.finish(Store::Sqlite(Box::new(store))).await
    }

    /// The same by another clock, for tests that set the wall clock.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "sqlite")]
    #[doc(hidden)]
    pub async fn connect_with_clock(
        self,
        url: &str,
        clock: Arc<dyn latchwork_lock::Clock>,
    ) -> Result<WorkManager> {
        let store = crate::stores::sqlite::SqliteStore::connect(url).await?;
        let store = store.with_clock(clock).await?;
        self.finish(Store::Sqlite(Box::new(store))).await
    }

    /// Uses the caller's own pool.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    #[cfg(feature = "postgres")]
    pub async fn postgres_pool(self, pool: sqlx::PgPool) -> Result<WorkManager> {
        let store = crate::stores::postgres::PostgresStore::from_pool(pool).await?;
        self.finish(Store::Postgres(store)).await
    }

    async fn finish(self, store: Store) -> Result<WorkManager> {
        let WorkManagerBuilder { types, tables, max_leases_per_agent } = self;
        if max_leases_per_agent == Some(0) {
            let reason = "zero: an agent could never lease an item";
            return Err(Error::invalid("max_leases_per_agent", reason));
        }
        let wake = Wake::new(&store);
        let clock = SystemClock::shared();
        let inner = Inner {
            store,
            types,
            tables,
            max_leases_per_agent,
            wake,
            clock,
            inputs: Default::default(),
            promoted_at: Mutex::default(),
        };
        let manager = WorkManager { inner: Arc::new(inner) };
        manager.store_types().await?;
        Ok(manager)
    }
}

impl WorkManager {
    /// Keeps each version of the types' schemas, so that an old order can be understood later.
    async fn store_types(&self) -> Result<()> {
        let text = |value: &serde_json::Value| value.to_string();
        super::transact!(self, session => {
            for known in self.types().iter() {
                let schemas = serde_json::json!({
                    "payload": known.payload_schema(),
                    "input": known.input_schema(),
                    "result": known.result_schema(),
                });
                let settings = serde_json::to_value(known.settings()).unwrap_or_default();
                let version = i64::from(known.version());
                let values = params![known.name(), version, text(&schemas), text(&settings)];
                session.execute(session.sql().put_type, values).await?;
            }
            Ok(())
        })
    }

    /// The tables of a database as SQL: `sqlite` or `postgres`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for another one.
    pub fn schema(database: &str) -> Result<String> {
        match database {
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(crate::stores::sqlite::SqliteStore::schema()),
            #[cfg(feature = "postgres")]
            "postgres" => Ok(crate::stores::postgres::PostgresStore::schema()),
            _ => Err(Error::invalid("database", "this build has no such database")),
        }
    }
}
