//! The promises F1 to F14 over the stores of this crate: every case is a test of its own.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::sync::Arc;

use latchwork_contract::flow::{Suite, TestBackend, suite};
use latchwork_flow::InMemoryContextStore;
use latchwork_lock::ManualClock;

fn main() {
    let mut suites = vec![memory(), memory_on_a_manual_clock()];
    suites.extend(sqlite());
    suites.extend(postgres());
    latchwork_contract::flow::main(suites)
}

fn memory() -> Suite {
    suite("memory", async || clones_of(InMemoryContextStore::new()))
}

/// The same where time moves only when a case says so.
fn memory_on_a_manual_clock() -> Suite {
    suite("memory_manual", async || {
        let clock = ManualClock::new();
        clones_of(InMemoryContextStore::with_clock(Arc::new(clock.clone()))).clock(clock)
    })
}

/// Clones of one store are as far apart as clients of a store in this process can be.
fn clones_of(store: InMemoryContextStore) -> TestBackend {
    TestBackend::new(move || {
        let client = store.clone();
        async move { Ok(client) }
    })
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Option<Suite> {
    use latchwork_flow::SqliteContextStore;

    Some(suite("sqlite", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("flows.db");
        let connect = move || SqliteContextStore::open_file(path.clone());
        TestBackend::new(connect).keep(directory)
    }))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite() -> Option<Suite> {
    None
}

/// In a schema of its own for each case; and once more through pgbouncer in transaction mode, which
/// passes no `search_path` on, so in a database of its own.
#[cfg(feature = "postgres")]
fn postgres() -> Vec<Suite> {
    use latchwork_contract::Cleanup;
    use latchwork_contract::flow::missing;
    use latchwork_flow::PostgresContextStore;
    use latchwork_lock::provider::Token;
    use sqlx::{AssertSqlSafe, Connection, PgConnection};

    async fn admin(server: &str, sql: String) {
        let mut admin = PgConnection::connect(server).await.expect("the server is there");
        let done = sqlx::raw_sql(AssertSqlSafe(sql));
        done.execute(&mut admin).await.expect("an administrator may");
        admin.close().await.expect("closed");
    }

    fn backend(address: String) -> TestBackend {
        TestBackend::new(move || {
            let address = address.clone();
            async move { PostgresContextStore::connect(&address).await }
        })
    }

    let hint = "no server; `scripts/services up postgres pgbouncer` starts one";
    let fresh = || format!("case_{:x}", Token::random().expose());
    let server = std::env::var("LATCHWORK_TEST_POSTGRES");
    let pooler = std::env::var("LATCHWORK_TEST_PGBOUNCER");
    let Ok(server) = server else { return vec![missing("postgres", hint)] };
    let direct = server.clone();
    let direct = suite("postgres", move || {
        let (server, name) = (direct.clone(), fresh());
        async move {
            admin(&server, format!("CREATE SCHEMA {name}")).await;
            let address = format!("{server}?options[search_path]={name}");
            let dropped =
                async move { admin(&server, format!("DROP SCHEMA {name} CASCADE")).await };
            backend(address).keep(Cleanup::new(dropped))
        }
    });
    let pooled = match pooler {
        Err(_) => missing("postgres_pgbouncer", hint),
        Ok(pooler) => suite("postgres_pgbouncer", move || {
            let (server, pooler, name) = (server.clone(), pooler.clone(), fresh());
            async move {
                admin(&server, format!("CREATE DATABASE {name}")).await;
                let (base, _) = pooler.rsplit_once('/').expect("it names a database");
                let address = format!("{base}/{name}");
                // By force: the pooler keeps its connections to the database open.
                let sql = format!("DROP DATABASE {name} WITH (FORCE)");
                let dropped = async move { admin(&server, sql).await };
                backend(address).keep(Cleanup::new(dropped))
            }
        }),
    };
    vec![direct, pooled]
}

#[cfg(not(feature = "postgres"))]
fn postgres() -> Vec<Suite> {
    Vec::new()
}
