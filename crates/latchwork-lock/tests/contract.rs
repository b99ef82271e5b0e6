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
    suite("memory", async || memory_backend(InMemoryLockProvider::new()))
}

/// The same where time moves only when a case says so: what is due at a moment is tested at it.
fn memory_on_a_manual_clock() -> Suite {
    suite("memory_manual", async || {
        let clock = ManualClock::new();
        memory_backend(InMemoryLockProvider::with_clock(Arc::new(clock.clone()))).clock(clock)
    })
    .of("memory")
    .on_a_manual_clock()
}

fn memory_backend(provider: InMemoryLockProvider) -> TestBackend {
    let counted = provider.clone();
    clones_of(provider)
        .stored(move || std::future::ready(u64::try_from(counted.entries()).expect("not many")))
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
        let keys = directory.path().join("keys");
        TestBackend::new(connect).keep(directory).stored(move || {
            let records = std::fs::read_dir(&keys).expect("the directory of records").count();
            std::future::ready(u64::try_from(records).expect("not many"))
        })
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
        let file = path.clone();
        let connect = move || SqliteLockProvider::open_file(path.clone());
        TestBackend::new(connect).keep(directory).stored(move || {
            let file = rusqlite::Connection::open(&file).expect("the file");
            let count = "SELECT (SELECT count(*) FROM latchwork_lock_holder) + \
                         (SELECT count(*) FROM latchwork_lock_waiter)";
            let count: i64 = file.query_row(count, (), |row| row.get(0)).expect("the tables");
            std::future::ready(count.unsigned_abs())
        })
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

    fn backend(address: String, direct: String) -> TestBackend {
        let backend = TestBackend::new(move || {
            let address = address.clone();
            async move { PostgresLockProvider::connect(&address).await }
        });
        backend.stored(move || {
            let direct = direct.clone();
            async move {
                let mut admin = PgConnection::connect(&direct).await.expect("the server is there");
                let count = sqlx::query_scalar("SELECT count(*) FROM latchwork_lock");
                let count: i64 = count.fetch_one(&mut admin).await.expect("the table");
                count.unsigned_abs()
            }
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
            backend(address.clone(), address).keep(Cleanup::new(dropped))
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
                let (base, _) = server.rsplit_once('/').expect("it names a database");
                let direct = format!("{base}/{name}");
                // By force: the pooler keeps its connections to the database open.
                let sql = format!("DROP DATABASE {name} WITH (FORCE)");
                let dropped = async move { admin(&server, sql).await };
                backend(address, direct).keep(Cleanup::new(dropped))
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
            let direct = address.clone();
            let backend = TestBackend::new(move || {
                let address = address.clone();
                async move { MySqlLockProvider::connect(&address).await }
            });
            backend.stored(move || {
                let direct = direct.clone();
                async move {
                    let mut admin = MySqlConnection::connect(&direct).await.expect("the server");
                    let count = sqlx::query_scalar(
                        "SELECT (SELECT COUNT(*) FROM latchwork_lock) + \
                         (SELECT COUNT(*) FROM latchwork_lock_key WHERE id IS NOT NULL)",
                    );
                    let count: i64 = count.fetch_one(&mut admin).await.expect("the tables");
                    count.unsigned_abs()
                }
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
            let prefix = format!("case-{:x}", Token::random().expose());
            let address = format!("{server}/{prefix}");
            let members = server.trim_start_matches("etcd://").split(',').map(str::to_owned);
            let members: Vec<String> = members.collect();
            let connect = move || {
                let address = address.clone();
                async move { EtcdLockProvider::connect(&address).await }
            };
            let stored = move || {
                let (members, prefix) = (members.clone(), prefix.clone());
                async move {
                    let client = etcd_client::Client::connect(members, None).await;
                    let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
                    let found = client.expect("the server").get(prefix, Some(options)).await;
                    found.expect("it answers").count().unsigned_abs()
                }
            };
            // Its leases count in seconds: half of a span must be longer than they are late.
            let backend = TestBackend::new(connect).unit(Duration::from_millis(1_500));
            std::future::ready(backend.stored(stored))
        })
        .of("etcd")
    };
    vec![over("etcd", "LATCHWORK_TEST_ETCD"), over("etcd3", "LATCHWORK_TEST_ETCD3")]
}

#[cfg(not(feature = "etcd"))]
fn etcd() -> Vec<Suite> {
    Vec::new()
}

/// In one of the server's many databases for each case, so that its keys can be counted.
#[cfg(feature = "redis")]
fn redis() -> Option<Suite> {
    use latchwork_contract::lock::missing;
    use latchwork_lock::RedisLockProvider;

    let Ok(server) = std::env::var("LATCHWORK_TEST_REDIS") else {
        return Some(missing("redis", "no server; `scripts/services up redis` starts one"));
    };
    Some(suite("redis", move || {
        let (base, _) = server.rsplit_once('/').expect("it names a database");
        let server = format!("{base}/{}", rand::random_range(1..10_000));
        async move {
            let address = server.clone();
            let backend = TestBackend::new(move || {
                let server = address.clone();
                async move { RedisLockProvider::connect(&server).await }
            });
            backend.stored(move || {
                let server = server.clone();
                async move {
                    let client = redis::Client::open(server).expect("an address");
                    let connection = client.get_multiplexed_async_connection().await;
                    let mut connection = connection.expect("the server");
                    redis::cmd("DBSIZE").query_async(&mut connection).await.expect("a number")
                }
            })
        }
    }))
}

#[cfg(not(feature = "redis"))]
fn redis() -> Option<Suite> {
    None
}
