//! A holder in a process of its own that is killed, and how long the next one waits then.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]
#![expect(clippy::print_stdout, reason = "a child speaks by its output")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_lock::Locks;

const ADDRESS: &str = "LATCHWORK_BENCH_HOLDER";
const KEY: &str = "killed";

/// How long the holder would have held.
const TTL: Duration = Duration::from_secs(2);

/// What was seen, in units of the holder's ttl.
pub struct Killed {
    /// From the kill to the next grant.
    pub from_kill: f64,
    /// From the moment when the holder said that it holds, to the next grant.
    pub from_grant: f64,
}

/// In the process that [`killed`] starts: holds until it is killed. False in any other.
pub async fn play_the_holder() -> bool {
    let Ok(address) = std::env::var(ADDRESS) else { return false };
    let locks = Locks::connect(&address).await.expect("the backend is there");
    let _guard = locks.lock(KEY).ttl(TTL).acquire().await.expect("a free key");
    println!("held");
    std::future::pending().await
}

/// Starts a holder, waits behind it, and kills it.
pub async fn killed(address: &str) -> Killed {
    let locks = Locks::connect(address).await.expect("the backend is there");
    let mut holder = Command::new(std::env::current_exe().expect("this program"))
        .env(ADDRESS, address)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = String::new();
    let out = holder.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut said).expect("it speaks");
    let held = Instant::now();
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(KEY).wait_forever().acquire().await.expect("its turn") }
    });
    while locks.inspect(KEY).await.expect("it answers").waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    holder.kill().expect("it lived");
    let kill = Instant::now();
    let guard = next.await.expect("no panic");
    let ttl = TTL.as_secs_f64();
    let seen = Killed {
        from_kill: kill.elapsed().as_secs_f64() / ttl,
        from_grant: held.elapsed().as_secs_f64() / ttl,
    };
    guard.release().await.expect("held");
    holder.wait().expect("reaped");
    seen
}
