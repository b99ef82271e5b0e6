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
    Contender, Goal, Locking, Ratio, Released, Round, Scale, Table, around, jain, killed, missing,
    percentile, play_the_holder, race, tasks,
};
use latchwork_lock::{Locks, Token};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const WAITERS: usize = 64;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
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
        if wanted(&format!("tasks-{tasks}")) {
            uncontended(scale, &runtime, &place, tasks, &mut speed);
        }
    }
    let mut handing = Table::new("One key that 64 tasks want");
    if wanted("hand-over") {
        hand_over(scale, &runtime, &place, &mut handing);
    }
    if wanted("rslock") {
        beside_rslock(scale, &runtime, &place, &mut handing);
    }
    let mut quiet = Table::new("Waiting and dying");
    if wanted("dying") {
        idle_waiters(scale, &runtime, &place, &mut quiet);
        holder_killed(scale, &runtime, &place, &mut quiet);
    }
    // A look has no figures worth reading.
    if scale.is_whole() {
        for table in [speed, handing, quiet] {
            table.print();
        }
    }
    ExitCode::SUCCESS
}

/// Whether a part was named, or none was.
fn wanted(part: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|name| name == part)
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
    async fn scripts(&self) -> u64 {
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

/// What many write by hand: a key that is set, and deleted by whoever has its token.
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
            (1, 64) => Goal::AtLeast(1.3),
            (1, 256) => Goal::AtLeast(2.0),
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
    let grants = scale.pick(4_000, 64);
    for processes in [1, 2] {
        let (mut p50, mut p99, mut fair) = (vec![], vec![], vec![]);
        for _ in 0..scale.rounds.min(7) {
            let unit = percentile(&runtime.block_on(pings(place, scale.pick(1_000, 3))), 50.0);
            let round = runtime.block_on(ours_around(place, processes, grants));
            p50.push(percentile(&round.hand_overs, 50.0) / unit);
            p99.push(percentile(&round.hand_overs, 99.0) / unit);
            fair.push(jain(&round.shares));
        }
        let of = if processes == 1 { String::new() } else { format!(", {processes} processes") };
        let (p50, p99, fair) = (Ratio::of(p50), Ratio::of(p99), Ratio::of(fair));
        let unit = "one PING";
        table.row(
            &format!("p50 of a hand-over{of}"),
            unit,
            p50.median,
            p50.to_string(),
            Goal::AtMost(1.8),
        );
        table.row(
            &format!("p99 of a hand-over{of}"),
            unit,
            p99.median,
            p99.to_string(),
            Goal::AtMost(5.0),
        );
        let shown = format!("{:.4} ({:.4} to {:.4})", fair.median, fair.low, fair.high);
        table.row(&format!("Jain's index{of}"), "", fair.median, shown, Goal::AtLeast(0.95));
    }
}

async fn ours_around(place: &Place, processes: usize, grants: u64) -> Round {
    // Each provider is to the server what a process is.
    let mut all = Vec::new();
    for _ in 0..processes {
        all.push(place.locks().await);
    }
    let round = around(
        WAITERS,
        grants,
        |task| Released(all[task % all.len()].clone()),
        || async { wait_for(&all[0], "order:1", WAITERS).await },
    )
    .await;
    for locks in all {
        locks.close().await;
    }
    round
}

/// What one costs when nothing else happens; sorted.
async fn pings(place: &Place, count: u64) -> Vec<f64> {
    let mut raw = place.raw().await;
    // On a worker like the tasks that it is compared with.
    let timed = tokio::spawn(async move {
        let mut took = Vec::new();
        for _ in 0..count {
            let begin = Instant::now();
            raw.ping().await;
            took.push(begin.elapsed().as_nanos() as f64);
        }
        took.sort_by(f64::total_cmp);
        took
    });
    timed.await.expect("no panic")
}

/// Ends when so many wait for the key.
async fn wait_for(locks: &Locks, key: &str, count: usize) {
    while locks.inspect(key).await.expect("it answers").waiters.len() < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Grants a second, and how long a request waits, on one hot key.
fn beside_rslock(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let grants = scale.pick(4_000, 64);
    let (mut faster, mut sooner) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(5) {
        let ours = runtime.block_on(async { crowd(Released(place.locks().await), grants).await });
        let theirs = runtime.block_on(crowd(Rslock::new(place), grants));
        faster.push(theirs.0 / ours.0);
        sooner.push(percentile(&theirs.1, 99.0) / percentile(&ours.1, 99.0));
    }
    let (faster, sooner) = (Ratio::of(faster), Ratio::of(sooner));
    let peer = "rslock, every ms";
    table.row("grants a second", peer, faster.median, faster.to_string(), Goal::AtLeast(1.0));
    table.row(
        "p99 of the wait, theirs in ours",
        peer,
        sooner.median,
        sooner.to_string(),
        Goal::AtLeast(20.0),
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

// ---- waiting and dying -------------------------------------------------------------------------

fn idle_waiters(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    const KEYS: usize = 10;
    let each = scale.pick(100, 2) as usize;
    let span = Duration::from_secs(scale.pick(10, 0));
    let made = runtime.block_on(async {
        let locks = place.locks().await;
        let name = format!("{:x}", Token::random().expose());
        let mut guards = Vec::new();
        let mut waiting = JoinSet::new();
        for key in 0..KEYS {
            let key = format!("idle:{name}:{key}");
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
        let before = place.scripts().await;
        tokio::time::sleep(span).await;
        let after = place.scripts().await;
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
        drop(guards);
        locks.close().await;
        (after - before) as f64 / span.as_secs_f64()
    });
    let what = "messages a second, 1,000 idle waiters";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(5.0));
}

fn holder_killed(scale: Scale, runtime: &Runtime, place: &Place, table: &mut Table) {
    let (mut from_kill, mut from_grant) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(5) {
        let seen = runtime.block_on(killed(&place.server));
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
