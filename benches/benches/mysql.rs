//! Locks in MariaDB beside the server's own limits, as ratios of one run.
//!
//! `LATCHWORK_TEST_MARIADB=mysql://… cargo bench -p latchwork-benches --bench mysql` takes some
//! minutes. Goals are printed and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::future::ready;
use std::process::ExitCode;
use std::time::Duration;

use latchwork_benches::{
    Contender, Goal, HandOver, Locking, Released, Scale, Table, holder_killed, idle_waiters,
    play_the_holder, race, runtime, tasks, timed,
};
use latchwork_lock::provider::Token;
use latchwork_lock::{Locks, MySqlLockProvider};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use tokio::runtime::Runtime;

/// Of every pool: as many as the provider opens itself.
const POOL: u32 = 10;

fn main() -> ExitCode {
    let runtime = runtime();
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
        uncontended(scale, &runtime, &place, tasks, Way::Own, &mut speed);
    }
    for tasks in [1, 64] {
        uncontended(scale, &runtime, &place, tasks, Way::Lent, &mut speed);
    }
    uncontended(scale, &runtime, &place, 64, Way::New, &mut speed);
    speed.print(scale);
    let mut handing = Table::new("One key that many tasks want: hand-overs in units of one UPDATE");
    for waiters in [2, 16, 64] {
        hand_over(scale, &runtime, &place, waiters, 1, &mut handing);
    }
    hand_over(scale, &runtime, &place, 16, 2, &mut handing);
    handing.print(scale);
    let mut quiet = Table::new("Waiting and dying");
    waiting(scale, &runtime, &place, &mut quiet);
    holder_killed(scale, &runtime, &place.address, Goal::AtMost(1.25), &mut quiet);
    quiet.print(scale);
    runtime.block_on(place.remove());
    ExitCode::SUCCESS
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
        Locks::connect(&self.address).await.expect("the server is there")
    }

    /// On a pool that may have other users.
    async fn locks_on_a_pool(&self) -> Locks {
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

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// On connections of its own.
    Own,
    /// On a pool that may have other users.
    Lent,
    /// With keys that nobody ever used.
    New,
}

fn uncontended(
    scale: Scale,
    runtime: &Runtime,
    place: &Place,
    count: u64,
    way: Way,
    table: &mut Table,
) {
    let locks = match way {
        Way::Lent => runtime.block_on(place.locks_on_a_pool()),
        _ => runtime.block_on(place.locks()),
    };
    let pool = runtime.block_on(place.pool());
    let ours = Contender::new("latchwork", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let locks = locks.clone();
            async move {
                let mut key = format!("order:{task}");
                for _ in 0..each {
                    if way == Way::New {
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
    let (how, goal) = match way {
        Way::Own => ("", Goal::AtLeast(0.8)),
        Way::Lent => (", on the user's pool", Goal::AtLeast(0.8)),
        Way::New => (", keys that are new", Goal::None),
    };
    let what = format!("{count} tasks{how}");
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
    let pool = runtime.block_on(place.pool());
    let locks: Vec<Locks> = (0..processes).map(|_| runtime.block_on(place.locks())).collect();
    let hand_over = HandOver {
        waiters,
        grants: scale.pick(200, 16),
        rounds: scale.rounds.min(3),
        unit: "one idle UPDATE",
        goals: [Goal::None, Goal::None],
    };
    let idle = async || {
        let pool = pool.clone();
        timed(scale.pick(300, 3), move || {
            let pool = pool.clone();
            async move { update(&pool, 0).await }
        })
        .await
    };
    hand_over.measure(runtime, &locks, idle, table);
    runtime.block_on(async {
        for locks in locks {
            locks.close().await;
        }
        pool.close().await;
    });
}

// ---- waiting -----------------------------------------------------------------------------------

fn waiting(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let made = runtime.block_on(async {
        let counter = async || place.statements().await;
        idle_waiters(scale, &place.locks().await, Duration::ZERO, 10, counter).await
    });
    // There are no notices: the ten who are first in line look twice a tick, together.
    let what = "statements a second, 1,000 idle waiters on 10 keys";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(50.0));
}
