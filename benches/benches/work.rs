//! Items through the work layer beside the database's own limit, as ratios of one run.
//!
//! `LATCHWORK_TEST_POSTGRES=postgres://… cargo bench -p latchwork-benches --bench work` takes some
//! minutes; `postgres`, `sqlite` behind `--` choose a part. An item of 1 KiB is claimed and submitted,
//! with its whole audit trail; a unit is two transactions of one one-row UPDATE each. Goals are printed
//! and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::process::ExitCode;
use std::sync::Arc;

use latchwork_benches::{Contender, Goal, Scale, Table, missing, race, runtime, tasks, wants};
use latchwork_work::{
    Actor, Checkout, DynamicOrderType, OrderTypes, PlannedItem, Proposal, Submission, WorkManager,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, SqlitePool};
use tokio::runtime::Runtime;

const TYPE: &str = "bench";

fn main() -> ExitCode {
    let (runtime, scale) = (runtime(), Scale::from_args());
    // One figure for `scripts/bench-work`: items, agents, batch, address.
    if let Ok(told) = std::env::var("LATCHWORK_BENCH_DRAIN") {
        return drain_once(&runtime, &told);
    }
    if wants("sqlite") {
        sqlite(scale, &runtime);
    }
    if wants("postgres") {
        let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
            let hint = "no server: `scripts/services up postgres` starts one";
            return missing("work", hint);
        };
        postgres(scale, &runtime, &server);
    }
    ExitCode::SUCCESS
}

fn sqlite(scale: Scale, runtime: &Runtime) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut table =
        Table::new("Items on SQLite, synchronous FULL, in units of two immediate transactions");
    let url = format!("sqlite://{}", directory.path().join("work.db").display());
    let work = runtime.block_on(connect(&url));
    let raw = directory.path().join("raw.db");
    let raw = format!("sqlite://{}?mode=rwc", raw.display());
    let pool = runtime.block_on(async {
        let options: sqlx::sqlite::SqliteConnectOptions = raw.parse().expect("an address");
        let options = options
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
        let pool = SqlitePool::connect_with(options).await.expect("a pool");
        pool.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, n INTEGER)").await.expect("made");
        pool.execute("INSERT INTO raw VALUES (1, 0)").await.expect("filled");
        pool
    });
    for (agents, batch, goal) in [
        (1, 1, Goal::AtLeast(0.8)),
        (8, 1, Goal::AtLeast(1.0)),
        (1, 50, Goal::None),
        (8, 50, Goal::None),
    ] {
        let raw = |n: u64| {
            runtime.block_on(async {
                for _ in 0..2 * n {
                    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.expect("begun");
                    tx.execute("UPDATE raw SET n = n + 1 WHERE id = 1").await.expect("updated");
                    tx.commit().await.expect("committed");
                }
            });
        };
        drain(scale, runtime, &work, agents, batch, &mut table, goal, raw);
    }
    table.print(scale);
}

fn postgres(scale: Scale, runtime: &Runtime, server: &str) {
    let mut table = Table::new("Items on PostgreSQL, in units of two one-row UPDATEs");
    for synchronous in ["on", "off"] {
        let schema = format!("bench_work_{}_{synchronous}", std::process::id());
        let address = format!(
            "{server}?options[search_path]={schema}&options=-c%20synchronous_commit%3D{synchronous}"
        );
        let address = runtime.block_on(async {
            let mut admin = PgConnection::connect(server).await.expect("the server is there");
            let made = format!(
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.raw (id int PRIMARY KEY, n int); \
                 INSERT INTO {schema}.raw SELECT g, 0 FROM generate_series(0, 63) g"
            );
            sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut admin).await.expect("made");
            address.replace(
                &format!(
                    "options[search_path]={schema}&options=-c%20synchronous_commit%3D{synchronous}"
                ),
                &format!(
                    "options=-c%20search_path%3D{schema}%20-c%20synchronous_commit%3D{synchronous}"
                ),
            )
        });
        let work = runtime.block_on(connect(&address));
        let pool = runtime.block_on(PgPool::connect(&address)).expect("a pool");
        for (agents, batch) in [(1, 1), (8, 1), (32, 1), (1, 50), (8, 50)] {
            let raw = |n: u64| {
                let pool = pool.clone();
                tasks(runtime, agents, n, move |task, each| {
                    let pool = pool.clone();
                    async move {
                        let id = i32::try_from(task).unwrap_or(0);
                        for _ in 0..2 * each {
                            let query =
                                sqlx::query("UPDATE raw SET n = n + 1 WHERE id = $1").bind(id);
                            query.execute(&pool).await.expect("updated");
                        }
                    }
                });
            };
            drain(scale, runtime, &work, agents, batch, &mut table, Goal::None, raw);
        }
    }
    table.print(scale);
}

/// Drains a queue once, and prints items per second.
#[expect(clippy::print_stdout, reason = "the figure is what it is for")]
fn drain_once(runtime: &Runtime, told: &str) -> ExitCode {
    let parts: Vec<_> = told.split(' ').collect();
    let [items, agents, batch, url] = parts[..] else { return ExitCode::FAILURE };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (items, agents, batch) = (number(items), number(agents), number(batch));
    let work = runtime.block_on(async {
        let work = connect(url).await;
        let client = work.client(Actor::user("bench").expect("a name"));
        let mut left = items;
        while left > 0 {
            let some = left.min(5_000);
            client.propose(Proposal::new(TYPE, json!({ "items": some }))).await.expect("proposed");
            left -= some;
        }
        let mut admin = PgConnection::connect(url).await.expect("a connection");
        sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await.expect("analyzed");
        work
    });
    let begin = std::time::Instant::now();
    tasks(runtime, agents, agents, |task, _| agent(work.clone(), task, batch, u64::MAX));
    println!("{:.0}", items as f64 / begin.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Claims and submits until it has done so many items, or none is left.
async fn agent(work: WorkManager, task: u64, batch: u64, items: u64) {
    let client = work.client(Actor::agent(format!("agent-{task}")).expect("a name"));
    let mut left = items;
    while left > 0 {
        let limit = u32::try_from(batch.min(left)).unwrap_or(1);
        let got = client.checkout(Checkout::of_type(TYPE).limit(limit)).await;
        let leases = got.expect("checked out").leases;
        let done: Vec<_> = leases.iter().map(|lease| Submission::new(lease, json!(1))).collect();
        if done.is_empty() {
            return;
        }
        left = left.saturating_sub(done.len() as u64);
        client.submit_many(done).await.expect("submitted");
    }
}

async fn connect(url: &str) -> WorkManager {
    let mut types = OrderTypes::new();
    let split = |payload: &serde_json::Value| {
        let count = payload["items"].as_u64().unwrap_or(1);
        let body = "x".repeat(1_000);
        Ok((0..count).map(|n| PlannedItem::new(json!({"n": n, "body": body}))).collect())
    };
    types.add_dynamic(DynamicOrderType::new(TYPE).plan(split)).expect("a type");
    WorkManager::builder(types).connect(url).await.expect("a database")
}

/// Agents that claim and submit until they have done their share; the items are there before.
#[expect(clippy::too_many_arguments, reason = "a bench is told everything once")]
fn drain(
    scale: Scale,
    runtime: &Runtime,
    work: &WorkManager,
    agents: u64,
    batch: u64,
    table: &mut Table,
    goal: Goal,
    raw: impl FnMut(u64),
) {
    let work = Arc::new(work.clone());
    let mut ready = 0;
    let ours = |n: u64| {
        let needed = n.div_ceil(agents).div_ceil(batch) * batch * agents;
        if ready < needed {
            let items = needed.max(scale.pick(5_000, 20));
            let client = work.client(Actor::user("bench").expect("a name"));
            let proposal = Proposal::new(TYPE, json!({ "items": items }));
            runtime.block_on(client.propose(proposal)).expect("proposed");
            ready += items;
        }
        ready -= needed;
        let work = work.clone();
        tasks(runtime, agents, n, move |task, each| {
            agent(WorkManager::clone(&work), task, batch, each)
        });
    };
    let mut contenders = [Contender::new("ours", ours), Contender::new("raw", raw)];
    let ratio = race(scale, &mut contenders).first_faster_than(1);
    let name = format!("{agents} agents, batches of {batch}");
    table.row(&name, "two UPDATEs", ratio.median, ratio.to_string(), goal);
}
