//! The promises W1 to W20 over the databases of this crate: every case is a test of its own.
#![allow(clippy::expect_used, reason = "a test says what went wrong by panicking")]

use latchwork_contract::work::{Suite, TestBackend, missing, suite};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

fn main() {
    let mut suites = vec![sqlite()];
    suites.extend(postgres());
    latchwork_contract::work::main(suites)
}

fn sqlite() -> Suite {
    suite("sqlite", async || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url =
            format!("sqlite://{}?synchronous=normal", directory.path().join("work.db").display());
        TestBackend::new(url).keep(directory)
    })
}

/// In a schema of its own for each case; and once more through pgbouncer in transaction mode, which
/// passes no `search_path` on, so in a database of its own.
fn postgres() -> Vec<Suite> {
    let hint = "no server; `scripts/services up postgres pgbouncer` starts one";
    let server = std::env::var("LATCHWORK_TEST_POSTGRES");
    let pooler = std::env::var("LATCHWORK_TEST_PGBOUNCER");
    let Ok(server) = server else { return vec![missing("postgres", hint)] };
    let direct = server.clone();
    let direct = suite("postgres", move || {
        let (server, name) = (direct.clone(), fresh());
        async move {
            make(&server, "SCHEMA", &name).await;
            TestBackend::new(format!("{server}?options[search_path]={name}"))
        }
    });
    let pooled = match pooler {
        Err(_) => missing("postgres_pgbouncer", hint),
        Ok(pooler) => suite("postgres_pgbouncer", move || {
            let (server, pooler, name) = (server.clone(), pooler.clone(), fresh());
            async move {
                make(&server, "DATABASE", &name).await;
                let (base, _) = pooler.rsplit_once('/').expect("it names a database");
                TestBackend::new(format!("{base}/{name}"))
            }
        }),
    };
    vec![direct, pooled]
}

fn fresh() -> String {
    format!("work_{}", latchwork_work::OrderId::new(chrono::Utc::now()).as_uuid().simple())
}

async fn make(server: &str, what: &str, name: &str) {
    let mut admin = PgConnection::connect(server).await.expect("the server is there");
    let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE {what} {name}")));
    made.execute(&mut admin).await.expect("a place for one case");
    admin.close().await.expect("closed");
}
