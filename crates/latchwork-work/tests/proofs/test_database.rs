//! A database for one proof, and short words for what most of them do.

use latchwork_work::{
    Actor, ApplySettings, DynamicOrderType, Maintenance, MaintenanceSettings, Order, OrderTypes,
    PlannedItem, Proposal, RetryPolicy, TypeSettings, WorkClient, WorkManager,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};

use crate::millis;

pub(crate) struct TestDatabase {
    pub(crate) url: String,
    _directory: Option<tempfile::TempDir>,
}

impl TestDatabase {
    pub(crate) fn sqlite() -> TestDatabase {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url =
            format!("sqlite://{}?synchronous=normal", directory.path().join("work.db").display());
        TestDatabase { url, _directory: Some(directory) }
    }

    pub(crate) async fn postgres() -> TestDatabase {
        let server = std::env::var("LATCHWORK_TEST_POSTGRES").expect("a server");
        let id = latchwork_work::OrderId::new(chrono::Utc::now());
        let name = format!("proof_{}", id.as_uuid().simple());
        let mut admin = PgConnection::connect(&server).await.expect("the server is there");
        let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
        made.execute(&mut admin).await.expect("a schema");
        TestDatabase { url: format!("{server}?options[search_path]={name}"), _directory: None }
    }

    pub(crate) fn at(url: String) -> TestDatabase {
        TestDatabase { url, _directory: None }
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite")
    }

    pub(crate) async fn manager(&self) -> WorkManager {
        WorkManager::builder(types()).connect(&self.url).await.expect("it opens")
    }

    /// A connection that no manager knows of.
    pub(crate) async fn pg(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connected")
    }

    pub(crate) async fn sqlite_connection(&self) -> SqliteConnection {
        let url = self.url.split('?').next().expect("an address");
        SqliteConnection::connect(url).await.expect("connected")
    }

    /// Meddles with the tables, and tells how many rows that changed.
    pub(crate) async fn run(&self, sql: &str) -> u64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_sqlite() {
            let mut connection = self.sqlite_connection().await;
            let done = sqlx::query(sql).execute(&mut connection).await;
            return done.expect("legal SQL").rows_affected();
        }
        sqlx::query(sql).execute(&mut self.pg().await).await.expect("legal SQL").rows_affected()
    }

    /// Cleans up the tables of this test and counts their rows for the planner. Without their names
    /// PostgreSQL would do so with those of all other tests as well.
    pub(crate) async fn vacuum(&self) {
        let mut connection = self.pg().await;
        let tables = "SELECT string_agg(quote_ident(tablename), ', ') FROM pg_tables \
                      WHERE schemaname = current_schema()";
        let tables: String =
            sqlx::query_scalar(tables).fetch_one(&mut connection).await.expect("tables");
        let sql = AssertSqlSafe(format!("VACUUM ANALYZE {tables}"));
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("legal SQL");
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_sqlite() {
            let mut connection = self.sqlite_connection().await;
            return sqlx::query(sql).fetch_one(&mut connection).await.expect("a row").get(0);
        }
        sqlx::query(sql).fetch_one(&mut self.pg().await).await.expect("a row").get(0)
    }
}

/// Leases of a second, retries at once, many attempts.
pub(crate) fn quick() -> TypeSettings {
    let retry = RetryPolicy {
        max_attempts: 50,
        backoff: millis(0),
        max_backoff: millis(0),
        jitter: millis(0),
    };
    TypeSettings {
        lease_ttl: millis(1_000),
        heartbeat_every: millis(200),
        retry,
        apply: ApplySettings { lease_ttl: millis(500), max_attempts: 1_000, ..Default::default() },
        ..TypeSettings::default()
    }
}

/// `job` has as many items as its payload's `items` says; those of `keyed` share keys: `keys` names
/// one, or null, for each item, and `limit` is that of all keys.
pub(crate) fn types() -> OrderTypes {
    let mut types = OrderTypes::new();
    let split = |payload: &Value| {
        let count = payload["items"].as_u64().unwrap_or(1);
        Ok((0..count).map(|n| PlannedItem::new(json!({ "n": n }))).collect())
    };
    let long = TypeSettings { lease_ttl: crate::secs(600), ..quick() };
    types
        .add_dynamic(DynamicOrderType::new("job").settings(long.clone()).plan(split))
        .expect("legal");
    types.add_dynamic(DynamicOrderType::new("quick").settings(quick()).plan(split)).expect("legal");
    let keyed = |payload: &Value| {
        let limit = payload["limit"].as_u64().and_then(|limit| u32::try_from(limit).ok());
        let item = |key: &Value| {
            let item = PlannedItem::new(json!({ "key": key }));
            match key.as_str() {
                Some(key) => item.concurrency(key, limit.unwrap_or(1)),
                None => item,
            }
        };
        let many = payload["many"].as_u64().unwrap_or(0);
        let one = Value::from("lane");
        let keys = payload["keys"].as_array().into_iter().flatten();
        Ok((0..many).map(|_| &one).chain(keys).map(item).collect())
    };
    types.add_dynamic(DynamicOrderType::new("keyed").settings(long).plan(keyed)).expect("legal");
    types
}

pub(crate) fn agent(work: &WorkManager, name: &str) -> WorkClient {
    work.client(Actor::agent(name).expect("a legal name"))
}

pub(crate) fn ada(work: &WorkManager) -> WorkClient {
    work.client(Actor::user("ada").expect("a legal name"))
}

pub(crate) async fn propose(work: &WorkManager, name: &str, payload: Value) -> Order {
    ada(work).propose(Proposal::new(name, payload)).await.expect("proposed").order
}

/// Maintenance that does not wait long.
pub(crate) fn maintenance(work: &WorkManager) -> Maintenance {
    let locks = latchwork_lock::Locks::new(latchwork_lock::InMemoryLockProvider::new());
    let mut settings = MaintenanceSettings::default();
    settings.every = millis(200);
    Maintenance::new(work.clone(), locks, settings)
}

/// Seals everything, and expects that the trail verifies.
pub(crate) async fn verified(work: &WorkManager) -> u64 {
    work.seal().await.expect("sealed");
    let verified = work.verify().await.expect("verified");
    assert_eq!((verified.findings.as_slice(), verified.unsealed), ([].as_slice(), 0));
    verified.events
}
