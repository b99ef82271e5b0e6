//! Contexts that a runner goes on with, beside one raw transaction of one row for each, and what a
//! runner costs that has nothing to do.
//!
//! `cargo bench -p latchwork-benches --bench flow_runner`, with `LATCHWORK_TEST_POSTGRES` for the part
//! on PostgreSQL. A context is paused, woken by its time, claimed, saved as running, and saved as
//! completed after its one action; no lock is taken. Goals are printed and not asserted: a busy machine
//! is no fault of the code.
#![allow(clippy::expect_used, reason = "a bench of what fails is none")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use latchwork_benches::{Goal, Ratio, Scale, Table, missing};
use latchwork_flow::{
    ActionResult, Contexts, FlowRunner, JsonState, Pause, PostgresContextStore, SqliteContextStore,
    StateMachine,
};
use latchwork_lock::provider::Token;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection};

const RAW: &str = "UPDATE raw SET n = n + 1 WHERE id = 1";

fn main() -> ExitCode {
    let scale = Scale::from_args();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let mut table = Table::new("A runner beside raw transactions of one row");
    runtime.block_on(sqlite(scale, &mut table));
    let server = std::env::var("LATCHWORK_TEST_POSTGRES").ok();
    if let Some(server) = &server {
        runtime.block_on(postgres(scale, server, &mut table));
    }
    table.print(scale);
    match server {
        Some(_) => ExitCode::SUCCESS,
        None => missing("flow_runner on PostgreSQL", "scripts/services up postgres"),
    }
}

async fn sqlite(scale: Scale, table: &mut Table) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("flows.db");
    let url = format!("sqlite://{}?synchronous=normal", path.display());
    let contexts = Contexts::new(SqliteContextStore::open(&url).await.expect("a store"));
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("raw.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let mut raw = SqliteConnection::connect_with(&options).await.expect("a database");
    let made = "CREATE TABLE raw (id INTEGER PRIMARY KEY, n INTEGER NOT NULL); \
                INSERT INTO raw VALUES (1, 0)";
    sqlx::raw_sql(made).execute(&mut raw).await.expect("a table");
    let mut ratios = Vec::new();
    for _ in 0..rounds(scale) {
        let resumed = resume(scale, &contexts).await;
        let begin = Instant::now();
        for _ in 0..count(scale) {
            sqlx::query(RAW).execute(&mut raw).await.expect("updated");
        }
        ratios.push(begin.elapsed().as_secs_f64() / resumed.as_secs_f64());
    }
    tell(table, "SQLite, synchronous NORMAL", Ratio::of(ratios));
    idle(scale, &contexts, "SQLite", table).await;
}

async fn postgres(scale: Scale, server: &str, table: &mut Table) {
    let schema = format!("bench_{:x}", Token::random().expose());
    let mut admin = PgConnection::connect(server).await.expect("the server is there");
    let made = format!("CREATE SCHEMA {schema}");
    sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut admin).await.expect("a schema");
    let options: PgConnectOptions = server.parse().expect("an address");
    let options =
        options.options([("synchronous_commit", "off"), ("search_path", schema.as_str())]);
    let pool = PgPoolOptions::new().connect_with(options.clone()).await.expect("a pool");
    let mut raw = PgConnection::connect_with(&options).await.expect("a connection");
    let made = "CREATE TABLE raw (id int PRIMARY KEY, n bigint NOT NULL); \
                INSERT INTO raw VALUES (1, 0)";
    sqlx::raw_sql(made).execute(&mut raw).await.expect("a table");
    let contexts = Contexts::new(PostgresContextStore::from_pool(pool).await.expect("a store"));
    let mut ratios = Vec::new();
    for _ in 0..rounds(scale) {
        let resumed = resume(scale, &contexts).await;
        let begin = Instant::now();
        for _ in 0..count(scale) {
            sqlx::query(RAW).execute(&mut raw).await.expect("updated");
        }
        ratios.push(begin.elapsed().as_secs_f64() / resumed.as_secs_f64());
    }
    tell(table, "PostgreSQL, synchronous_commit off", Ratio::of(ratios));
    idle(scale, &contexts, "PostgreSQL", table).await;
    let gone = format!("DROP SCHEMA {schema} CASCADE");
    sqlx::raw_sql(AssertSqlSafe(gone)).execute(&mut admin).await.expect("dropped");
}

fn rounds(scale: Scale) -> u64 {
    scale.pick(9, 1)
}

fn count(scale: Scale) -> u64 {
    scale.pick(1_000, 20)
}

fn tell(table: &mut Table, what: &str, ratio: Ratio) {
    let what = format!("contexts resumed a second, {what}");
    table.row(&what, "transactions", ratio.median, ratio.to_string(), Goal::AtLeast(0.2));
}

/// How long a runner takes to go on with so many that are due.
async fn resume(scale: Scale, contexts: &Contexts) -> Duration {
    let done = Arc::new(AtomicU64::new(0));
    let counted = done.clone();
    let machine = StateMachine::<JsonState>::builder("bench")
        .store(contexts.clone())
        .action_fn("wait", |_| async {
            Ok(ActionResult::pause(Pause::new().wake_after(Duration::ZERO)))
        })
        .action_fn("count", move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(ActionResult::proceed()) }
        });
    let machine = machine.build().expect("a machine");
    for _ in 0..count(scale) {
        let paused = machine.run(JsonState::default(), Default::default()).await;
        assert!(paused.expect("no error").is_paused());
    }
    let begin = Instant::now();
    let runner = FlowRunner::new(&machine).expect("a store").start();
    while done.load(Ordering::Relaxed) < count(scale) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    runner.stop().await.expect("it did well");
    begin.elapsed()
}

/// How much of a core a runner takes that has nothing to do.
async fn idle(scale: Scale, contexts: &Contexts, what: &str, table: &mut Table) {
    let machine = StateMachine::<JsonState>::builder("idle").store(contexts.clone());
    let runner = FlowRunner::new(&machine.build().expect("a machine")).expect("a store").start();
    let span = Duration::from_millis(scale.pick(10_000, 10));
    tokio::time::sleep(span / 10).await;
    let before = busy();
    tokio::time::sleep(span).await;
    let part = (busy() - before) / span.as_secs_f64() * 100.0;
    runner.stop().await.expect("it did well");
    let what = format!("an idle runner on {what}");
    table.row(&what, "one core", part, format!("{part:.2} %"), Goal::AtMost(1.0));
}

/// Seconds that this process has computed.
fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields behind the name, which may have blanks: user and system time in ticks of 10 ms.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
