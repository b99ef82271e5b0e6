//! A holder in a process of its own that is killed, and how long the next one waits then.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]
#![expect(clippy::print_stdout, reason = "a child speaks by its output")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork_lock::Locks;
use tokio::runtime::Runtime;

use crate::{Goal, Ratio, Scale, Table, wait_for};

const ADDRESS: &str = "LATCHWORK_BENCH_HOLDER";
const KEY: &str = "killed";

/// How long the holder would have held.
const TTL: Duration = Duration::from_secs(2);

/// In the process that [`holder_killed`] starts: holds until it is killed. False in any other.
pub async fn play_the_holder() -> bool {
    let Ok(address) = std::env::var(ADDRESS) else { return false };
    let locks = Locks::connect(&address).await.expect("the backend is there");
    let _guard = locks.lock(KEY).ttl(TTL).acquire().await.expect("a free key");
    println!("held");
    std::future::pending().await
}

/// Kills holders, and adds how long the next one waits then. The goal is for what the next one
/// waits from when the dead one was granted its lease.
pub fn holder_killed(
    scale: Scale,
    runtime: &Runtime,
    address: &str,
    goal: Goal,
    table: &mut Table,
) {
    let (mut from_kill, mut from_grant) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(5) {
        let (kill, grant) = runtime.block_on(killed(address));
        from_kill.push(kill / TTL.as_secs_f64());
        from_grant.push(grant / TTL.as_secs_f64());
    }
    for (what, figures, goal) in [
        ("from SIGKILL to the next grant", from_kill, Goal::None),
        ("from the dead one's grant to the next", from_grant, goal),
    ] {
        let ratio = Ratio::of(figures);
        table.row(what, "the ttl", ratio.median, ratio.to_string(), goal);
    }
}

/// Starts a holder, waits behind it, and kills it: how long the next grant took in seconds, from
/// the kill and from when the holder said that it holds.
async fn killed(address: &str) -> (f64, f64) {
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
    wait_for(&locks, KEY, 1).await;
    holder.kill().expect("it lived");
    let kill = Instant::now();
    let guard = next.await.expect("no panic");
    let seen = (kill.elapsed().as_secs_f64(), held.elapsed().as_secs_f64());
    guard.release().await.expect("held");
    holder.wait().expect("reaped");
    seen
}
