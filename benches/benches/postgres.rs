//! Locks in PostgreSQL beside the server's own limits, as ratios of one run.
//!
//! `LATCHWORK_TEST_POSTGRES=postgres://… cargo bench -p latchwork-benches --bench postgres` takes
//! some minutes; names behind `--` (`one`, `some`, `many`, `advisory`, `handing`, `processes`, `quiet`) choose parts of it. Goals are printed and not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use latchwork_benches::{
    Contender, Goal, HandOver, Locking, Released, Scale, Table, holder_killed, idle_waiters,
    play_the_holder, race, runtime, tasks, timed, wants,
};
use latchwork_lock::provider::Token;
use latchwork_lock::{Locks, PostgresLockProvider};
use sqlx::postgres::{PgAdvisoryLock, PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Of every pool but the advisory locks', which need one connection a lock.
const POOL: u32 = 16;

/// How many locks are held at once beside advisory locks.
const AT_ONCE: usize = 64;

fn main() -> ExitCode {
    let runtime = runtime();
    if runtime.block_on(play_the_holder()) {
        return ExitCode::SUCCESS;
    }
    let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
        let hint = "no server: `scripts/services up postgres` starts one";
        return latchwork_benches::missing("postgres", hint);
    };
    let scale = Scale::from_args();
    let place = runtime.block_on(Place::new(server));

    let mut speed =
        Table::new("Acquire and release, uncontended: throughput in units of two UPDATEs");
    for synchronous in [true, false] {
        for (tasks, part) in [(1, "one"), (8, "some"), (64, "many")] {
            if wants(part) {
                uncontended(scale, &runtime, &place, synchronous, tasks, &mut speed);
            }
        }
    }
    speed.print(scale);
    if wants("advisory") {
        let mut advisory = Table::new("Beside sqlx's PgAdvisoryLock, 64 tasks");
        beside_advisory_locks(scale, &runtime, &place, &mut advisory);
        advisory.print(scale);
    }
    let mut handing = Table::new("One key that many tasks want: hand-overs in units of one UPDATE");
    if wants("handing") {
        for waiters in [2, 16, 32, 64] {
            hand_over(scale, &runtime, &place, waiters, 1, &mut handing);
        }
    }
    if wants("processes") {
        hand_over(scale, &runtime, &place, 32, 2, &mut handing);
    }
    handing.print(scale);
    if wants("quiet") {
        let mut quiet = Table::new("Waiting and dying");
        waiting(scale, &runtime, &place, &mut quiet);
        holder_killed(scale, &runtime, &place.address, Goal::AtMost(1.25), &mut quiet);
        quiet.print(scale);
    }

    runtime.block_on(place.remove());
    ExitCode::SUCCESS
}

// ---- the place ---------------------------------------------------------------------------------

/// A database of its own, so that the server's counters count nothing else.
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
        let pool = place.pool(true, 1).await;
        let rows = "CREATE TABLE raw (id bigint PRIMARY KEY, number bigint NOT NULL); \
                    INSERT INTO raw SELECT n, 0 FROM generate_series(0, 63) n";
        sqlx::raw_sql(rows).execute(&pool).await.expect("rows");
        pool.close().await;
        place
    }

    async fn remove(self) {
        self.admin(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }

    async fn admin(&self, sql: &str) {
        let mut admin = PgConnection::connect(&self.server).await.expect("the server is there");
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut admin).await.expect(sql);
        admin.close().await.expect("closed");
    }

    /// A pool, with the settings that the provider's own has.
    async fn pool(&self, synchronous: bool, size: u32) -> PgPool {
        self.pool_of("bench", synchronous, size).await
    }

    /// A pool whose connections, and what is opened like them, have a name.
    async fn pool_of(&self, name: &str, synchronous: bool, size: u32) -> PgPool {
        let options: PgConnectOptions = self.address.parse().expect("an address");
        let options = options.application_name(name);
        let commit = if synchronous { "on" } else { "off" };
        PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(Duration::from_secs(30))
            .test_before_acquire(false)
            .connect_with(options.options([("synchronous_commit", commit)]))
            .await
            .expect("the server is there")
    }

    async fn locks(&self, synchronous: bool) -> Locks {
        let pool = self.pool(synchronous, POOL).await;
        Locks::new(PostgresLockProvider::from_pool(pool).await.expect("the server is there"))
    }

    /// How many connections of a name there are.
    async fn connections(&self, name: &str) -> i64 {
        let mut admin = PgConnection::connect(&self.server).await.expect("the server is there");
        let count =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = $2";
        let query = sqlx::query(count).bind(&self.name).bind(name);
        let row = query.fetch_one(&mut admin).await.expect("counted");
        admin.close().await.expect("closed");
        row.try_get(0).expect("a number")
    }

    /// Transactions of this database that the server has counted.
    async fn transactions(&self) -> i64 {
        let mut admin = PgConnection::connect(&self.server).await.expect("the server is there");
        let count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        let row = sqlx::query(count).bind(&self.name).fetch_one(&mut admin).await.expect("counted");
        admin.close().await.expect("closed");
        row.try_get(0).expect("a number")
    }
}

/// One durable one-row transaction.
async fn update(pool: &PgPool, row: i64) {
    let update = "UPDATE raw SET number = number + 1 WHERE id = $1";
    sqlx::query(update).bind(row).execute(pool).await.expect("updated");
}

async fn cycle(locks: &Locks, key: &str) {
    Released(locks.clone()).with(key, ready(())).await;
}

// ---- uncontended -------------------------------------------------------------------------------

fn uncontended(
    scale: Scale,
    runtime: &Runtime,
    place: &Place,
    synchronous: bool,
    count: u64,
    table: &mut Table,
) {
    let locks = runtime.block_on(place.locks(synchronous));
    let pool = runtime.block_on(place.pool(synchronous, POOL));
    let ours = Contender::new("latchwork", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let locks = locks.clone();
            async move {
                let key = format!("order:{task}");
                for _ in 0..each {
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
    let goal = match (count, synchronous) {
        (1 | 8, _) => Goal::Stretch(0.85, 1.1),
        (_, true) => Goal::AtLeast(2.0),
        (_, false) => Goal::AtLeast(1.5),
    };
    let commit = if synchronous { "on" } else { "off" };
    let what = format!("{count} tasks, synchronous_commit {commit}");
    table.row(&what, "two UPDATEs", ratio.median, ratio.to_string(), goal);
    runtime.block_on(async {
        locks.close().await;
        pool.close().await;
    });
}

// ---- advisory locks ----------------------------------------------------------------------------

fn beside_advisory_locks(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    const PEER: &str = "PgAdvisoryLock";
    let own = runtime.block_on(place.pool_of("ours", true, POOL));
    let provider = runtime.block_on(PostgresLockProvider::from_pool(own.clone()));
    let locks = Locks::new(provider.expect("the server is there"));
    let theirs = runtime.block_on(place.pool(true, AT_ONCE as u32));

    // All at once: how many connections that takes.
    runtime.block_on(async {
        let all_hold = Arc::new(Barrier::new(AT_ONCE));
        let mut set = JoinSet::new();
        for task in 0..AT_ONCE {
            let (locks, theirs, all_hold) = (locks.clone(), theirs.clone(), all_hold.clone());
            set.spawn(async move {
                let key = format!("order:{task}");
                let wait = || async {
                    all_hold.wait().await;
                };
                Released(locks).with(&key, wait()).await;
                with_advisory_lock(&theirs, &key, wait()).await;
            });
        }
        set.join_all().await;
    });
    let (ours, peers) = (runtime.block_on(place.connections("ours")), theirs.size());
    let shown = format!("{ours} and {peers}");
    table.row("connections, 64 locks held at once", PEER, ours as f64, shown, Goal::None);

    let ours = Contender::new("latchwork", |operations| {
        tasks(runtime, AT_ONCE as u64, operations, |task, each| {
            let locks = locks.clone();
            async move {
                let key = format!("order:{task}");
                for _ in 0..each {
                    cycle(&locks, &key).await;
                }
            }
        });
    });
    let peer = Contender::new(PEER, |operations| {
        tasks(runtime, AT_ONCE as u64, operations, |task, each| {
            let theirs = theirs.clone();
            async move {
                let key = format!("order:{task}");
                for _ in 0..each {
                    with_advisory_lock(&theirs, &key, ready(())).await;
                }
            }
        });
    });
    let race = race(scale, &mut [ours, peer]);
    let ratio = race.first_faster_than(1);
    table.row("cycles a second, durable", PEER, ratio.median, ratio.to_string(), Goal::None);
    runtime.block_on(async {
        locks.close().await;
        own.close().await;
        theirs.close().await;
    });
}

/// As its documentation shows it: a connection for each lock, for as long as that is held.
async fn with_advisory_lock(pool: &PgPool, key: &str, inside: impl Future<Output = ()>) {
    let connection = pool.acquire().await.expect("a connection");
    let lock = PgAdvisoryLock::new(key);
    let guard = lock.acquire(connection).await.expect("granted");
    inside.await;
    guard.release_now().await.expect("released");
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
    let pool = runtime.block_on(place.pool(true, POOL));
    let locks: Vec<Locks> = (0..processes).map(|_| runtime.block_on(place.locks(true))).collect();
    let goal = |most| if waiters == 32 { Goal::AtMost(most) } else { Goal::None };
    let hand_over = HandOver {
        waiters,
        grants: scale.pick(1_000, 16),
        rounds: scale.rounds.min(5),
        unit: "one idle UPDATE",
        goals: [goal(2.2), goal(8.0)],
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
    // A session tells its counters at most once a second, and when it falls idle within ten.
    let settled = Duration::from_secs(10);
    let made = runtime.block_on(async {
        let counter = async || place.transactions().await;
        idle_waiters(scale, &place.locks(true).await, settled, 20, counter).await
    });
    let what = "transactions a second, 1,000 idle waiters";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(3.0));
}
