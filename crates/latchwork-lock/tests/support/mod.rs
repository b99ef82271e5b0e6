//! What the tests of all providers share: other processes, backends that are known by their
//! address only, stores with a gate, and waiting for conditions.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

pub mod backend;
pub mod captured;
pub mod certificates;
pub mod child;
pub mod clock;
pub mod gate;
pub mod idle;
pub mod log;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod pool;
pub mod server;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_lock::{Guard, Locks};
use tokio::task::JoinHandle;

pub use backend::{Backend, TestDatabase};
pub use child::{Child, Part, Signal};

/// How long a busy machine may take for what should be there at once.
pub const SOON: Duration = Duration::from_secs(20);

/// How late a busy machine may make what happens in time.
pub const SLACK: Duration = Duration::from_secs(3);

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs a test to its end, on a runtime of its own. One that hangs fails.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    const LIMIT: Duration = Duration::from_secs(100);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let out = runtime.block_on(async { tokio::time::timeout(LIMIT, test).await });
    runtime.shutdown_timeout(secs(2));
    out.expect("it ends")
}

/// A bounded wait for a condition.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < SOON, "never: {what}");
        std::thread::sleep(millis(5));
    }
}

/// The same, for a condition that must be asked for.
pub async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !done().await {
        assert!(began.elapsed() < SOON, "never: {what}");
        tokio::time::sleep(millis(10)).await;
    }
}

/// Starts this program in a time namespace whose boot clock is a day ahead; none, with a word, where
/// this user may not make one.
pub fn time_namespace(test: &str) -> Option<impl Fn() -> Command> {
    let elsewhere = || {
        let mut run = Command::new("unshare");
        run.args(["--time", "--boottime=86400"]);
        run
    };
    let made = elsewhere().arg("true").stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED {test}: needs the right to make a time namespace");
        return None;
    }
    Some(move || {
        let mut run = elsewhere();
        run.arg(std::env::current_exe().expect("this program"));
        run
    })
}

pub async fn connect(address: &str) -> Locks {
    Locks::connect(address).await.expect("the backend is there")
}

/// Ends when so many wait for the key.
pub async fn waiting(locks: &Locks, key: &str, count: usize) {
    eventually(&format!("{count} in the queue"), async || {
        locks.inspect(key).await.is_ok_and(|seen| seen.waiters.len() == count)
    })
    .await;
}

/// Asks for the key in a task.
pub fn waiter(locks: &Locks, key: &'static str) -> JoinHandle<Guard> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.lock(key).wait(secs(60)).acquire().await.expect("its turn") })
}

/// A lease is renewed while its holder blocks the only thread of its runtime for three times its ttl,
/// and occupies what its locks are made of besides.
///
/// `open` runs on that runtime. It gives the locks and what occupies their connection.
pub async fn a_blocked_thread_keeps_its_lease<O, T>(
    direct: &Locks,
    key: &str,
    open: impl AsyncFnOnce() -> (Locks, O) + Send + 'static,
) where
    O: AsyncFnOnce() -> T,
{
    const TTL: Duration = Duration::from_secs(2);
    let (begun, blocks) = tokio::sync::oneshot::channel();
    let name = key.to_owned();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let (locks, occupy) = open().await;
            let asked = locks.lock(&name).ttl(TTL).auto_renew(secs(60)).acquire().await;
            let guard = asked.expect("a free key");
            let occupied = occupy().await;
            begun.send(()).expect("the test waits");
            std::thread::sleep(TTL * 3);
            assert!(guard.is_held(), "it was renewed all the time");
            drop(occupied);
            guard.release().await.expect("held to the end");
        });
    });
    blocks.await.expect("it has the key");
    let ends = Instant::now() + TTL * 5 / 2;
    while Instant::now() < ends {
        let taken = direct.lock(key).try_acquire().await.expect("it answers");
        assert!(taken.is_none(), "two at once");
        tokio::time::sleep(millis(50)).await;
    }
    let joined = tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic");
    joined.expect("it kept its lease");
}
