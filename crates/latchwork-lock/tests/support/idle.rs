//! A server that ends connections which idle, and what a program must not notice of it.

use std::time::Duration;

use super::{SOON, connect, millis, secs, waiter, waiting};

/// Everything that a program does with locks, each time after its connections have idled for longer
/// than the server lets them.
pub async fn idle_connections_are_opened_again(address: &str, limit: Duration) {
    let idle = async || tokio::time::sleep(limit * 2 + millis(400)).await;
    let locks = connect(address).await;
    // Twice each: a pool may have one connection that lives and one that does not.
    for _ in 0..2 {
        idle().await;
        let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
        idle().await;
        let seen = locks.inspect("key").await.expect("it answers");
        assert_eq!(seen.holders.len(), 1, "{seen:?}");
        guard.release().await.expect("held");
        idle().await;
        assert!(!locks.exists("key").await.expect("it answers"));
        assert!(locks.list("", Default::default()).await.expect("it answers").keys.is_empty());
    }
    // A crowd fills the pool, and finds all of it ended.
    for _ in 0..2 {
        let asks = (0..16).map(|n| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let guard = locks.lock(format!("key-{n}")).acquire().await.expect("a free key");
                guard.release().await.expect("held");
            })
        });
        for asked in asks.collect::<Vec<_>>() {
            asked.await.expect("no panic");
        }
        idle().await;
    }
    // Renewals are further apart than the server lets a connection idle.
    let ttl = (limit * 6).max(secs(4));
    let guard = locks.lock("key").ttl(ttl).auto_renew(secs(60)).acquire().await.expect("free");
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(guard.is_held() && guard.renewal_error().is_none(), "{:?}", guard.renewal_error());
    // Who waits is served, however long that took.
    let theirs = connect(address).await;
    let next = waiter(&theirs, "key");
    waiting(&locks, "key", 1).await;
    idle().await;
    guard.release().await.expect("held");
    let next = tokio::time::timeout(SOON, next).await.expect("in time").expect("no panic");
    idle().await;
    next.release().await.expect("held");
    // A drop has nobody to report to.
    drop(locks.lock("key").ttl(secs(60)).acquire().await.expect("a free key"));
    idle().await;
    theirs.lock("key").acquire().await.expect("it was released").release().await.expect("held");
}
