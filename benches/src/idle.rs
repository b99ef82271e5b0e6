//! Many who wait, and nothing that happens.
#![expect(clippy::expect_used, reason = "a bench whose parts do not come about is none")]

use std::time::Duration;

use latchwork_lock::Locks;
use latchwork_lock::provider::Token;
use tokio::task::JoinSet;

use crate::{Scale, wait_for};

const KEYS: usize = 10;

/// How often a second 1,000 idle waiters, a hundred on each of ten keys, make the server do
/// something, by its own `counter`, over so many seconds.
///
/// The counter may lag: it is first read when `settled` has passed.
pub async fn idle_waiters(
    scale: Scale,
    locks: &Locks,
    settled: Duration,
    seconds: u64,
    counter: impl AsyncFn() -> i64,
) -> f64 {
    let each = scale.pick(100, 2) as usize;
    let name = Token::random().expose();
    let (mut guards, mut waiting) = (Vec::new(), JoinSet::new());
    for key in 0..KEYS {
        let key = format!("idle:{name:x}:{key}");
        let minutes = Duration::from_secs(600);
        guards.push(locks.lock(&*key).ttl(minutes).acquire().await.expect("a free key"));
        for _ in 0..each {
            let (locks, key) = (locks.clone(), key.clone());
            waiting.spawn(async move {
                let _ = locks.lock(&*key).wait_forever().acquire().await;
            });
        }
        wait_for(locks, &key, each).await;
    }
    let span = Duration::from_secs(scale.pick(seconds, 0));
    tokio::time::sleep(if scale.is_whole() { settled } else { span }).await;
    let before = counter().await;
    tokio::time::sleep(span).await;
    let after = counter().await;
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    drop(guards);
    locks.close().await;
    (after - before) as f64 / span.as_secs_f64()
}
