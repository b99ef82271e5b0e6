//! Agents, lock users and a reader of the event stream, who change to another server when theirs is gone.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use latchwork_work::WorkManager;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinHandle;

use super::child::types;
use super::{millis, net, secs};

const ORDERS: u64 = 12;
const ITEMS: u64 = 4;
const AGENTS: u32 = 6;
const LOCKERS: u32 = 3;

pub(super) struct Load {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    stream: JoinHandle<Vec<u64>>,
}

struct Shared {
    ports: Mutex<Vec<u16>>,
    submitted: AtomicU64,
    over: AtomicBool,
    /// Who is in the critical section, and the newest fence that was seen there.
    inside: AtomicU32,
    fence: AtomicU64,
    held: AtomicU64,
}

impl Shared {
    fn port(&self, turn: usize) -> u16 {
        let ports = self.ports.lock().expect("no panic");
        ports[turn % ports.len()]
    }

    /// Sends a request until a server answers it for good: with the same key, at any server.
    async fn call(
        &self,
        turn: &mut usize,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> (u16, Value) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < secs(90), "no server answers {path}");
            match net::post_with(self.port(*turn), path, headers, body).await {
                // A twin that a dead server left behind ends soon; so does an outage.
                Ok((409, told)) if told["code"] == "idempotency_in_flight" => {}
                Ok((503 | 500, _)) | Err(_) => *turn += 1,
                Ok(answered) => return answered,
            }
            tokio::time::sleep(millis(50)).await;
        }
    }
}

impl Load {
    pub(super) async fn begin(ports: &[u16]) -> Self {
        let shared = Arc::new(Shared {
            ports: Mutex::new(ports.to_vec()),
            submitted: AtomicU64::new(0),
            over: AtomicBool::new(false),
            inside: AtomicU32::new(0),
            fence: AtomicU64::new(0),
            held: AtomicU64::new(0),
        });
        let stream = tokio::spawn(follow(shared.clone()));
        for order in 0..ORDERS {
            let mut turn = order as usize;
            let headers = format!("idempotency-key: order-{order}\r\n");
            let body = json!({"type": "job", "payload": {"items": ITEMS}});
            let (status, told) = shared.call(&mut turn, "/v1/orders", &headers, &body).await;
            assert_eq!(status, 201, "{told}");
        }
        let agents = (0..AGENTS).map(|number| tokio::spawn(agent(shared.clone(), number)));
        let lockers = (0..LOCKERS).map(|number| tokio::spawn(locker(shared.clone(), number)));
        let tasks = agents.chain(lockers).collect();
        Load { shared, tasks, stream }
    }

    /// Another server may be used from now on.
    pub(super) fn add(&self, port: u16) {
        self.shared.ports.lock().expect("no panic").push(port);
    }

    /// Waits until so many items were submitted.
    pub(super) async fn submitted(&self, count: u64) {
        let begun = Instant::now();
        while self.shared.submitted.load(Ordering::Relaxed) < count {
            assert!(begun.elapsed() < secs(60), "no progress");
            tokio::time::sleep(millis(5)).await;
        }
    }

    /// Waits until every order is completed, and checks that everything happened once.
    pub(super) async fn finish(self, port: u16, url: &str) {
        let begun = Instant::now();
        while count(port, "orders", "completed").await != Some(ORDERS) {
            assert!(
                begun.elapsed() < secs(120),
                "not completed: {:?}",
                net::get(port, "/v1/stats").await
            );
            tokio::time::sleep(millis(100)).await;
        }
        self.shared.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            tokio::time::timeout(secs(60), task).await.expect("it ends").expect("no panic");
        }
        assert_eq!(count(port, "items", "completed").await, Some(ORDERS * ITEMS));
        assert!(self.shared.held.load(Ordering::Relaxed) > 0, "nobody got the lock");
        // Each order was applied once, each item has one result, and the trail is whole.
        let work = WorkManager::builder(types()).connect(url).await.expect("a store");
        work.seal().await.expect("sealed");
        let events = work.events(0, 1_000).await.expect("events");
        let named = |name: &str, of_items: bool| {
            let found = events.iter().filter(|event| event.item_id.is_some() == of_items);
            found.filter(|event| event.event.as_str() == name).count() as u64
        };
        for name in ["proposed", "applied", "completed"] {
            assert_eq!(named(name, false), ORDERS, "{name}");
        }
        assert_eq!(named("submitted", true), ORDERS * ITEMS);
        assert!(work.verify().await.expect("verified").is_intact());
        let last = events.last().and_then(|event| event.seal).expect("sealed").position;
        let ids =
            tokio::time::timeout(secs(60), self.stream).await.expect("it ends").expect("no panic");
        assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "no gap, and none twice");
        assert!(ids.len() as u64 <= last);
        work.close().await;
    }
}

async fn count(port: u16, what: &str, state: &str) -> Option<u64> {
    let (_, stats) = net::get(port, "/v1/stats").await.ok()?;
    let found = stats[what].as_array()?.iter().find(|count| count["state"] == state)?;
    found["count"].as_u64()
}

/// Leases items and submits them until all is over.
async fn agent(shared: Arc<Shared>, number: u32) {
    let (mut turn, mut round) = (number as usize, 0_u64);
    let actor = format!("latchwork-actor: agent:a-{number}\r\n");
    while !shared.over.load(Ordering::Relaxed) {
        round += 1;
        let headers = format!("{actor}idempotency-key: checkout-{number}-{round}\r\n");
        let body = json!({"wait_ms": 1_000});
        let (status, got) = shared.call(&mut turn, "/v1/items/checkout", &headers, &body).await;
        if status == 409 {
            continue; // the lease of a lost answer is over by now
        }
        assert_eq!(status, 200, "{got}");
        let Some(lease) = got["leases"].get(0) else { continue };
        let headers = format!("{actor}idempotency-key: submit-{number}-{round}\r\n");
        let body = json!({"lease": lease["id"], "result": {"by": number}});
        match shared.call(&mut turn, "/v1/items/submit", &headers, &body).await {
            (200, _) => {
                shared.submitted.fetch_add(1, Ordering::Relaxed);
            }
            (409, told) if told["code"] == "lease_expired" => {}
            (status, told) => panic!("{status}: {told}"),
        }
    }
}

/// Waits for a key, claims it, is alone in there, and gives it back.
async fn locker(shared: Arc<Shared>, number: u32) {
    let mut turn = number as usize;
    let actor = format!("latchwork-actor: agent:l-{number}\r\n");
    while !shared.over.load(Ordering::Relaxed) {
        let token = format!("{:032x}", rand::random::<u128>());
        let wait = json!({"key": "shared", "token": token, "wait_ms": 2_000});
        let claim = json!({"key": "shared", "token": token, "ttl_ms": 20_000});
        let (status, told) = shared.call(&mut turn, "/v1/locks/wait", &actor, &wait).await;
        assert_eq!(status, 200, "{told}");
        if told["ready"] != true {
            let _ = shared.call(&mut turn, "/v1/locks/release", &actor, &claim_of(&claim)).await;
            continue;
        }
        let sent = Instant::now();
        let (status, held) = shared.call(&mut turn, "/v1/locks/claim", &actor, &claim).await;
        // The claim took too long, as it may while a server or the database is away.
        if status == 409 || sent.elapsed() > secs(10) {
            continue;
        }
        assert_eq!(status, 200, "{held}");
        assert_eq!(shared.inside.fetch_add(1, Ordering::SeqCst), 0, "two are in at once");
        let fence = held["fence"].as_u64().expect("a fence");
        let before = shared.fence.swap(fence, Ordering::SeqCst);
        assert!(fence > before, "fences grow: {before} and then {fence}");
        tokio::time::sleep(millis(5)).await;
        assert_eq!(shared.inside.fetch_sub(1, Ordering::SeqCst), 1, "two are in at once");
        shared.held.fetch_add(1, Ordering::Relaxed);
        shared.call(&mut turn, "/v1/locks/release", &actor, &claim_of(&claim)).await;
    }
}

/// Names the same lease, without a ttl.
fn claim_of(claim: &Value) -> Value {
    json!({"key": claim["key"], "token": claim["token"]})
}

/// Reads the stream of events, and goes on behind the last one at another server.
async fn follow(shared: Arc<Shared>) -> Vec<u64> {
    let (mut ids, mut turn) = (Vec::<u64>::new(), 0);
    let mut quiet = Instant::now();
    // Until all is over and nothing has come for a while.
    while !(shared.over.load(Ordering::Relaxed) && quiet.elapsed() > secs(2)) {
        let last = ids.last().copied().unwrap_or(0);
        let headers = format!("accept: text/event-stream\r\nlast-event-id: {last}\r\n");
        let Ok(stream) = net::send(shared.port(turn), "GET", "/v1/events", &headers, "").await
        else {
            turn += 1;
            tokio::time::sleep(millis(50)).await;
            continue;
        };
        let mut lines = BufReader::new(stream).lines();
        loop {
            match tokio::time::timeout(millis(500), lines.next_line()).await {
                Ok(Ok(Some(line))) => {
                    if let Some(id) = line.strip_prefix("id:") {
                        ids.push(id.trim().parse().expect("a position"));
                        quiet = Instant::now();
                    }
                }
                Err(_) if !shared.over.load(Ordering::Relaxed) => {}
                _ => break,
            }
        }
        turn += 1;
    }
    ids
}
