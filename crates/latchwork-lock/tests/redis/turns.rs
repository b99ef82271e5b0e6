//! Turns that come from another process.

use std::pin::pin;

use futures::future::{Either, select};

use crate::server::{Server, Way, count, tell};
use crate::{eventually, locks, secs, waiter, waiting};

pub(crate) async fn a_turn_begins_before_its_claim_is_answered() {
    let server = Server::start(&[]);
    let way = Way::to(server.port);
    let theirs = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    // What claims; this runtime asks by one of its own.
    let claims = way.newest();
    let ours = locks(&server.address()).await;
    let guard = ours.lock("key").acquire().await.expect("a free key");
    let mut asking = Box::pin(theirs.lock("key").ttl(secs(60)).wait(secs(60)).acquire());
    // By the same connection as the question, so that its answer has come before.
    let queued = pin!(async {
        waiting(&theirs, "key", 1).await;
        eventually("it listens", async || count(&server.address(), "subscribe") > 0).await;
        theirs.inspect("key").await.expect("it answers");
    });
    assert!(matches!(select(&mut asking, queued).await, Either::Right(_)), "it must wait");
    let held_up = claims.hold_up();
    let fence = guard.fence();
    guard.release().await.expect("held");
    let next = asking.await.expect("its turn");
    assert!(next.is_held() && next.fence() > fence);
    assert_eq!(next.previous_fence(), Some(fence));
    assert!(next.remaining() < secs(2), "trusted no longer than its turn: {:?}", next.remaining());
    drop(held_up);
    eventually("it is confirmed", async || next.remaining() > secs(30)).await;
    next.release().await.expect("held");
}

pub(crate) async fn a_turn_of_an_earlier_stay_is_not_believed() {
    let server = Server::start(&[]);
    let (ours, theirs) = (locks(&server.address()).await, locks(&server.address()).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
    let waits = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    eventually("it listens", async || count(&server.address(), "subscribe") > 0).await;
    let queue: Vec<String> = tell(&server.address(), &["KEYS", "latchwork:q:*"]);
    let ids: Vec<String> = tell(&server.address(), &["LRANGE", &queue[0], "0", "-1"]);
    let entries = queue[0].replacen(":q:", ":d:", 1);
    let entry: String = tell(&server.address(), &["HGET", &entries, &ids[0]]);
    let parts: Vec<&str> = entry.split('\n').collect();
    let (stay, client) = (parts[3].parse::<u64>().expect("a time"), parts[6]);
    let notice = format!("{}:{}:{}:0", ids[0], stay - 1, guard.fence().get() + 1);
    let before = count(&server.address(), "evalsha");
    let heard: i64 =
        tell(&server.address(), &["PUBLISH", &format!("latchwork:c:{client}"), &notice]);
    assert_eq!(heard, 1);
    eventually("it claims in vain and asks again", async || {
        count(&server.address(), "evalsha") >= before + 2
    })
    .await;
    waiting(&ours, "key", 1).await;
    assert!(!waits.is_finished(), "two at once");
    guard.release().await.expect("held");
    waits.await.expect("no panic").release().await.expect("held");
}
