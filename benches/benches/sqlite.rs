//! Locks in an SQLite file beside SQLite's own limits, as ratios of one run.
//!
//! `cargo bench -p latchwork-benches --bench sqlite` takes a minute or so; names behind `--` (`one`,
//! `some`, `many`, `handing`, `dying`) choose parts of it. Goals are printed and not
//! asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::future::ready;
use std::path::Path;
use std::sync::Arc;

use latchwork_benches::{
    Contender, Goal, HandOver, Locking, Released, Scale, Table, holder_killed, play_the_holder,
    race, runtime, tasks, timed, wants,
};
use latchwork_lock::{Locks, SqliteLockProvider};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

fn main() {
    let runtime = runtime();
    if runtime.block_on(play_the_holder()) {
        return;
    }
    let scale = Scale::from_args();
    // Where the build goes, and not where temporary files do: that may be memory.
    let build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let place = tempfile::tempdir_in(build).expect("a directory");

    let mut speed =
        Table::new("Acquire and release, uncontended: throughput in units of two transactions");
    for synchronous in ["full", "normal"] {
        for (tasks, part) in [(1, "one"), (8, "some"), (64, "many")] {
            if wants(part) {
                uncontended(scale, &runtime, place.path(), synchronous, tasks, &mut speed);
            }
        }
    }
    speed.print(scale);
    let mut handing =
        Table::new("One key that many tasks want: hand-overs in units of one transaction");
    for waiters in [2, 16, 32, 64].into_iter().filter(|_| wants("handing")) {
        hand_over(scale, &runtime, place.path(), waiters, &mut handing);
    }
    handing.print(scale);
    if wants("dying") {
        let mut dying = Table::new("Dying");
        let address = address(place.path(), "full");
        holder_killed(scale, &runtime, &address, Goal::AtMost(1.25), &mut dying);
        dying.print(scale);
    }
}

// ---- the file ----------------------------------------------------------------------------------

fn address(place: &Path, synchronous: &str) -> String {
    format!("sqlite://{}?synchronous={synchronous}", place.join("locks.db").display())
}

async fn locks(place: &Path, synchronous: &str) -> Locks {
    let provider = SqliteLockProvider::open(&address(place, synchronous)).await;
    Locks::new(provider.expect("a file"))
}

/// One row a task in a file of its own, over one connection, which spares the driver's pool: SQLite
/// has one writer anyway.
#[derive(Clone)]
struct Raw(Arc<Mutex<SqliteConnection>>);

impl Raw {
    async fn open(place: &Path, synchronous: &str) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(place.join("raw.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match synchronous {
                "full" => SqliteSynchronous::Full,
                _ => SqliteSynchronous::Normal,
            })
            .disable_statement_logging();
        let mut connection = options.connect().await.expect("a file");
        let rows = "CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, number INTEGER); \
                    INSERT OR IGNORE INTO raw \
                    WITH RECURSIVE n (n) AS (SELECT 0 UNION SELECT n + 1 FROM n WHERE n < 63) \
                    SELECT n, 0 FROM n";
        sqlx::raw_sql(rows).execute(&mut connection).await.expect("rows");
        Raw(Arc::new(Mutex::new(connection)))
    }

    async fn update(&self, row: i64) {
        let update = sqlx::query("UPDATE raw SET number = number + 1 WHERE id = ?").bind(row);
        update.execute(&mut *self.0.lock().await).await.expect("updated");
    }
}

// ---- uncontended -------------------------------------------------------------------------------

fn uncontended(
    scale: Scale,
    runtime: &Runtime,
    place: &Path,
    synchronous: &str,
    count: u64,
    table: &mut Table,
) {
    let locks = runtime.block_on(locks(place, synchronous));
    let raw = runtime.block_on(Raw::open(place, synchronous));
    let ours = Contender::new("latchwork", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let locks = Released(locks.clone());
            async move {
                let key = format!("order:{task}");
                for _ in 0..each {
                    locks.with(&key, ready(())).await;
                }
            }
        });
    });
    let theirs = Contender::new("two transactions", |operations| {
        tasks(runtime, count, operations, |task, each| {
            let raw = raw.clone();
            async move {
                for _ in 0..2 * each {
                    raw.update(task as i64).await;
                }
            }
        });
    });
    let ratio = race(scale, &mut [ours, theirs]).first_faster_than(1);
    let goal = match count {
        1 => Goal::AtLeast(0.8),
        8 => Goal::AtLeast(1.0),
        _ => Goal::None,
    };
    let what = format!("{count} tasks, synchronous {synchronous}");
    table.row(&what, "two transactions", ratio.median, ratio.to_string(), goal);
    runtime.block_on(locks.close());
}

// ---- hand-over ---------------------------------------------------------------------------------

fn hand_over(scale: Scale, runtime: &Runtime, place: &Path, waiters: usize, table: &mut Table) {
    let ours = runtime.block_on(locks(place, "full"));
    let raw = runtime.block_on(Raw::open(place, "full"));
    let hand_over = HandOver {
        waiters,
        grants: scale.pick(1_000, 16),
        rounds: scale.rounds.min(5),
        unit: "one transaction",
        goals: [Goal::None, Goal::None],
    };
    let idle = async || {
        let raw = raw.clone();
        timed(scale.pick(300, 3), move || {
            let raw = raw.clone();
            async move { raw.update(0).await }
        })
        .await
    };
    hand_over.measure(runtime, std::slice::from_ref(&ours), idle, table);
    runtime.block_on(ours.close());
}
