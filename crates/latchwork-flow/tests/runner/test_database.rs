//! A database of a test's own, with contexts, locks and a ledger of what was really done.

use std::any::Any;
use std::sync::Arc;

use latchwork_flow::{
    Contexts, EntityKey, JsonState, PostgresContextStore, SqliteContextStore, StateMachine,
    StateMachineBuilder,
};
use latchwork_lock::provider::Token;
use latchwork_lock::{LockConfig, Locks, PostgresLockProvider, SqliteLockProvider};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::secs;

/// Where a test happens. The address is all that a child needs.
pub(crate) struct TestDatabase {
    pub(crate) address: String,
    _directory: Option<tempfile::TempDir>,
}

impl TestDatabase {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let address = format!("sqlite://{}", directory.path().join("room.db").display());
        TestDatabase { address, _directory: Some(directory) }
    }

    pub(crate) async fn postgres() -> Self {
        let server = std::env::var("LATCHWORK_TEST_POSTGRES").expect("looked at before");
        let name = format!("room_{:x}", Token::random().expose());
        let mut admin = PgConnection::connect(&server).await.expect("the server is there");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
        made.execute(&mut admin).await.expect("a room of its own");
        TestDatabase { address: format!("{server}?options[search_path]={name}"), _directory: None }
    }

    pub(crate) async fn enter(&self) -> Inside {
        Inside::enter(&self.address).await
    }
}

/// The database as one process sees it.
#[derive(Clone)]
pub(crate) struct Inside {
    pub(crate) contexts: Contexts,
    pub(crate) locks: Locks,
    pub(crate) ledger: Ledger,
}

impl Inside {
    pub(crate) async fn enter(address: &str) -> Self {
        Inside {
            ledger: Ledger::open(address).await,
            contexts: Contexts::connect(address).await.expect("a store"),
            locks: Locks::connect(address).await.expect("locks"),
        }
    }

    /// The same, but contexts, locks and the test share a pool that has one connection.
    pub(crate) async fn with_pool_of_one(address: &str) -> (Self, PoolOfOne) {
        let ledger = Ledger::open(address).await;
        let (contexts, locks, pool) = if address.starts_with("sqlite:") {
            let pool = SqlitePoolOptions::new().max_connections(1).connect(address).await;
            let pool = pool.expect("a pool");
            let contexts = SqliteContextStore::from_pool(&pool).await.expect("a store");
            let locks = SqliteLockProvider::from_pool(&pool).await.expect("locks");
            (Contexts::new(contexts), Locks::new(locks), Pool::Sqlite(pool))
        } else {
            let pool = PgPoolOptions::new().max_connections(1).connect(address).await;
            let pool = pool.expect("a pool");
            let contexts = PostgresContextStore::from_pool(pool.clone()).await.expect("a store");
            let locks = PostgresLockProvider::from_pool(pool.clone()).await.expect("locks");
            (Contexts::new(contexts), Locks::new(locks), Pool::Postgres(pool))
        };
        (Inside { ledger, contexts, locks }, PoolOfOne(Arc::new(pool)))
    }

    /// A machine whose processes count as dead after two seconds.
    pub(crate) fn builder(&self) -> StateMachineBuilder<JsonState> {
        StateMachine::<JsonState>::builder("crash")
            .store(self.contexts.clone())
            .locks(&self.locks, EntityKey::new())
            .lock_config(LockConfig { ttl: secs(20), ..LockConfig::default() })
            .run_lease(secs(2))
    }
}

/// A pool with one connection.
#[derive(Clone)]
pub(crate) struct PoolOfOne(Arc<Pool>);

impl PoolOfOne {
    /// Its connection; others have none until it is dropped.
    pub(crate) async fn occupy(&self) -> Box<dyn Any + Send> {
        match &*self.0 {
            Pool::Sqlite(pool) => Box::new(pool.acquire().await.expect("the connection")),
            Pool::Postgres(pool) => Box::new(pool.acquire().await.expect("the connection")),
        }
    }
}

/// What was really done: a row for each time, not for each key.
#[derive(Clone)]
pub(crate) struct Ledger(Arc<Pool>);

enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// One thing that was done.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    #[expect(dead_code, reason = "for the reader of a failure")]
    pub(crate) entity: String,
    pub(crate) action: String,
    pub(crate) key: String,
    pub(crate) fence: i64,
    pub(crate) process: i64,
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effects (entity TEXT NOT NULL, \
    action TEXT NOT NULL, key TEXT NOT NULL, fence BIGINT NOT NULL, process BIGINT NOT NULL)";

/// Refused for a write with an older fence than one before.
const NOTE: &str = "INSERT INTO effects (entity, action, key, fence, process) \
    SELECT $1, $2, $3, $4, $5 WHERE NOT EXISTS \
    (SELECT 1 FROM effects WHERE entity = $1 AND fence > $4)";

const ALL: &str = "SELECT entity, action, key, fence, process FROM effects";

impl Ledger {
    async fn open(address: &str) -> Self {
        let pool = if let Some(path) = address.strip_prefix("sqlite://") {
            let options = SqliteConnectOptions::new()
                .filename(path)
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(secs(20));
            let pool = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
            Pool::Sqlite(pool)
        } else {
            Pool::Postgres(PgPool::connect_lazy(address).expect("an address"))
        };
        // Of two who create it together PostgreSQL refuses one, which then finds it there.
        let mut made = Ok(());
        for _ in 0..2 {
            made = match &pool {
                Pool::Sqlite(pool) => sqlx::raw_sql(TABLE).execute(pool).await.map(drop),
                Pool::Postgres(pool) => sqlx::raw_sql(TABLE).execute(pool).await.map(drop),
            };
            if made.is_ok() {
                break;
            }
        }
        made.expect("the table is there");
        Ledger(Arc::new(pool))
    }

    /// Notes that it was done; false when a newer fence has been here.
    pub(crate) async fn note(&self, entity: &str, action: &str, key: &str, fence: u64) -> bool {
        let (fence, process) = (fence.cast_signed(), i64::from(std::process::id()));
        let done = match &*self.0 {
            Pool::Sqlite(pool) => {
                let query = sqlx::query(NOTE).bind(entity).bind(action).bind(key);
                let query = query.bind(fence).bind(process);
                query.execute(pool).await.map(|done| done.rows_affected())
            }
            Pool::Postgres(pool) => {
                let query = sqlx::query(NOTE).bind(entity).bind(action).bind(key);
                let query = query.bind(fence).bind(process);
                query.execute(pool).await.map(|done| done.rows_affected())
            }
        };
        done.expect("noted") == 1
    }

    pub(crate) async fn effects(&self) -> Vec<Effect> {
        type Row = (String, String, String, i64, i64);
        let found: sqlx::Result<Vec<Row>> = match &*self.0 {
            Pool::Sqlite(pool) => sqlx::query_as(ALL).fetch_all(pool).await,
            Pool::Postgres(pool) => sqlx::query_as(ALL).fetch_all(pool).await,
        };
        let effects = found.expect("read").into_iter();
        effects
            .map(|(entity, action, key, fence, process)| Effect {
                entity,
                action,
                key,
                fence,
                process,
            })
            .collect()
    }

    pub(crate) async fn of(&self, action: &str) -> Vec<Effect> {
        let all = self.effects().await;
        all.into_iter().filter(|effect| effect.action == action).collect()
    }
}
