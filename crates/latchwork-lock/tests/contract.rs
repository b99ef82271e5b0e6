//! The promises L1 to L22 over the providers of this crate: every case is a test of its own.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use std::sync::Arc;

use latchwork_contract::lock::{Suite, TestBackend, suite};
use latchwork_lock::provider::LockProvider;
use latchwork_lock::{InMemoryLockProvider, ManualClock, NoOpLockProvider};

fn main() {
    let mut suites = vec![memory(), memory_on_a_manual_clock(), noop()];
    suites.extend(file());
    suites.extend(sqlite());
    suites.extend(postgres());
    suites.extend(mysql());
    suites.extend(etcd());
    suites.extend(redis());
    latchwork_contract::lock::main(suites)
}

fn memory() -> Suite {
    suite("memory", async || clones_of(InMemoryLockProvider::new()))
}

/// The same where time moves only when a case says so: what is due at a moment is tested at it.
fn memory_on_a_manual_clock() -> Suite {
    suite("memory_manual", async || {
        let clock = ManualClock::new();
        clones_of(InMemoryLockProvider::with_clock(Arc::new(clock.clone()))).clock(clock)
    })
    .of("memory")
    .on_a_manual_clock()
}

fn noop() -> Suite {
    suite("noop", async || clones_of(NoOpLockProvider::new()))
}

/// Clones of one provider are as far apart as clients of a backend in this process can be.
fn clones_of<P: LockProvider + Clone>(provider: P) -> TestBackend {
    TestBackend::new(move || {
        let client = provider.clone();
        async move { Ok(client) }
    })
}

#[cfg(all(feature = "file", target_os = "linux"))]
fn file() -> Option<Suite> {
    use latchwork_lock::FileLockProvider;

    Some(suite("file", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().to_owned();
        let connect = move || {
            let path = path.clone();
            // The cases wrap the provider, so it is opened itself; that `file:///directory`
            // leads to the same one is tested beside `connect`.
            async move { FileLockProvider::open(path) }
        };
        TestBackend::new(connect).keep(directory)
    }))
}

#[cfg(not(all(feature = "file", target_os = "linux")))]
fn file() -> Option<Suite> {
    None
}

#[cfg(feature = "sqlite")]
fn sqlite() -> Option<Suite> {
    use latchwork_lock::SqliteLockProvider;

    Some(suite("sqlite", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("locks.db");
        let connect = move || SqliteLockProvider::open_file(path.clone());
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
    use latchwork_contract::lock::missing;
    use latchwork_lock::PostgresLockProvider;
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
            async move { PostgresLockProvider::connect(&address).await }
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
    // Not `of("postgres")`: it declares no notification there, and is held to all else that it does.
    vec![direct, pooled]
}

#[cfg(not(feature = "postgres"))]
fn postgres() -> Vec<Suite> {
    Vec::new()
}

/// In a database of its own for each case.
#[cfg(feature = "mysql")]
fn mysql() -> Option<Suite> {
    use latchwork_contract::lock::missing;
    use latchwork_lock::MySqlLockProvider;
    use latchwork_lock::provider::Token;
    use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

    let Ok(server) = std::env::var("LATCHWORK_TEST_MARIADB") else {
        let hint = "no server; `scripts/services up mariadb` starts one";
        return Some(missing("mysql", hint));
    };
    Some(suite("mysql", move || {
        let server = server.clone();
        async move {
            let name = format!("case_{:x}", Token::random().expose());
            let mut admin = MySqlConnection::connect(&server).await.expect("the server is there");
            let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")));
            made.execute(&mut admin).await.expect("a room for one case");
            admin.close().await.expect("closed");
            let (base, _) = server.rsplit_once('/').expect("it names a database");
            let address = format!("{base}/{name}");
            TestBackend::new(move || {
                let address = address.clone();
                async move { MySqlLockProvider::connect(&address).await }
            })
        }
    }))
}

#[cfg(not(feature = "mysql"))]
fn mysql() -> Option<Suite> {
    None
}

/// Under a prefix of its own for each case; on one member, and on three.
#[cfg(feature = "etcd")]
fn etcd() -> Vec<Suite> {
    use latchwork_contract::lock::missing;
    use latchwork_lock::EtcdLockProvider;
    use latchwork_lock::provider::Token;
    use std::time::Duration;

    let over = |name, variable| {
        let Ok(server) = std::env::var(variable) else {
            return missing(name, format!("no server; `scripts/services up {name}` starts one"));
        };
        suite(name, move || {
            let address = format!("{server}/case-{:x}", Token::random().expose());
            let connect = move || {
                let address = address.clone();
                async move { EtcdLockProvider::connect(&address).await }
            };
            // Its leases count in seconds: half of a span must be longer than they are late.
            std::future::ready(TestBackend::new(connect).unit(Duration::from_millis(1_500)))
        })
        .of("etcd")
    };
    vec![over("etcd", "LATCHWORK_TEST_ETCD"), over("etcd3", "LATCHWORK_TEST_ETCD3")]
}

#[cfg(not(feature = "etcd"))]
fn etcd() -> Vec<Suite> {
    Vec::new()
}

/// One server for all cases: their keys are their own.
#[cfg(feature = "redis")]
fn redis() -> Option<Suite> {
    use latchwork_contract::lock::missing;
    use latchwork_lock::RedisLockProvider;

    let Ok(server) = std::env::var("LATCHWORK_TEST_REDIS") else {
        return Some(missing("redis", "no server; `scripts/services up redis` starts one"));
    };
    Some(suite("redis", move || {
        let server = server.clone();
        async move {
            TestBackend::new(move || {
                let server = server.clone();
                async move { RedisLockProvider::connect(&server).await }
            })
        }
    }))
}

#[cfg(not(feature = "redis"))]
fn redis() -> Option<Suite> {
    None
}
