//! The etcd provider beside raw requests on the same server and etcd's own Lock call, as ratios
//! of one run.
//!
//! `scripts/services up etcd`, then `cargo bench -p latchwork-benches --features etcd --bench
//! etcd`, takes some minutes. Goals are printed and not asserted: a busy machine is no fault of
//! the code.
#![expect(clippy::expect_used, reason = "a bench of locks that are not granted is none")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, LockOptions, PutOptions, Txn, TxnOp,
};
use latchwork_benches::{
    Contender, Goal, HandOver, Scale, Table, holder_killed, idle_waiters, missing, play_the_holder,
    race, runtime, timed,
};
use latchwork_lock::Locks;
use latchwork_lock::provider::Token;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const WAITERS: usize = 64;
const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let runtime = runtime();
    if runtime.block_on(play_the_holder()) {
        return ExitCode::SUCCESS;
    }
    let mut scale = Scale::from_args();
    scale.rounds = scale.rounds.min(9); // a server has its own pace, and a round takes longer
    let Ok(server) = std::env::var("LATCHWORK_TEST_ETCD") else {
        return missing("etcd", "no server: `scripts/services up etcd` starts one");
    };
    let room = format!("bench-{:x}", Token::random().expose());
    let there = Arc::new(runtime.block_on(Server::open(&server, &room)));

    let mut speed = Table::new("Lock and unlock on one etcd: how many times as fast as …");
    for tasks in [1, WAITERS as u64] {
        lock_and_unlock(scale, &runtime, &there, tasks, &mut speed);
    }
    speed.print(scale);
    let mut handing = Table::new("One key that 64 tasks want, again and again");
    hand_over(scale, &runtime, &there, &mut handing);
    handing.print(scale);
    let mut rest = Table::new("Waiting, and dying");
    waiting(scale, &runtime, &there, &mut rest);
    // A lease lasts for whole seconds, and the server looks for those that ran out now and then.
    holder_killed(scale, &runtime, &there.address, Goal::AtMost(1.75), &mut rest);
    rest.print(scale);
    ExitCode::SUCCESS
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
    for ((other, name), goal) in race.others().zip([0.8, 0.9]) {
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
    let hand_over = HandOver {
        waiters: WAITERS,
        grants: scale.pick(640, 64),
        rounds: scale.rounds.min(3),
        unit: "one put",
        // 5 on etcd 3.5; 3.4 copies a buffer for each transaction.
        goals: [Goal::None, Goal::AtMost(8.0)],
    };
    let idle = async || {
        let server = server.clone();
        timed(scale.pick(400, 4), move || {
            let (mut client, key) = (server.client.clone(), format!("{}/put", server.room));
            async move { drop(client.put(key, "x", None).await.expect("it answers")) }
        })
        .await
    };
    hand_over.measure(runtime, std::slice::from_ref(&server.locks), idle, table);
}

// ---- waiting -----------------------------------------------------------------------------------

/// Requests that the server has had, as it counts them.
async fn asked(server: &Server) -> i64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(&server.place).await.expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let lines = text.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as i64
}

fn waiting(scale: Scale, runtime: &Runtime, server: &Arc<Server>, table: &mut Table) {
    let counter = async || asked(server).await;
    let idle = idle_waiters(scale, &server.locks, Duration::ZERO, 10, counter);
    let made = runtime.block_on(idle);
    let what = "requests a second, 1,000 idle waiters";
    table.row(what, "", made, format!("{made:.1}"), Goal::AtMost(5.0));
}
