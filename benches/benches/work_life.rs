//! The whole life of an order, from proposed to completed, with its audit trail; as ratios of one run.
//!
//! `LATCHWORK_TEST_POSTGRES=postgres://… cargo bench -p latchwork-benches --bench work_life` takes some
//! minutes; `postgres`, `sqlite` behind `--` choose a part. A unit is one transaction of a one-row UPDATE. An
//! order of one item is proposed, leased, submitted, previewed, approved, applied and completed: ten
//! transactions at the least. Goals are printed and not asserted: a busy machine is no fault of the code.
//!
//! With `LATCHWORK_COMPLETED_ORDERS=1000000` only the row with completed orders in the table is measured, with
//! so many: copies that the database makes of one order. A million takes some minutes and gigabytes.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

#[path = "work_life/completed.rs"]
mod completed;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use latchwork_benches::{
    Contender, Goal, Scale, Table, missing, percentile, race, runtime, tasks, wants,
};
use latchwork_lock::Locks;
use latchwork_work::query::OrderQuery;
use latchwork_work::{
    Actor, Approval, Checkout, DynamicOrderType, EventFilter, ListenFrom, Maintenance,
    MaintenanceSettings, OrderTypes, Proposal, Submission, WorkManager,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, SqlitePool};
use tokio::runtime::Runtime;

const TYPE: &str = "life";

fn main() -> ExitCode {
    let (runtime, scale) = (runtime(), Scale::from_args());
    if wants("sqlite") {
        sqlite(scale, &runtime);
    }
    if wants("postgres") {
        let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
            let hint = "no server: `scripts/services up postgres` starts one";
            return missing("work_life", hint);
        };
        postgres(scale, &runtime, &server);
    }
    ExitCode::SUCCESS
}

fn sqlite(scale: Scale, runtime: &Runtime) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut table = Table::new("Lives of orders on SQLite, in units of an immediate transaction");
    let place = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    let pool = runtime.block_on(async {
        let raw = format!("{}?mode=rwc", place("raw.db"));
        let options: sqlx::sqlite::SqliteConnectOptions = raw.parse().expect("an address");
        let options = options
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .synchronous(sqlx::sqlite::SqliteSynchronous::Full);
        let pool = SqlitePool::connect_with(options).await.expect("a pool");
        pool.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, n INTEGER)").await.expect("made");
        pool.execute("INSERT INTO raw VALUES (1, 0)").await.expect("filled");
        pool
    });
    let commit = |n: u64| {
        runtime.block_on(async {
            for _ in 0..n {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.expect("begun");
                tx.execute("UPDATE raw SET n = n + 1 WHERE id = 1").await.expect("updated");
                tx.commit().await.expect("committed");
            }
        });
    };
    measure(scale, runtime, &mut table, &place("one.db"), &place("two.db"), commit);
    table.print(scale);
}

fn postgres(scale: Scale, runtime: &Runtime, server: &str) {
    let mut table = Table::new("Lives of orders on PostgreSQL, in units of a one-row UPDATE");
    let schemas: [_; 2] = std::array::from_fn(|n| format!("bench_life_{}_{n}", std::process::id()));
    let address = |schema: &str| format!("{server}?options=-c%20search_path%3D{schema}");
    let pool = runtime.block_on(async {
        let mut admin = PgConnection::connect(server).await.expect("the server is there");
        for schema in &schemas {
            let made = format!(
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.raw (id int PRIMARY KEY, n int); \
                 INSERT INTO {schema}.raw VALUES (1, 0)"
            );
            sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut admin).await.expect("made");
        }
        PgPool::connect(&address(&schemas[0])).await.expect("a pool")
    });
    let commit = |n: u64| {
        runtime.block_on(async {
            for _ in 0..n {
                let update = sqlx::query("UPDATE raw SET n = n + 1 WHERE id = 1");
                update.execute(&pool).await.expect("updated");
            }
        });
    };
    measure(scale, runtime, &mut table, &address(&schemas[0]), &address(&schemas[1]), commit);
    table.print(scale);
    runtime.block_on(async {
        let mut admin = PgConnection::connect(server).await.expect("the server is there");
        for schema in &schemas {
            let dropped = format!("DROP SCHEMA {schema} CASCADE");
            sqlx::raw_sql(AssertSqlSafe(dropped)).execute(&mut admin).await.expect("dropped");
        }
    });
}

fn measure(
    scale: Scale,
    runtime: &Runtime,
    table: &mut Table,
    one: &str,
    two: &str,
    mut commit: impl FnMut(u64),
) {
    let (work, other) = (runtime.block_on(connect(one)), runtime.block_on(connect(two)));
    let sealing = [(&work, one), (&other, two)]
        .map(|(work, url)| runtime.spawn(maintain(work.clone(), url.to_owned())));
    if let Some(copies) = copies() {
        return completed_by_hand(scale, runtime, table, [&work, &other], one, copies);
    }
    for lanes in [1, 8] {
        let ours = Contender::new("ours", |n| lives(runtime, &work, lanes, n));
        let mut contenders = [ours, Contender::new("raw", |n| commit(10 * n))];
        let raced = race(scale, &mut contenders);
        let ratio = raced.first_faster_than(1);
        let name = format!("orders to completed, {lanes} at once");
        let shown = format!("{ratio}, {:.0}/s", raced.per_second(0));
        table.row(&name, "ten commits", ratio.median, shown, Goal::None);
    }
    lag(scale, runtime, table, &work, &mut commit);
    listener(scale, runtime, table, &work, &other);
    many_completed(scale, runtime, table, &work, &other);
    for task in sealing {
        task.abort();
    }
}

/// From the commit of an event to the listener that hears it, with maintenance as it is by default.
fn lag(
    scale: Scale,
    runtime: &Runtime,
    table: &mut Table,
    work: &WorkManager,
    commit: &mut impl FnMut(u64),
) {
    let samples = scale.pick(300, 3);
    let begin = Instant::now();
    commit(samples);
    let one = begin.elapsed().as_secs_f64() / samples as f64;
    let mut lags = runtime.block_on(async {
        let client = work.client(Actor::user("bench").expect("a name"));
        let mut heard = work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("heard");
        let mut lags = Vec::new();
        for _ in 0..samples {
            let proposal = Proposal::new("ignored", json!({}));
            let order = client.propose(proposal).await.expect("proposed").order.id;
            let committed = Instant::now();
            while heard.next().await.expect("an event").order_id != order {}
            lags.push(committed.elapsed().as_secs_f64() / one);
        }
        lags
    });
    lags.sort_by(f64::total_cmp);
    let p99 = percentile(&lags, 99.0);
    let shown = format!("{p99:.0} commits (median {:.0})", percentile(&lags, 50.0));
    table.row("sealing lag, p99", "one commit", p99, shown, Goal::None);
}

/// The same lives with a listener that hears everything, and without.
fn listener(
    scale: Scale,
    runtime: &Runtime,
    table: &mut Table,
    work: &WorkManager,
    other: &WorkManager,
) {
    let heard = runtime.spawn({
        let work = work.clone();
        async move {
            let mut heard =
                work.subscribe(ListenFrom::Now, EventFilter::all()).await.expect("heard");
            loop {
                heard.next().await.expect("an event");
            }
        }
    });
    let mut contenders = [
        Contender::new("heard", |n| lives(runtime, work, 4, n)),
        Contender::new("alone", |n| lives(runtime, other, 4, n)),
    ];
    let ratio = race(scale, &mut contenders).first_faster_than(1);
    table.row("with a listener", "without", ratio.median, ratio.to_string(), Goal::AtLeast(0.9));
    heard.abort();
}

/// With many completed orders in the table, and with few.
fn many_completed(
    scale: Scale,
    runtime: &Runtime,
    table: &mut Table,
    work: &WorkManager,
    other: &WorkManager,
) {
    lives(runtime, work, 8, scale.pick(5_000, 8));
    runtime.block_on(sealed(work));
    let mut contenders = [
        Contender::new("many", |n| lives(runtime, work, 4, n)),
        Contender::new("few", |n| lives(runtime, other, 4, n)),
    ];
    let ratio = race(scale, &mut contenders).first_faster_than(1);
    let what = "with 5,000 more completed orders";
    table.row(what, "without", ratio.median, ratio.to_string(), Goal::AtLeast(0.9));
}

/// Waits until the trail has no tail to seal, so that what was done before is not a load beside what is measured.
async fn sealed(work: &WorkManager) {
    while work.sealing_lag().await.expect("asked").0 > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How many completed orders are wanted by hand.
fn copies() -> Option<u64> {
    std::env::var("LATCHWORK_COMPLETED_ORDERS").ok()?.parse().ok()
}

/// With as many completed orders as were asked for, and with none.
fn completed_by_hand(
    scale: Scale,
    runtime: &Runtime,
    table: &mut Table,
    [work, other]: [&WorkManager; 2],
    url: &str,
    copies: u64,
) {
    lives(runtime, work, 1, 1);
    runtime.block_on(async {
        sealed(work).await;
        let every = OrderQuery::parse([] as [(&str, &str); 0]).expect("a query");
        let last = work.orders(&every).await.expect("listed").orders;
        completed::copy(url, &last[0].order.id.to_string(), copies).await;
    });
    for lanes in [1, 4] {
        let mut contenders = [
            Contender::new("many", |n| lives(runtime, work, lanes, n)),
            Contender::new("none", |n| lives(runtime, other, lanes, n)),
        ];
        let raced = race(scale, &mut contenders);
        let ratio = raced.first_faster_than(1);
        let shown = format!("{ratio}, {:.0}/s", raced.per_second(0));
        let what = format!("with {copies} completed orders, {lanes} at once");
        table.row(&what, "with none", ratio.median, shown, Goal::AtLeast(0.9));
    }
}

/// So many orders are proposed and completed.
fn lives(runtime: &Runtime, work: &WorkManager, lanes: u64, orders: u64) {
    tasks(runtime, lanes, orders, |lane, each| {
        let work = work.clone();
        async move {
            let ada = work.client(Actor::user("ada").expect("a name"));
            let bob = work.client(Actor::user("bob").expect("a name"));
            let agent = work.client(Actor::agent(format!("agent-{lane}")).expect("a name"));
            let worker = work.apply_worker(format!("worker-{lane}")).expect("a name");
            for _ in 0..each {
                let proposal = Proposal::new(TYPE, json!({"text": "x".repeat(500)}));
                let order = ada.propose(proposal).await.expect("proposed").order.id;
                let got = agent.checkout(Checkout::of_order(order)).await.expect("checked out");
                let done = Submission::new(&got.leases[0], json!({"text": "y".repeat(500)}));
                agent.submit(done).await.expect("submitted");
                let preview = work.preview(order).await.expect("a preview");
                bob.approve(Approval::of(&preview)).await.expect("approved");
                worker.apply(order).await.expect("asked").expect("applied");
            }
        }
    });
}

async fn connect(url: &str) -> WorkManager {
    let mut types = OrderTypes::new();
    for name in [TYPE, "ignored"] {
        types.add_dynamic(DynamicOrderType::new(name)).expect("a type");
    }
    WorkManager::builder(types).connect(url).await.expect("a database")
}

/// What a server runs beside: the sealer among others.
async fn maintain(work: WorkManager, url: String) {
    let locks = Locks::connect(&url).await.expect("locks");
    let settings = MaintenanceSettings::default();
    assert!(settings.seal_every <= Duration::from_millis(100));
    Maintenance::new(work, locks, settings).run().await;
}
