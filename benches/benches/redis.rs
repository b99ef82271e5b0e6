//! Locks in Redis beside the server's own limits and `rslock`, as ratios of one run.
//!
//! `LATCHWORK_TEST_REDIS=redis://… cargo bench -p latchwork-benches --bench redis` takes some
//! minutes, or less with names of its parts behind it: `-- tasks-64 hand-over`. Goals are printed and
//! not asserted: a busy machine is no fault of the code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_benches::{
    Contender, Goal, HandOver, Locking, Ratio, Released, Scale, Table, holder_killed, idle_waiters,
    missing, percentile, play_the_holder, race, runtime, tasks, timed, wants,
};
use latchwork_lock::Locks;
use latchwork_lock::provider::Token;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const WAITERS: usize = 64;

fn main() -> ExitCode {
    let runtime = runtime();
    if runtime.block_on(play_the_holder()) {
        return ExitCode::SUCCESS;
    }
    let Ok(server) = std::env::var("LATCHWORK_TEST_REDIS") else {
        return missing("redis", "no server: `scripts/services up redis` starts one");
    };
    let scale = Scale::from_args();
    let place = Place { client: Client::open(&*server).expect("an address"), server };

    let mut speed = Table::new("Acquire and release on keys of their own: throughput");
    for tasks in [1, 8, 64, 256] {
        if wants(&format!("tasks-{tasks}")) {
            uncontended(scale, &runtime, &place, tasks, &mut speed);
        }
    }
    let mut handing = Table::new("One key that 64 tasks want");
    if wants("hand-over") {
        hand_over(scale, &runtime, &place, &mut handing);
    }
    if wants("rslock") {
        beside_rslock(scale, &runtime, &place, &mut handing);
    }
    let mut quiet = Table::new("Waiting and dying");
    if wants("dying") {
        waiting(scale, &runtime, &place, &mut quiet);
        holder_killed(scale, &runtime, &place.server, Goal::AtMost(1.25), &mut quiet);
    }
    for table in [speed, handing, quiet] {
        table.print(scale);
    }
    ExitCode::SUCCESS
}

// ---- the place ---------------------------------------------------------------------------------

struct Place {
    server: String,
    client: Client,
}

impl Place {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.server).await.expect("the server is there")
    }

    /// A connection with the settings that the provider's own has.
    async fn raw(&self) -> Raw {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(3)));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.expect("the server is there");
        let mut load = async |script: &str| {
            let hash: String = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script)
                .query_async(&mut connection)
                .await
                .expect("it answers");
            hash
        };
        let take = load("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])").await;
        let drop = load(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) \
             else return 0 end",
        )
        .await;
        Raw { connection, take: take.into(), drop: drop.into() }
    }

    /// Scripts that the server has run.
    async fn scripts(&self) -> i64 {
        let mut connection = self.raw().await.connection;
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut connection)
            .await
            .expect("it answers");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|rest| rest.split(',').next()).map_or(0, |n| n.parse().expect("a number"))
    }
}

/// What many write by hand: a key that is set, and deleted by the client that has its token.
#[derive(Clone)]
struct Raw {
    connection: MultiplexedConnection,
    take: Arc<str>,
    drop: Arc<str>,
}

impl Raw {
    async fn ask(&mut self, command: &mut redis::Cmd) {
        let answer: Value = command.query_async(&mut self.connection).await.expect("it answers");
        assert!(!matches!(answer, Value::Nil | Value::Int(0)), "{answer:?}");
    }

    async fn set(&mut self, key: &str, token: u64) {
        let mut set = redis::cmd("SET");
        self.ask(set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000)).await;
    }

    async fn take(&mut self, key: &str, token: u64) {
        let mut take = redis::cmd("EVALSHA");
        self.ask(take.arg(&*self.take.clone()).arg(1).arg(key).arg(token).arg(30_000)).await;
    }

    async fn drop(&mut self, key: &str, token: u64) {
        let mut drop = redis::cmd("EVALSHA");
        self.ask(drop.arg(&*self.drop.clone()).arg(1).arg(key).arg(token)).await;
    }

    async fn ping(&mut self) {
        self.ask(&mut redis::cmd("PING")).await;
    }
}

/// `rslock`, told to try again every millisecond, since it cannot be woken.
#[derive(Clone)]
struct Rslock(rslock::LockManager);

impl Rslock {
    fn new(place: &Place) -> Self {
        let mut manager = rslock::LockManager::from_clients(vec![place.client.clone()]);
        manager.set_retry(1_000_000, Duration::from_millis(1));
        Rslock(manager)
    }
}

impl Locking for Rslock {
    async fn with(&self, key: &str, inside: impl Future<Output = ()> + Send) {
        let lock = self.0.acquire_no_guard(key, Duration::from_secs(30)).await.expect("granted");
        inside.await;
        self.0.unlock(&lock).await;
    }
}

// ---- uncontended -------------------------------------------------------------------------------

fn uncontended(scale: Scale, runtime: &Runtime, place: &Place, count: u64, table: &mut Table) {
    let (locks, raw) = runtime.block_on(async { (place.locks().await, place.raw().await) });
    let name = format!("{:x}", Token::random().expose());
    let cycles = |locks: Released| {
        let name = name.clone();
        move |operations| {
            tasks(runtime, count, operations, |task, each| {
                let (locks, key) = (locks.clone(), format!("{name}:{task}"));
                async move {
                    for _ in 0..each {
                        locks.with(&key, ready(())).await;
                    }
                }
            });
        }
    };
    let by_hand = |scripts: bool| {
        let (raw, name) = (raw.clone(), &name);
        move |operations| {
            tasks(runtime, count, operations, |task, each| {
                let (mut raw, key) = (raw.clone(), format!("raw:{name}:{task}"));
                async move {
                    for token in 1..=each {
                        if scripts {
                            raw.take(&key, token).await;
                        } else {
                            raw.set(&key, token).await;
                        }
                        raw.drop(&key, token).await;
                    }
                }
            });
        }
    };
    let race = race(
        scale,
        &mut [
            Contender::new("latchwork", cycles(Released(locks))),
            Contender::new("two raw EVALSHA", by_hand(true)),
            Contender::new("SET NX PX and DEL script", by_hand(false)),
        ],
    );
    for (at, other) in race.others() {
        let goal = match (at, count) {
            (1, 1) => Goal::AtLeast(0.85),
            (1, 64) => Goal::AtLeast(1.1),
            (1, 256) => Goal::AtLeast(1.5),
            (2, 64) => Goal::AtLeast(0.7),
            _ => Goal::None,
        };
        let ratio = race.first_faster_than(at);
        table.row(&format!("{count} tasks"), other, ratio.median, ratio.to_string(), goal);
    }
    if count == 64 {
        let ours = runtime.block_on(place.locks());
        let theirs = Rslock::new(place);
        let race = race_of_two(scale, cycles(Released(ours)), |operations| {
            tasks(runtime, count, operations, |task, each| {
                let (locks, key) = (theirs.clone(), format!("rslock:{name}:{task}"));
                async move {
                    for _ in 0..each {
                        locks.with(&key, ready(())).await;
                    }
                }
            });
        });
        table.row("64 tasks", "rslock", race.median, race.to_string(), Goal::AtLeast(1.0));
    }
}

fn race_of_two(scale: Scale, ours: impl FnMut(u64), theirs: impl FnMut(u64)) -> Ratio {
    race(scale, &mut [Contender::new("latchwork", ours), Contender::new("other", theirs)])
        .first_faster_than(1)
}

// ---- one hot key -------------------------------------------------------------------------------

fn hand_over(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let raw = runtime.block_on(place.raw());
    for (processes, median, longest) in [(1, 2.0, 5.0), (2, 6.5, 7.0)] {
        let locks: Vec<Locks> = (0..processes).map(|_| runtime.block_on(place.locks())).collect();
        let hand_over = HandOver {
            waiters: WAITERS,
            grants: scale.pick(4_000, 64),
            rounds: scale.rounds.min(7),
            unit: "one PING",
            goals: [Goal::AtMost(median), Goal::AtMost(longest)],
        };
        let idle = async || {
            let raw = raw.clone();
            timed(scale.pick(1_000, 3), move || {
                let mut raw = raw.clone();
                async move { raw.ping().await }
            })
            .await
        };
        hand_over.measure(runtime, &locks, idle, table);
        runtime.block_on(async {
            for locks in locks {
                locks.close().await;
            }
        });
    }
}

/// Grants a second, and how long a request waits, on one hot key.
fn beside_rslock(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    // So many that the first question of each, which opens connections, is no hundredth of them.
    let grants = scale.pick(20_000, 64);
    let (mut faster, mut sooner) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(5) {
        let ours = runtime.block_on(async { crowd(Released(place.locks().await), grants).await });
        let theirs = runtime.block_on(crowd(Rslock::new(place), grants));
        faster.push(theirs.0 / ours.0);
        sooner.push(percentile(&theirs.1, 99.0) / percentile(&ours.1, 99.0));
    }
    let (faster, sooner) = (Ratio::of(faster), Ratio::of(sooner));
    let peer = "rslock, every ms";
    table.row("grants a second", peer, faster.median, faster.to_string(), Goal::AtLeast(2.5));
    table.row(
        "p99 of the wait, theirs in ours",
        peer,
        sooner.median,
        sooner.to_string(),
        Goal::AtLeast(10.0),
    );
}

/// Many tasks that want one key: how long all grants took, and each wait; sorted.
async fn crowd<L: Locking>(locks: L, grants: u64) -> (f64, Vec<f64>) {
    let key = format!("hot:{:x}", Token::random().expose());
    let left = Arc::new(std::sync::atomic::AtomicI64::new(grants as i64));
    let begin = Instant::now();
    let mut set = JoinSet::new();
    for _ in 0..WAITERS {
        let (locks, key, left) = (locks.clone(), key.clone(), left.clone());
        set.spawn(async move {
            let mut waits = Vec::new();
            while left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
                let asked = Instant::now();
                let inside = async { waits.push(asked.elapsed().as_nanos() as f64) };
                locks.with(&key, inside).await;
            }
            waits
        });
    }
    let mut waits: Vec<f64> = set.join_all().await.into_iter().flatten().collect();
    waits.sort_by(f64::total_cmp);
    (begin.elapsed().as_secs_f64(), waits)
}

// ---- waiting -----------------------------------------------------------------------------------

fn waiting(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let made = runtime.block_on(async {
        let counter = async || place.scripts().await;
        idle_waiters(scale, &place.locks().await, Duration::ZERO, 10, counter).await
    });
    let what = "messages a second, 1,000 idle waiters";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(5.0));
}
