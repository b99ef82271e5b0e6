//! Ours beside locks of other languages, on Redis: what `scripts/bench-peers` runs first.
//!
//! The figures go to standard output, one JSON object a line, as those of all peers do; see
//! `benches/peers`.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]
#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_benches::{Scale, missing};
use latchwork_lock::Locks;
use latchwork_lock::provider::Token;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const WORKERS: usize = 64;
const TTL: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let Ok(server) = std::env::var("LATCHWORK_TEST_REDIS") else {
        return missing("peers", "no server: `scripts/services up redis` starts one");
    };
    let scale = Scale::from_args();
    let told = std::env::var("LATCHWORK_PEERS_SPAN").ok().and_then(|span| span.parse().ok());
    let span = if scale.is_whole() { told.unwrap_or(3.0) } else { 0.05 };
    let span = Duration::from_secs_f64(span);
    runtime.block_on(async {
        let locks = Locks::connect(&server).await.expect("the server is there");
        let room = format!("peers-{:x}", Token::random().expose());
        for workers in [1, WORKERS] {
            distinct(scale, &locks, &room, workers, span).await;
        }
        hot(scale, &locks, &room, span).await;
    });
    ExitCode::SUCCESS
}

/// Runs the work in so many tasks at once, until their time is over; what each returned.
async fn together<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    workers: usize,
    span: Duration,
    work: impl Fn(usize, Instant) -> F,
) -> Vec<T> {
    let ready = Arc::new(Barrier::new(workers));
    let mut all = JoinSet::new();
    let end = Instant::now() + span;
    for worker in 0..workers {
        let (ready, work) = (ready.clone(), work(worker, end));
        all.spawn(async move {
            ready.wait().await;
            work.await
        });
    }
    all.join_all().await
}

/// Acquire and release on keys of their own.
async fn distinct(scale: Scale, locks: &Locks, room: &str, workers: usize, span: Duration) {
    let counts = together(workers, span, |worker, end| {
        let (locks, room) = (locks.clone(), room.to_owned());
        async move {
            let mut count = 0_u64;
            while Instant::now() < end {
                let request = locks.lock(format!("{room}/{worker}/{}", count % 8)).ttl(TTL);
                let guard = request.acquire().await.expect("free");
                guard.release().await.expect("held");
                count += 1;
            }
            count
        }
    });
    let rate = counts.await.iter().sum::<u64>() as f64 / span.as_secs_f64();
    tell(scale, &format!(r#""what":"distinct","workers":{workers},"rate":{rate}"#));
}

/// One key that all want.
async fn hot(scale: Scale, locks: &Locks, room: &str, span: Duration) {
    let waits = together(WORKERS, span, |_, end| {
        let (locks, key) = (locks.clone(), format!("{room}/hot"));
        async move {
            let mut waits = Vec::new();
            while Instant::now() < end {
                let asked = Instant::now();
                let request = locks.lock(&*key).ttl(TTL).wait_forever();
                let guard = request.acquire().await.expect("its turn");
                waits.push(asked.elapsed().as_secs_f64());
                guard.release().await.expect("held");
            }
            waits
        }
    });
    let waits = waits.await;
    // The last one of each came after the end.
    let grants: usize = waits.iter().map(|own| own.len().saturating_sub(1)).sum();
    let rate = grants as f64 / span.as_secs_f64();
    tell(scale, &format!(r#""what":"hot","workers":{WORKERS},"rate":{rate},"waits":{waits:?}"#));
}

/// A look has no figures worth reading.
fn tell(scale: Scale, figures: &str) {
    if scale.is_whole() {
        println!(r#"{{"name":"latchwork",{figures}}}"#);
    }
}
