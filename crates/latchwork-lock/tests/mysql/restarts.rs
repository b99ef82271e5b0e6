//! A server that ends, and starts again.

use crate::support::server::OwnServer;
use crate::support::{SOON, Signal, connect, secs, waiter, waiting};

pub(crate) async fn a_crash_of_the_server_takes_nothing_back() {
    survives(Signal::KILL).await;
}

pub(crate) async fn a_restart_of_the_server_takes_nothing_back() {
    survives(Signal::TERM).await;
}

/// Held and waited for while the server ends by a signal, and starts again.
pub(crate) async fn survives(signal: Signal) {
    let mut own = OwnServer::start("mariadb");
    let (ours, theirs) = (connect(&own.address).await, connect(&own.address).await);
    let guard = ours.lock("key").ttl(secs(90)).acquire().await.expect("a free key");
    let waiter = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    own.end(signal);
    let error = ours.lock("other").try_acquire().await.expect_err("nobody is there");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    own.up();
    assert!(guard.is_held());
    let seen = ours.inspect("key").await.expect("it is back");
    assert_eq!(seen.holders.len(), 1, "{seen:?}");
    assert_eq!(seen.holders[0].fence, guard.fence());
    let fence = guard.fence();
    guard.release().await.expect("it outlived the server");
    let next = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    assert!(next.fence() > fence);
    next.release().await.expect("held");
}
