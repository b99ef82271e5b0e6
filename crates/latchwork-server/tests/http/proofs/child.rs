//! A server as a process of its own: this test program, started again.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use latchwork_flow::Contexts;
use latchwork_lock::Locks;
use latchwork_server::{App, Duties, Settings, Shutdown, router, serve};
use latchwork_work::{
    ApplySettings, AutoApprove, DynamicOrderType, MaintenanceSettings, OrderTypes, PlannedItem,
    RetryPolicy, ReviewSettings, TypeSettings, WorkManager,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::{millis, secs};

const URL: &str = "LATCHWORK_SERVER_CHILD";

/// A place of its own in the shared PostgreSQL; none, with a word, where there is no server.
pub(super) async fn room() -> Option<String> {
    let Ok(server) = std::env::var("LATCHWORK_TEST_POSTGRES") else {
        assert!(std::env::var_os("CI").is_none(), "no PostgreSQL; see scripts/services");
        eprintln!("SKIPPED: no server; `scripts/services up postgres` starts one");
        return None;
    };
    let name = format!("http_{:032x}", rand::random::<u128>());
    let mut admin = PgConnection::connect(&server).await.expect("the server is there");
    let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {name}")));
    made.execute(&mut admin).await.expect("a schema");
    Some(format!("{server}?options[search_path]={name}"))
}

/// Orders of `job` have as many items as their payload says, are approved by a rule, and applied.
pub(super) fn types() -> OrderTypes {
    let split = |payload: &Value| {
        let count = payload["items"].as_u64().unwrap_or(1);
        Ok((0..count).map(|n| PlannedItem::new(json!({ "n": n }))).collect())
    };
    let none = millis(0);
    let retry = RetryPolicy { max_attempts: 50, backoff: none, max_backoff: none, jitter: none };
    let settings = TypeSettings {
        lease_ttl: secs(2),
        heartbeat_every: millis(500),
        retry,
        apply: ApplySettings { lease_ttl: secs(1), max_attempts: 1_000, ..Default::default() },
        review: ReviewSettings {
            auto_approve: Some(AutoApprove { version: "1".to_owned(), schema: None }),
            ..ReviewSettings::default()
        },
        ..TypeSettings::default()
    };
    let job =
        DynamicOrderType::new("job").settings(settings).plan(split).auto_approve(|_| Ok(true));
    let mut types = OrderTypes::new();
    types.add_dynamic(job).expect("legal");
    types
}

/// Not a test of its own: what the other process runs.
#[test]
fn child_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let work = WorkManager::builder(types()).connect(&url).await.expect("a store");
        let locks = Locks::connect(&url).await.expect("locks");
        let flows = Contexts::connect(&url).await.expect("flows");
        let settings = MaintenanceSettings::default();
        let shutdown = Shutdown::new();
        let duties = Duties::start(&work, &locks, settings, &shutdown).expect("a legal name");
        let app = App::new(work.clone(), Settings::default(), &shutdown)
            .with_locks(locks.clone())
            .with_flows(flows);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("port {}", listener.local_addr().expect("bound").port());
        let ending = shutdown.clone();
        tokio::spawn(async move {
            signal(SignalKind::terminate()).expect("a handler").recv().await;
            ending.begin();
        });
        serve(listener, router(app), &shutdown).await.expect("it serves");
        duties.end().await;
        locks.close().await;
        work.close().await;
    });
}

/// A server, which is killed at the latest when this ends.
pub(super) struct Server {
    child: std::cell::RefCell<Child>,
    pub(super) port: u16,
}

impl Server {
    pub(super) fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "proofs::child::child_process", "--nocapture"])
            .env(URL, url)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let port = lines.by_ref().find_map(|line| {
            // The test runner may have written the name of the test before.
            let line = line.expect("readable");
            line.split("port ").nth(1).and_then(|port| port.trim().parse().ok())
        });
        std::thread::spawn(move || lines.for_each(drop));
        Server { child: child.into(), port: port.expect("it listens") }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.borrow().id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("not zero"), signal).expect("signalled");
    }

    /// Sends a signal, and waits until it has ended; tells how long that took.
    pub(super) fn end(&self, signal: Signal) -> std::time::Duration {
        let begun = Instant::now();
        self.signal(signal);
        while self.child.borrow_mut().try_wait().expect("it is ours").is_none() {
            assert!(begun.elapsed() < secs(30), "it does not end");
            std::thread::sleep(millis(10));
        }
        begun.elapsed()
    }

    /// Its resident memory, in bytes.
    pub(super) fn resident(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.borrow().id());
        let status = std::fs::read_to_string(status).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
        let number = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
        number.expect("a number") * 1_024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}
