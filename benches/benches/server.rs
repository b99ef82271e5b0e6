//! The server over loopback beside the library on the same store, as ratios of one run.
//!
//! `cargo bench -p latchwork-benches --bench server` takes a minute or so; names behind `--` (`work`,
//! `locks`) choose parts of it. Goals are printed and not asserted: a busy machine is no fault of the
//! code.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use latchwork_benches::{Contender, Goal, Scale, Table, missing, race, runtime, wants};
use latchwork_lock::Locks;
use latchwork_server::{App, Settings, Shutdown, router, serve};
use latchwork_work::{
    Actor, Checkout, DynamicOrderType, OrderTypes, PlannedItem, Proposal, Submission, WorkManager,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// How many connections, and callers of the library, there are at a time.
const CALLERS: u64 = 64;

fn main() -> ExitCode {
    let (scale, runtime) = (Scale::from_args(), runtime());
    let build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let place = tempfile::tempdir_in(build).expect("a directory");
    let file = format!("sqlite://{}", place.path().join("bench.db").display());
    let mut stores = vec![("SQLite", file)];
    let server = std::env::var("LATCHWORK_TEST_POSTGRES").ok();
    if let Some(server) = &server {
        stores.push(("PostgreSQL", runtime.block_on(schema(server))));
    }
    let mut table = Table::new(
        "The server at 64 connections: requests in units of the library on the same store",
    );
    for (name, url) in &stores {
        let bench = Bench::start(&runtime, url);
        if wants("locks") {
            locks(scale, &runtime, name, &bench, &mut table);
        }
        if wants("work") {
            work(scale, &runtime, name, &bench, &mut table);
        }
        bench.shutdown.begin();
    }
    table.print(scale);
    match server {
        Some(_) => ExitCode::SUCCESS,
        None => missing("server", "no PostgreSQL: `scripts/services up postgres` starts one"),
    }
}

/// A place of its own in the server.
async fn schema(server: &str) -> String {
    let name = format!("bench_server_{}", std::process::id());
    let mut admin = PgConnection::connect(server).await.expect("a server");
    let made = format!("CREATE SCHEMA {name}");
    sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut admin).await.expect("a schema");
    format!("{server}?options[search_path]={name}")
}

/// A server on a store, and the library on the same.
struct Bench {
    work: WorkManager,
    locks: Locks,
    shutdown: Shutdown,
    port: u16,
}

impl Bench {
    fn start(runtime: &Runtime, url: &str) -> Self {
        runtime.block_on(async {
            let split = |payload: &Value| {
                let count = payload["items"].as_u64().unwrap_or(1);
                Ok((0..count).map(|n| PlannedItem::new(json!({ "n": n }))).collect())
            };
            let mut types = OrderTypes::new();
            types.add_dynamic(DynamicOrderType::new("bench").plan(split)).expect("legal");
            let work = WorkManager::builder(types).connect(url).await.expect("a store");
            let locks = Locks::connect(url).await.expect("locks");
            let shutdown = Shutdown::new();
            let app =
                App::new(work.clone(), Settings::default(), &shutdown).with_locks(locks.clone());
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("bound").port();
            let ending = shutdown.clone();
            tokio::spawn(async move { serve(listener, router(app), &ending).await });
            Bench { work, locks, shutdown, port }
        })
    }

    /// Enough items for what comes.
    async fn propose(&self, items: u64) {
        let client = self.work.client(Actor::user("bench").expect("legal"));
        for _ in 0..items.div_ceil(1_000) {
            let proposal = Proposal::new("bench", json!({"items": items.min(1_000)}));
            client.propose(proposal).await.expect("proposed");
        }
    }
}

/// A kept connection of one agent.
struct Connection {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Connection {
    async fn open(port: u16, agent: u64) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let head = format!(
            "host: 127.0.0.1\r\ncontent-type: application/json\r\nlatchwork-actor: agent:a-{agent}\r\n"
        );
        Connection { stream: BufReader::new(stream), head }
    }

    async fn post(&mut self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let (head, length) = (&self.head, body.len());
        let request =
            format!("POST {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes()).await.expect("sent");
        let (mut line, mut length, mut is_ok) = (String::new(), 0, false);
        loop {
            line.clear();
            self.stream.read_line(&mut line).await.expect("an answer");
            if line.starts_with("HTTP/1.1 200") {
                is_ok = true;
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            } else if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.expect("a body");
        assert!(is_ok, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).expect("JSON")
    }
}

/// Lets all callers do so many operations together.
fn together<T: Future<Output = ()> + Send + 'static>(
    runtime: &Runtime,
    operations: u64,
    caller: impl Fn(u64, Arc<AtomicU64>) -> T,
) {
    let left = Arc::new(AtomicU64::new(operations));
    runtime.block_on(async {
        let tasks: Vec<_> =
            (0..CALLERS).map(|number| tokio::spawn(caller(number, left.clone()))).collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// Whether there is one more to do.
fn next(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn locks(scale: Scale, runtime: &Runtime, store: &str, bench: &Bench, table: &mut Table) {
    let port = bench.port;
    let server = Contender::new("server", |operations| {
        together(runtime, operations, |number, left| async move {
            let mut connection = Connection::open(port, number).await;
            let key = format!("bench/http/{number}");
            for turn in 0_u64.. {
                if !next(&left) {
                    return;
                }
                let token = format!("{number:016x}{turn:016x}");
                let body = json!({"key": key, "token": token});
                connection.post("/v1/locks/acquire", &body).await;
                connection.post("/v1/locks/release", &body).await;
            }
        });
    });
    let library = Contender::new("library", |operations| {
        together(runtime, operations, |number, left| {
            let locks = bench.locks.clone();
            async move {
                let key = format!("bench/library/{number}");
                while next(&left) {
                    let guard = locks.lock(&key).acquire().await.expect("a free key");
                    guard.release().await.expect("held");
                }
            }
        });
    });
    report(scale, &format!("{store}: acquire and release"), [server, library], table);
}

fn work(scale: Scale, runtime: &Runtime, store: &str, bench: &Bench, table: &mut Table) {
    let port = bench.port;
    let server = Contender::new("server", |operations| {
        runtime.block_on(bench.propose(operations));
        together(runtime, operations, |number, left| async move {
            let mut connection = Connection::open(port, number).await;
            while next(&left) {
                let got = connection.post("/v1/items/checkout", &json!({})).await;
                let Some(lease) = got["leases"].get(0) else { continue };
                let body = json!({"lease": lease["id"], "result": {"n": 1}});
                connection.post("/v1/items/submit", &body).await;
            }
        });
    });
    let library = Contender::new("library", |operations| {
        runtime.block_on(bench.propose(operations));
        together(runtime, operations, |number, left| {
            let actor = Actor::agent(format!("b-{number}")).expect("legal");
            let client = bench.work.client(actor);
            async move {
                while next(&left) {
                    let got = client.checkout(Checkout::any()).await.expect("it answers");
                    let Some(lease) = got.leases.first() else { continue };
                    let done = Submission::new(lease, json!({"n": 1}));
                    client.submit(done).await.expect("submitted");
                }
            }
        });
    });
    report(scale, &format!("{store}: checkout and submit"), [server, library], table);
}

fn report(scale: Scale, what: &str, mut contenders: [Contender<'_>; 2], table: &mut Table) {
    let race = race(scale, &mut contenders);
    let ratio = race.first_faster_than(1);
    let beside = format!("the library: {:.0} a second", race.per_second(1));
    table.row(what, &beside, ratio.median, ratio.to_string(), Goal::AtLeast(0.5));
}
