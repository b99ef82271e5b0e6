//! Items through the work layer beside the database's own limit, as ratios of one run.
//!
//! `LATCHWORK_TEST_POSTGRES=postgres://… cargo bench -p latchwork-benches --bench work` takes some
//! minutes; `postgres`, `sqlite` behind `--` choose a part. An item of 1 KiB is claimed and submitted,
//! with its whole audit trail; a unit is two transactions of one one-row UPDATE each. A third part sets
//! items with limits beside items without. Goals are printed
//! and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::process::ExitCode;

use latchwork_benches::{Contender, Goal, Scale, Table, missing, race, runtime, tasks, wants};
use latchwork_work::{
    Actor, Checkout, DynamicOrderType, OrderTypes, PlannedItem, Proposal, Submission, TypeSettings,
    WorkManager,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, SqlitePool};
use tokio::runtime::Runtime;

const TYPE: &str = "bench";

/// The same with limits: of the type, of agents, and of 64 keys; none of them is reached.
const LIMITED: &str = "limited";

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
    for agents in [1, 8] {
        limits(scale, runtime, &work, agents, &mut table);
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
        for agents in [1, 8] {
            limits(scale, runtime, &work, agents, &mut table);
        }
    }
    table.print(scale);
}

/// Drains a queue once, and prints items per second, and what an item costs the server: bytes of WAL and
/// transactions. Behind the address may stand: `limits`; `reader`, a snapshot that is held open meanwhile;
/// `finished=N`, items that are done before; `rate=N`, which claims so many a second and prints how long
/// claims take instead.
#[expect(clippy::print_stdout, reason = "the figure is what it is for")]
fn drain_once(runtime: &Runtime, told: &str) -> ExitCode {
    let parts: Vec<_> = told.split(' ').collect();
    let [items, agents, batch, url, options @ ..] = &parts[..] else { return ExitCode::FAILURE };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (items, agents, batch) = (number(items), number(agents), number(batch));
    let option =
        |name: &str| options.iter().find_map(|option| option.strip_prefix(name)).map(number);
    let order_type = if options.contains(&"limits") { LIMITED } else { TYPE };
    let work = runtime.block_on(connect(url));
    let fill = |items: u64| {
        runtime.block_on(async {
            let client = work.client(Actor::user("bench").expect("a name"));
            let mut left = items;
            while left > 0 {
                let some = left.min(5_000);
                let proposal = Proposal::new(order_type, json!({ "items": some }));
                client.propose(proposal).await.expect("proposed");
                left -= some;
            }
        });
    };
    if let Some(finished) = option("finished=") {
        fill(finished);
        runtime.block_on(async {
            let mut admin = PgConnection::connect(url).await.expect("a connection");
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await.expect("analyzed");
        });
        tasks(runtime, 4, 4, |task, _| agent(work.clone(), order_type, task, 200, u64::MAX));
    }
    fill(items);
    let mut admin = runtime.block_on(async {
        let mut admin = PgConnection::connect(url).await.expect("a connection");
        // One at a time: several in one message are a transaction, which VACUUM refuses.
        for prepare in ["VACUUM ANALYZE", "CHECKPOINT"] {
            sqlx::raw_sql(prepare).execute(&mut admin).await.expect("analyzed");
        }
        admin
    });
    let reader = options.contains(&"reader").then(|| {
        runtime.block_on(async {
            let mut reader = PgConnection::connect(url).await.expect("a connection");
            let begin =
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM latchwork_work_item";
            sqlx::raw_sql(begin).execute(&mut reader).await.expect("a snapshot");
            reader
        })
    });
    if let Some(rate) = option("rate=") {
        return latency(runtime, &work, &mut admin, items, rate);
    }
    let before = runtime.block_on(cost(&mut admin));
    let begin = std::time::Instant::now();
    tasks(runtime, agents, agents, |task, _| {
        agent(work.clone(), order_type, task, batch, u64::MAX)
    });
    let rate = items as f64 / begin.elapsed().as_secs_f64();
    // Sessions tell what they did at their end.
    runtime.block_on(work.close());
    let after = runtime.block_on(cost(&mut admin));
    drop(reader);
    let each = |n: usize| (after[n] - before[n]) / items as f64;
    println!("{rate:.0} {:.0} {:.2}", each(0), each(1));
    ExitCode::SUCCESS
}

/// Bytes of WAL and transactions of the database until now.
async fn cost(admin: &mut PgConnection) -> [f64; 2] {
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let ask = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, \
               (xact_commit + xact_rollback)::float8 FROM pg_stat_database \
               WHERE datname = current_database()";
    let (wal, transactions) = sqlx::query_as(ask).fetch_one(admin).await.expect("figures");
    [wal, transactions]
}

/// Claims and submits at a steady rate, and prints how long claims take beside round trips.
#[expect(clippy::print_stdout, reason = "the figure is what it is for")]
fn latency(
    runtime: &Runtime,
    work: &WorkManager,
    admin: &mut PgConnection,
    items: u64,
    rate: u64,
) -> ExitCode {
    let every = std::time::Duration::from_secs(1) / u32::try_from(rate).expect("a rate");
    let (mut claims, mut trips) = runtime.block_on(async {
        let mut ticks = tokio::time::interval(every);
        let mut claims = tokio::task::JoinSet::new();
        let mut trips = Vec::new();
        for n in 0..items {
            ticks.tick().await;
            let client = work.client(Actor::agent(format!("agent-{}", n % 32)).expect("a name"));
            claims.spawn(async move {
                let begin = std::time::Instant::now();
                let got = client.checkout(Checkout::of_type(TYPE)).await.expect("checked out");
                let took = begin.elapsed();
                for lease in &got.leases {
                    client.submit(Submission::new(lease, json!(1))).await.expect("submitted");
                }
                took.as_secs_f64() * 1e3
            });
            if n % 10 == 0 {
                let begin = std::time::Instant::now();
                sqlx::query("SELECT 1").execute(&mut *admin).await.expect("an answer");
                trips.push(begin.elapsed().as_secs_f64() * 1e3);
            }
        }
        (claims.join_all().await, trips)
    });
    claims.sort_by(f64::total_cmp);
    trips.sort_by(f64::total_cmp);
    let of = latchwork_benches::percentile;
    println!(
        "claims p50 {:.2} ms, p99 {:.2} ms; SELECT 1 p50 {:.2} ms, p99 {:.2} ms",
        of(&claims, 50.0),
        of(&claims, 99.0),
        of(&trips, 50.0),
        of(&trips, 99.0)
    );
    ExitCode::SUCCESS
}

/// Claims and submits until it has done so many items, or none is left.
async fn agent(work: WorkManager, order_type: &str, task: u64, batch: u64, items: u64) {
    let client = work.client(Actor::agent(format!("agent-{task}")).expect("a name"));
    let mut left = items;
    while left > 0 {
        let limit = u32::try_from(batch.min(left)).unwrap_or(1);
        let got = client.checkout(Checkout::of_type(order_type).limit(limit)).await;
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
    let keyed = move |payload: &serde_json::Value| {
        let items: Vec<PlannedItem<serde_json::Value>> = split(payload)?;
        let keyed = items.into_iter().enumerate();
        Ok(keyed.map(|(n, item)| item.concurrency(format!("key-{}", n % 64), 50)).collect())
    };
    let settings = TypeSettings { max_leases: Some(10_000), ..TypeSettings::default() };
    let limited = DynamicOrderType::new(LIMITED).plan(keyed).settings(settings);
    types.add_dynamic(limited).expect("a type");
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
    let ours = items_of(scale, runtime, work, TYPE, agents, batch);
    let mut contenders = [Contender::new("ours", ours), Contender::new("raw", raw)];
    let ratio = race(scale, &mut contenders).first_faster_than(1);
    let name = format!("{agents} agents, batches of {batch}");
    table.row(&name, "two UPDATEs", ratio.median, ratio.to_string(), goal);
}

/// Items with limits beside items without.
fn limits(scale: Scale, runtime: &Runtime, work: &WorkManager, agents: u64, table: &mut Table) {
    let mut contenders = [
        Contender::new("limits", items_of(scale, runtime, work, LIMITED, agents, 1)),
        Contender::new("plain", items_of(scale, runtime, work, TYPE, agents, 1)),
    ];
    let ratio = race(scale, &mut contenders).first_faster_than(1);
    let name = format!("{agents} agents, with limits");
    table.row(&name, "without", ratio.median, ratio.to_string(), Goal::AtLeast(0.7));
}

/// Agents that do a number of items of a type, which are there before.
fn items_of(
    scale: Scale,
    runtime: &Runtime,
    work: &WorkManager,
    order_type: &'static str,
    agents: u64,
    batch: u64,
) -> impl FnMut(u64) {
    let mut ready = 0;
    move |n: u64| {
        let needed = n.div_ceil(agents).div_ceil(batch) * batch * agents;
        if ready < needed {
            let items = needed.max(scale.pick(5_000, 20));
            let client = work.client(Actor::user("bench").expect("a name"));
            let proposal = Proposal::new(order_type, json!({ "items": items }));
            runtime.block_on(client.propose(proposal)).expect("proposed");
            ready += items;
        }
        ready -= needed;
        tasks(runtime, agents, n, |task, each| agent(work.clone(), order_type, task, batch, each));
    }
}
