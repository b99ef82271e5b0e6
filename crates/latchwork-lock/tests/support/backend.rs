//! A backend under test. The tests know it by its address only.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use libtest_mimic::{Failed, Trial};

use super::{block_on, millis};

/// A backend, and how to get a place of one's own in it.
#[derive(Clone, Copy)]
pub struct Backend {
    /// The first part of the names of its tests.
    pub name: &'static str,
    /// Why it cannot be tested here, and what to do about it.
    pub missing: Option<&'static str>,
    /// The shortest sensible ttl.
    pub unit: Duration,
    /// Whether a lease ends with its process, and not only with its ttl.
    pub frees_the_dead: bool,
    /// Whether the waiters of a process that stood still for some seconds keep their places.
    pub keeps_places: bool,
    /// Whether it is a server that is reached by TCP, so that a proxy can stand before it.
    pub by_tcp: bool,
    /// Makes a place that nobody else uses.
    pub test_database: fn() -> BoxFuture<'static, TestDatabase>,
}

/// A place of its own for one test.
pub struct TestDatabase {
    pub backend: Backend,
    /// Where the locks are.
    pub address: String,
    /// The server, where it is reached by TCP, as the address names it.
    pub server: Option<SocketAddr>,
    /// A store with a gate: see [`gate`](super::gate).
    pub gate: String,
    /// For what a test wants to keep, and all else that must be gone after it.
    pub directory: tempfile::TempDir,
}

impl Backend {
    fn new(name: &'static str, test_database: fn() -> BoxFuture<'static, TestDatabase>) -> Self {
        Backend {
            name,
            missing: None,
            unit: millis(500),
            frees_the_dead: false,
            keeps_places: false,
            by_tcp: false,
            test_database,
        }
    }

    /// A named test in a database of its own. Without a server it is skipped, and fails where `CI` is
    /// set.
    pub fn trial<T: Future<Output = ()>>(
        self,
        name: &str,
        test: impl FnOnce(TestDatabase) -> T + Send + 'static,
    ) -> Trial {
        let in_ci = std::env::var_os("CI").is_some();
        Trial::test(format!("{}::{name}", self.name), move || match self.missing {
            Some(reason) => Err(Failed::from(reason)),
            None => {
                block_on(async { test((self.test_database)().await).await });
                Ok(())
            }
        })
        .with_ignored_flag(self.missing.is_some() && !in_ci)
    }
}

impl TestDatabase {
    fn new(backend: Backend, address: String, gate: String, directory: tempfile::TempDir) -> Self {
        TestDatabase { backend, address, server: None, gate, directory }
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// The same place, by way of a proxy before the server.
    pub fn through(&self, proxy: SocketAddr) -> String {
        let server = self.server.expect("it is reached by TCP").to_string();
        assert!(self.address.contains(&server), "the address names the server");
        self.address.replace(&server, &proxy.to_string())
    }
}

/// All backends that this program was built with.
pub fn all() -> Vec<Backend> {
    vec![
        #[cfg(all(feature = "file", target_os = "linux"))]
        file(),
        #[cfg(feature = "sqlite")]
        sqlite(),
        #[cfg(feature = "postgres")]
        postgres::backend(),
        #[cfg(feature = "mysql")]
        mysql::backend(),
        #[cfg(feature = "postgres")]
        postgres::pooled(),
        #[cfg(feature = "etcd")]
        etcd::backend(),
        #[cfg(feature = "redis")]
        redis(),
    ]
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

pub fn file() -> Backend {
    let test_database = || -> BoxFuture<'static, TestDatabase> {
        let directory = directory();
        let path = directory.path().display().to_string();
        let (address, gate) = (format!("file://{path}/locks"), format!("file://{path}/gate"));
        Box::pin(async { TestDatabase::new(file(), address, gate, directory) })
    };
    Backend { frees_the_dead: true, ..Backend::new("file", test_database) }
}

#[cfg(feature = "sqlite")]
pub fn sqlite() -> Backend {
    let test_database = || -> BoxFuture<'static, TestDatabase> {
        let directory = directory();
        let address = format!("sqlite://{}/locks.db", directory.path().display());
        Box::pin(async { TestDatabase::new(sqlite(), address.clone(), address, directory) })
    };
    Backend { keeps_places: true, ..Backend::new("sqlite", test_database) }
}

/// In one of the server's many databases; it has no gate of its own.
#[cfg(feature = "redis")]
pub fn redis() -> Backend {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ROOMS: AtomicU32 = AtomicU32::new(0);

    let test_database = || -> BoxFuture<'static, TestDatabase> {
        Box::pin(async {
            let server = std::env::var("LATCHWORK_TEST_REDIS").expect("looked at before");
            let (server, _) = server.rsplit_once('/').expect("a database");
            // Processes that run at the same time have numbers that are near each other.
            let test_database = std::process::id() * 31 + ROOMS.fetch_add(1, Ordering::Relaxed);
            let directory = directory();
            let gate = format!("file://{}/gate", directory.path().display());
            let place = server.rsplit_once('@').expect("a password").1.parse().expect("a place");
            let test_database = TestDatabase::new(
                redis(),
                format!("{server}/{}", test_database % 10_000),
                gate,
                directory,
            );
            TestDatabase { server: Some(place), ..test_database }
        })
    };
    let missing = std::env::var_os("LATCHWORK_TEST_REDIS").is_none();
    let missing = missing.then_some("no server; `scripts/services up redis` starts one");
    Backend { missing, by_tcp: true, ..Backend::new("redis", test_database) }
}

#[cfg(feature = "postgres")]
pub mod postgres {
    use futures::future::BoxFuture;
    use latchwork_lock::provider::Token;
    use sqlx::{AssertSqlSafe, Connection, PgConnection};

    use super::{Backend, TestDatabase, directory};

    pub const MISSING: &str = "no server; `scripts/services up postgres pgbouncer` starts one";

    pub fn backend() -> Backend {
        let test_database = || -> BoxFuture<'static, TestDatabase> {
            Box::pin(async {
                let address = test_database().await;
                let server = place(&address).parse().expect("a socket address");
                let test_database =
                    TestDatabase::new(backend(), address.clone(), address, directory());
                TestDatabase { server: Some(server), ..test_database }
            })
        };
        let missing = server().is_none().then_some(MISSING);
        Backend {
            missing,
            by_tcp: true,
            keeps_places: true,
            ..Backend::new("postgres", test_database)
        }
    }

    /// Through pgbouncer in transaction mode, which passes no `search_path` on: so in a database of
    /// its own.
    pub fn pooled() -> Backend {
        let test_database = || -> BoxFuture<'static, TestDatabase> {
            Box::pin(async {
                let (direct, pooler) = (server(), pooler());
                let (direct, pooler) = direct.zip(pooler).expect("looked at before");
                let name = format!("room_{:x}", Token::random().expose());
                admin(&direct, &format!("CREATE DATABASE {name}")).await;
                let in_it = |address: &str| {
                    let (base, _) = address.rsplit_once('/').expect("a database");
                    format!("{base}/{name}")
                };
                let address = in_it(&pooler);
                let server = place(&address).parse().expect("a socket address");
                let test_database =
                    TestDatabase::new(pooled(), address, in_it(&direct), directory());
                TestDatabase { server: Some(server), ..test_database }
            })
        };
        let missing = pooler().is_none().then_some(MISSING);
        Backend {
            missing,
            by_tcp: true,
            keeps_places: true,
            ..Backend::new("postgres_pgbouncer", test_database)
        }
    }

    /// The server that the environment names.
    pub fn server() -> Option<String> {
        std::env::var("LATCHWORK_TEST_POSTGRES").ok()
    }

    /// The pooler before it.
    fn pooler() -> Option<String> {
        std::env::var("LATCHWORK_TEST_PGBOUNCER").ok()
    }

    /// Host and port of an address.
    pub fn place(address: &str) -> &str {
        let (_, place) = address.rsplit_once('@').expect("a user");
        place.split_once('/').expect("a database").0
    }

    /// An address with a schema of its own.
    pub async fn test_database() -> String {
        let server = server().expect("looked at before");
        let name = format!("room_{:x}", Token::random().expose());
        admin(&server, &format!("CREATE SCHEMA {name}")).await;
        format!("{server}?options[search_path]={name}")
    }

    pub async fn admin(address: &str, sql: &str) {
        let mut admin = PgConnection::connect(address).await.expect("the server is there");
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await.expect(sql);
        admin.close().await.expect("closed");
    }
}

#[cfg(feature = "mysql")]
pub mod mysql {
    use futures::future::BoxFuture;
    use latchwork_lock::provider::Token;
    use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

    use super::{Backend, TestDatabase, directory};

    pub const MISSING: &str = "no server; `scripts/services up mariadb` starts one";

    pub fn backend() -> Backend {
        let test_database = || -> BoxFuture<'static, TestDatabase> {
            Box::pin(async {
                let address = test_database().await;
                let server = place(&address).parse().expect("a socket address");
                let test_database =
                    TestDatabase::new(backend(), address.clone(), address, directory());
                TestDatabase { server: Some(server), ..test_database }
            })
        };
        let missing = server().is_none().then_some(MISSING);
        Backend {
            missing,
            by_tcp: true,
            keeps_places: true,
            ..Backend::new("mysql", test_database)
        }
    }

    /// The server that the environment names.
    pub fn server() -> Option<String> {
        std::env::var("LATCHWORK_TEST_MARIADB").ok()
    }

    /// Host and port of an address.
    pub fn place(address: &str) -> &str {
        let (_, place) = address.rsplit_once('@').expect("a user");
        place.split_once('/').expect("a database").0
    }

    /// The name of the database in an address.
    pub fn database(address: &str) -> &str {
        address.rsplit_once('/').expect("a database").1
    }

    /// An address with a database of its own.
    pub async fn test_database() -> String {
        test_database_in(&server().expect("looked at before")).await
    }

    pub async fn test_database_in(server: &str) -> String {
        let name = format!("room_{:x}", Token::random().expose());
        admin(server, &format!("CREATE DATABASE {name}")).await;
        let (base, _) = server.rsplit_once('/').expect("a database");
        format!("{base}/{name}")
    }

    pub async fn admin(address: &str, sql: &str) {
        let mut admin = MySqlConnection::connect(address).await.expect("the server is there");
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await.expect(sql);
        admin.close().await.expect("closed");
    }
}

#[cfg(feature = "etcd")]
pub mod etcd {
    use futures::future::BoxFuture;
    use latchwork_lock::provider::Token;

    use super::{Backend, TestDatabase, directory, millis};

    pub const MISSING: &str = "no server; `scripts/services up etcd` starts one";

    pub fn backend() -> Backend {
        let test_database = || -> BoxFuture<'static, TestDatabase> {
            Box::pin(async {
                let server = server().expect("looked at before");
                let place = server.trim_start_matches("etcd://").parse().expect("a socket address");
                let directory = directory();
                let gate = format!("file://{}/gate", directory.path().display());
                let test_database =
                    TestDatabase::new(backend(), test_database(&server), gate, directory);
                TestDatabase { server: Some(place), ..test_database }
            })
        };
        let missing = server().is_none().then_some(MISSING);
        // Its leases count in seconds, and two is the shortest that it grants.
        Backend {
            missing,
            by_tcp: true,
            unit: millis(1_000),
            ..Backend::new("etcd", test_database)
        }
    }

    /// The server that the environment names.
    pub fn server() -> Option<String> {
        std::env::var("LATCHWORK_TEST_ETCD").ok()
    }

    /// An address with a prefix of its own.
    pub fn test_database(server: &str) -> String {
        format!("{server}/room-{:x}", Token::random().expose())
    }
}
