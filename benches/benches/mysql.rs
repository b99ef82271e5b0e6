//! Locks in MariaDB beside the server's own limits, as ratios of one run.
//!
//! `LATCHWORK_TEST_MARIADB=mysql://… cargo bench -p latchwork-benches --bench mysql` takes some
//! minutes. Goals are printed and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::future::ready;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use latchwork_benches::{
    Contender, Goal, Locking, Ratio, Released, Scale, Table, around, jain, killed, percentile,
    play_the_holder, race, tasks,
};
use latchwork_lock::{Locks, MySqlLockProvider, Token};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Of every pool.
const POOL: u32 = 16;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if runtime.block_on(play_the_holder()) {
        return ExitCode::SUCCESS;
    }
    let Ok(server) = std::env::var("LATCHWORK_TEST_MARIADB") else {
        let hint = "no server: `scripts/services up mariadb` starts one";
        return latchwork_benches::missing("mysql", hint);
    };
    let scale = Scale::from_args();
    let place = runtime.block_on(Place::new(server));

    let mut speed =
        Table::new("Acquire and release, uncontended: throughput in units of two UPDATEs");
    for tasks in [1, 8, 64] {
        uncontended(scale, &runtime, &place, tasks, true, &mut speed);
    }
    uncontended(scale, &runtime, &place, 64, false, &mut speed);
    show(scale, &speed);
    let mut handing = Table::new("One key that many tasks want: hand-overs in units of one UPDATE");
    for waiters in [2, 16, 64] {
        hand_over(scale, &runtime, &place, waiters, 1, &mut handing);
    }
    hand_over(scale, &runtime, &place, 16, 2, &mut handing);
    show(scale, &handing);
    let mut quiet = Table::new("Waiting and dying");
    idle_waiters(scale, &runtime, &place, &mut quiet);
    holder_killed(scale, &runtime, &place, &mut quiet);
    show(scale, &quiet);
    runtime.block_on(place.remove());
    ExitCode::SUCCESS
}

/// A look has no figures worth reading.
fn show(scale: Scale, table: &Table) {
    if scale.is_whole() {
        table.print();
    }
}

// ---- the place ---------------------------------------------------------------------------------

/// A database of its own.
struct Place {
    server: String,
    name: String,
    address: String,
}

impl Place {
    async fn new(server: String) -> Self {
        let name = format!("bench_{:x}", Token::random().expose());
        let (base, _) = server.rsplit_once('/').expect("it names a database");
        let place = Place { address: format!("{base}/{name}"), name, server };
        place.admin(&format!("CREATE DATABASE {}", place.name)).await;
        let pool = place.pool().await;
        let rows: Vec<String> = (0..64).map(|n| format!("({n}, 0)")).collect();
        let rows = format!(
            "CREATE TABLE raw (id BIGINT PRIMARY KEY, number BIGINT NOT NULL) ENGINE=InnoDB; \
             INSERT INTO raw VALUES {}",
            rows.join(", ")
        );
        sqlx::raw_sql(AssertSqlSafe(rows)).execute(&pool).await.expect("rows");
        pool.close().await;
        place
    }

    async fn remove(self) {
        self.admin(&format!("DROP DATABASE {}", self.name)).await;
    }

    async fn admin(&self, sql: &str) {
        let mut admin = MySqlConnection::connect(&self.server).await.expect("the server is there");
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await.expect(sql);
        admin.close().await.expect("closed");
    }

    /// A pool, with the settings that the provider's own has.
    async fn pool(&self) -> MySqlPool {
        let options: MySqlConnectOptions = self.address.parse().expect("an address");
        MySqlPoolOptions::new()
            .max_connections(POOL)
            .acquire_timeout(Duration::from_secs(30))
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .expect("the server is there")
    }

    async fn locks(&self) -> Locks {
        let provider = MySqlLockProvider::from_pool(self.pool().await).await;
        Locks::new(provider.expect("the server is there"))
    }

    /// Statements that the server has counted. It counts those of everybody.
    async fn statements(&self) -> i64 {
        let mut admin = MySqlConnection::connect(&self.server).await.expect("the server is there");
        let count = "SELECT CAST(variable_value AS SIGNED) \
                     FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'";
        let row = sqlx::raw_sql(count).fetch_one(&mut admin).await.expect("counted");
        admin.close().await.expect("closed");
        row.try_get(0).expect("a number")
    }
}

/// One durable one-row transaction.
async fn update(pool: &MySqlPool, row: i64) {
    let update = "UPDATE raw SET number = number + 1 WHERE id = ?";
    sqlx::query(update).bind(row).execute(pool).await.expect("updated");
}

async fn cycle(locks: &Locks, key: &str) {
    Released(locks.clone()).with(key, ready(())).await;
}

// ---- uncontended -------------------------------------------------------------------------------

/// On keys that are used again and again, or on ones that nobody ever used.
fn uncontended(
    scale: Scale,
    runtime: &Runtime,
    place: &Place,
    count: u64,
    again: bool,
    table: &mut Table,
) {
    let locks = runtime.block_on(place.locks());
    let pool = runtime.block_on(place.pool());
    let ours = Contender::new("latchwork", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let locks = locks.clone();
            async move {
                let mut key = format!("order:{task}");
                for _ in 0..each {
                    if !again {
                        key = format!("order:{:x}", Token::random().expose());
                    }
                    cycle(&locks, &key).await;
                }
            }
        });
    });
    let raw = Contender::new("two UPDATEs", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let pool = pool.clone();
            async move {
                for _ in 0..2 * each {
                    update(&pool, task as i64).await;
                }
            }
        });
    });
    let race = race(scale, &mut [ours, raw]);
    let ratio = race.first_faster_than(1);
    let keys = if again { "" } else { ", keys that are new" };
    let goal = if again { Goal::AtLeast(0.8) } else { Goal::None };
    let what = format!("{count} tasks{keys}");
    table.row(&what, "two UPDATEs", ratio.median, ratio.to_string(), goal);
    runtime.block_on(async {
        locks.close().await;
        pool.close().await;
    });
}

// ---- hand-over ---------------------------------------------------------------------------------

fn hand_over(
    scale: Scale,
    runtime: &Runtime,
    place: &Place,
    waiters: usize,
    processes: usize,
    table: &mut Table,
) {
    let rounds = scale.rounds.min(3);
    let grants = scale.pick(200, 16);
    let pool = runtime.block_on(place.pool());
    // Each provider is to the server what a process is.
    let locks: Vec<Locks> = (0..processes).map(|_| runtime.block_on(place.locks())).collect();
    let (mut p50, mut p99, mut fair) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        let unit = runtime.block_on(idle_update(&pool, scale.pick(300, 3)));
        let round = runtime.block_on(around(
            waiters,
            grants,
            |task| Released(locks[task % locks.len()].clone()),
            || async { wait_for(&locks[0], "order:1", waiters).await },
        ));
        p50.push(percentile(&round.hand_overs, 50.0) / unit);
        p99.push(percentile(&round.hand_overs, 99.0) / unit);
        fair.push(jain(&round.shares));
    }
    let of = match processes {
        1 => format!("{waiters} waiters"),
        _ => format!("{waiters} waiters of {processes} processes"),
    };
    let (p50, p99, fair) = (Ratio::of(p50), Ratio::of(p99), Ratio::of(fair));
    let unit = "one idle UPDATE";
    table.row(&format!("p50, {of}"), unit, p50.median, p50.to_string(), Goal::None);
    table.row(&format!("p99, {of}"), unit, p99.median, p99.to_string(), Goal::None);
    let shown = format!("{:.4} ({:.4} to {:.4})", fair.median, fair.low, fair.high);
    table.row(&format!("Jain's index, {of}"), "", fair.median, shown, Goal::AtLeast(0.95));
    runtime.block_on(async {
        for locks in locks {
            locks.close().await;
        }
        pool.close().await;
    });
}

/// What one costs when nothing else happens: the median.
async fn idle_update(pool: &MySqlPool, count: u64) -> f64 {
    let pool = pool.clone();
    // On a worker like the tasks that it is compared with.
    let timed = tokio::spawn(async move {
        let mut took = Vec::new();
        for _ in 0..count {
            let begin = Instant::now();
            update(&pool, 0).await;
            took.push(begin.elapsed().as_nanos() as f64);
        }
        took.sort_by(f64::total_cmp);
        percentile(&took, 50.0)
    });
    timed.await.expect("no panic")
}

/// Ends when so many wait for the key.
async fn wait_for(locks: &Locks, key: &str, count: usize) {
    while locks.inspect(key).await.expect("it answers").waiters.len() < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// ---- waiting and dying -------------------------------------------------------------------------

fn idle_waiters(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    const KEYS: usize = 10;
    let each = scale.pick(100, 2) as usize;
    let span = Duration::from_secs(scale.pick(10, 0));
    let locks = runtime.block_on(place.locks());
    let made = runtime.block_on(async {
        let mut guards = Vec::new();
        let mut waiting = JoinSet::new();
        for key in 0..KEYS {
            let key = format!("idle:{key}");
            let minutes = Duration::from_secs(600);
            guards.push(locks.lock(&*key).ttl(minutes).acquire().await.expect("a free key"));
            for _ in 0..each {
                let (locks, key) = (locks.clone(), key.clone());
                waiting.spawn(async move {
                    let _ = locks.lock(&*key).wait_forever().acquire().await;
                });
            }
            wait_for(&locks, &key, each).await;
        }
        let before = place.statements().await;
        tokio::time::sleep(span).await;
        let after = place.statements().await;
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
        locks.close().await;
        (after - before) as f64 / span.as_secs_f64()
    });
    // There are no notices: the ten who are first in line look twice a tick, together.
    let what = "statements a second, 1,000 idle waiters on 10 keys";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(50.0));
}

fn holder_killed(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let (mut from_kill, mut from_grant) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(3) {
        let seen = runtime.block_on(killed(&place.address));
        from_kill.push(seen.from_kill);
        from_grant.push(seen.from_grant);
    }
    let (from_kill, from_grant) = (Ratio::of(from_kill), Ratio::of(from_grant));
    let shown = from_kill.to_string();
    table.row("from SIGKILL to the next grant", "the ttl", from_kill.median, shown, Goal::None);
    let shown = from_grant.to_string();
    let goal = Goal::AtMost(1.25);
    table.row("from the dead one's grant to the next", "the ttl", from_grant.median, shown, goal);
}
