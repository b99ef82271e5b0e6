//! The etcd provider beside raw requests on the same server and etcd's own Lock call, as ratios
//! of one run.
//!
//! `scripts/services up etcd`, then `cargo bench -p latchwork-benches --features etcd --bench
//! etcd`, takes some minutes. Goals are printed and not asserted: a busy machine is no fault of
//! the code.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench of locks that are not granted is none, and what was skipped is said"
)]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, LockOptions, PutOptions, Txn, TxnOp,
};
use latchwork_benches::{Contender, Goal, Ratio, Scale, Table, jain, percentile, race};
use latchwork_lock::{Locks, Token};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const WAITERS: usize = 64;
const TTL: Duration = Duration::from_secs(30);

fn main() -> std::io::Result<()> {
    if let Ok(address) = std::env::var("LATCHWORK_BENCH_HOLD") {
        return hold(&address);
    }
    let mut scale = Scale::from_args();
    scale.rounds = scale.rounds.min(9); // a server has its own pace, and a round takes longer
    let Ok(server) = std::env::var("LATCHWORK_TEST_ETCD") else {
        assert!(std::env::var_os("CI").is_none(), "no server: LATCHWORK_TEST_ETCD is not set");
        println!("skipped: no server; `scripts/services up etcd` starts one");
        return Ok(());
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let room = format!("bench-{:x}", Token::random().expose());
    let there = Arc::new(runtime.block_on(Server::open(&server, &room)));

    let mut speed = Table::new("Lock and unlock on one etcd: how many times as fast as …");
    for tasks in [1, WAITERS as u64] {
        lock_and_unlock(scale, &runtime, &there, tasks, &mut speed);
    }
    tell(scale, &speed);
    let mut handing = Table::new("One key that 64 tasks want, again and again");
    hand_over(scale, &runtime, &there, &mut handing);
    tell(scale, &handing);
    let mut rest = Table::new("Waiting, and dying");
    idle(scale, &runtime, &there, &mut rest);
    killed(scale, &runtime, &there, &mut rest)?;
    tell(scale, &rest);
    Ok(())
}

/// A look has no figures worth reading.
fn tell(scale: Scale, table: &Table) {
    if scale.is_whole() {
        table.print();
    }
}

/// Ours and raw ones on the same server, by the same settings.
struct Server {
    address: String,
    place: String,
    room: String,
    locks: Locks,
    client: Client,
    /// What raw entries hang on.
    lease: i64,
}

impl Server {
    async fn open(server: &str, room: &str) -> Self {
        let address = format!("{server}/{room}");
        let place = server.trim_start_matches("etcd://").to_owned();
        let options = ConnectOptions::new().with_require_leader(true);
        let mut client = Client::connect([&place], Some(options)).await.expect("a server");
        let lease = client.lease_grant(600, None).await.expect("a lease").id();
        let locks = Locks::connect(&address).await.expect("a server");
        Server { address, place, room: room.to_owned(), locks, client, lease }
    }
}

// ---- lock and unlock ---------------------------------------------------------------------------

/// A way to lock and unlock.
#[derive(Clone, Copy)]
enum Way {
    Ours,
    Raw,
    LockCall,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Way::Ours => "latchwork",
            Way::Raw => "raw transaction + delete",
            Way::LockCall => "etcd's Lock call",
        }
    }

    async fn once(self, server: &Server, client: &mut Client, key: &str) {
        match self {
            Way::Ours => {
                let request = server.locks.lock(key).ttl(TTL);
                request.acquire().await.expect("granted").release().await.expect("held");
            }
            Way::Raw => {
                let hangs_on = PutOptions::new().with_lease(server.lease);
                let take = Txn::new()
                    .when([Compare::create_revision(key, CompareOp::Equal, 0)])
                    .and_then([TxnOp::put(key, "x", Some(hangs_on))]);
                assert!(client.txn(take).await.expect("it answers").succeeded());
                client.delete(key, None).await.expect("it answers");
            }
            Way::LockCall => {
                let hangs_on = LockOptions::new().with_lease(server.lease);
                let held = client.lock(key, Some(hangs_on)).await.expect("it answers");
                client.unlock(held.key()).await.expect("it answers");
            }
        }
    }
}

fn lock_and_unlock(
    scale: Scale,
    runtime: &Runtime,
    server: &Arc<Server>,
    tasks: u64,
    table: &mut Table,
) {
    let mut all =
        [Way::Ours, Way::Raw, Way::LockCall].map(|way| contender(runtime, server, tasks, way));
    let race = race(scale, &mut all);
    for ((other, name), goal) in race.others().zip([0.8, 1.0]) {
        let ratio = race.first_faster_than(other);
        let what = if tasks == 1 { "1 task" } else { "64 tasks, each with its own keys" };
        table.row(what, name, ratio.median, ratio.to_string(), Goal::AtLeast(goal));
    }
}

/// Tasks that each lock and unlock keys of their own.
fn contender<'a>(
    runtime: &'a Runtime,
    server: &Arc<Server>,
    tasks: u64,
    way: Way,
) -> Contender<'a> {
    let server = server.clone();
    Contender::new(way.name(), move |operations| {
        let count = operations.div_ceil(tasks);
        let mut all = JoinSet::new();
        for task in 0..tasks {
            let server = server.clone();
            let work = async move {
                let mut client = server.client.clone();
                // The address of ours has the room in it: all names are about as long.
                let room = if matches!(way, Way::Ours) { "" } else { &*server.room };
                for n in 0..count {
                    let key = format!("{room}/{}/{task}/{}", way.name(), n % 8);
                    way.once(&server, &mut client, &key).await;
                }
            };
            all.spawn_on(work, runtime.handle());
        }
        runtime.block_on(all.join_all());
    })
}

// ---- hand-over ---------------------------------------------------------------------------------

fn hand_over(scale: Scale, runtime: &Runtime, server: &Arc<Server>, table: &mut Table) {
    let grants = scale.pick(640, 64);
    let (mut fair, mut p50, mut p99, mut own) = (vec![], vec![], vec![], vec![]);
    for _ in 0..scale.pick(3, 1) {
        let puts = runtime.block_on(puts(server, scale.pick(400, 4)));
        let put = percentile(&puts, 50.0);
        own.push(percentile(&puts, 99.0) / put);
        let (shares, took) = runtime.block_on(around(server, grants));
        fair.push(jain(&shares));
        p50.push(percentile(&took, 50.0) / put);
        p99.push(percentile(&took, 99.0) / put);
    }
    let fair = Ratio::of(fair);
    let shown = format!("{:.4} ({:.4} to {:.4})", fair.median, fair.low, fair.high);
    table.row("Jain's fairness index", "", fair.median, shown, Goal::AtLeast(0.95));
    for (what, figures, goal) in [
        ("p50 of a hand-over", p50, Goal::None),
        ("p99 of a hand-over", p99, Goal::AtMost(5.0)),
        ("p99 of the put itself", own, Goal::None),
    ] {
        let ratio = Ratio::of(figures);
        table.row(what, "the median of a put", ratio.median, ratio.to_string(), goal);
    }
}

/// How long a put takes on a server that has nothing else to do; sorted.
async fn puts(server: &Server, count: u64) -> Vec<f64> {
    let mut client = server.client.clone();
    let mut took = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        client.put(format!("{}/put", server.room), "x", None).await.expect("it answers");
        took.push(begin.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    took
}

/// Tasks that all want the same key, again and again: how often each got it, and how long it took
/// from just before a release to just after the next grant; sorted.
async fn around(server: &Arc<Server>, grants: u64) -> (Vec<u64>, Vec<f64>) {
    let start = Instant::now();
    let since = move || start.elapsed().as_nanos() as u64;
    let granted = Arc::new(AtomicU64::new(0));
    let released = Arc::new(AtomicU64::new(0));
    let here = Arc::new(Barrier::new(WAITERS + 1));
    let first = server.locks.lock("hot").ttl(TTL).acquire().await.expect("free");
    let mut tasks = JoinSet::new();
    for task in 0..WAITERS {
        let (server, here) = (server.clone(), here.clone());
        let (granted, released) = (granted.clone(), released.clone());
        tasks.spawn(async move {
            here.wait().await;
            let (mut share, mut took) = (0, Vec::new());
            loop {
                let request = server.locks.lock("hot").ttl(TTL).wait_forever();
                let guard = request.acquire().await.expect("its turn");
                let waited = since() - released.load(Ordering::Relaxed);
                let over = granted.fetch_add(1, Ordering::Relaxed) >= grants;
                if !over {
                    share += 1;
                    took.push(waited as f64 / 1e9);
                }
                released.store(since(), Ordering::Relaxed);
                guard.release().await.expect("held");
                if over {
                    return (task, share, took);
                }
            }
        });
    }
    here.wait().await;
    loop {
        let waiting = server.locks.inspect("hot").await.expect("it answers").waiters.len();
        if waiting == WAITERS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    released.store(since(), Ordering::Relaxed);
    first.release().await.expect("held");
    let (mut shares, mut all) = (vec![0; WAITERS], Vec::new());
    for (task, share, took) in tasks.join_all().await {
        shares[task] = share;
        all.extend(took);
    }
    all.sort_by(f64::total_cmp);
    (shares, all)
}

// ---- waiting and dying -------------------------------------------------------------------------

/// Requests that the server has had, as it counts them.
async fn asked(server: &Server) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(&server.place).await.expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let lines = text.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
}

fn idle(scale: Scale, runtime: &Runtime, server: &Arc<Server>, table: &mut Table) {
    let waiters = scale.pick(1_000, 16) as usize;
    let span = Duration::from_millis(scale.pick(10_000, 200));
    let per_second = runtime.block_on(async {
        let long = TTL * 20;
        let guard = server.locks.lock("idle").ttl(long).acquire().await.expect("free");
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            let server = server.clone();
            tasks.spawn(async move { server.locks.lock("idle").wait_forever().acquire().await });
        }
        while server.locks.inspect("idle").await.expect("it answers").waiters.len() < waiters {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = asked(server).await;
        tokio::time::sleep(span).await;
        let count = asked(server).await - before;
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        server.locks.close().await;
        guard.release().await.expect("held");
        count as f64 / span.as_secs_f64()
    });
    let shown = format!("{per_second:.1}");
    table.row(
        "requests per second of 1,000 idle waiters",
        "",
        per_second,
        shown,
        Goal::AtMost(5.0),
    );
}

/// From a SIGKILL of the holder to the next grant, in units of the ttl.
fn killed(
    scale: Scale,
    runtime: &Runtime,
    server: &Arc<Server>,
    table: &mut Table,
) -> std::io::Result<()> {
    const KEY_TTL: Duration = Duration::from_secs(4);
    let mut figures = Vec::new();
    for _ in 0..scale.pick(3, 1) {
        let mut child = Command::new(std::env::current_exe()?)
            .env("LATCHWORK_BENCH_HOLD", &server.address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let took = runtime.block_on(async {
            while !server.locks.exists("killed").await.expect("it answers") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            child.kill().expect("it runs");
            let begin = Instant::now();
            let request = server.locks.lock("killed").wait_forever();
            request.acquire().await.expect("its turn").release().await.expect("held");
            begin.elapsed()
        });
        child.wait()?;
        figures.push(took.as_secs_f64() / KEY_TTL.as_secs_f64());
    }
    let ratio = Ratio::of(figures);
    let what = "from SIGKILL to the next grant";
    table.row(what, "a ttl of 4 s", ratio.median, ratio.to_string(), Goal::AtMost(1.75));
    Ok(())
}

/// The child of [`killed`]: holds until it is killed.
fn hold(address: &str) -> std::io::Result<()> {
    let locks = latchwork_lock::blocking::Locks::connect(address).expect("a server");
    let _guard = locks.lock("killed").ttl(Duration::from_secs(4)).acquire().expect("free");
    std::io::stdin().read_line(&mut String::new()).map(drop)
}
