//! Turns that come from another process.

use std::pin::pin;
use std::time::Instant;

use futures::future::{Either, select};

use crate::server::{Server, Way, count, tell};
use crate::{eventually, locks, millis, secs, waiter, waiting};

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
    // Every message is told of in its log, so that a claim can be told from a look.
    let log = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"];
    let server = Server::start(&log);
    let address = server.address();
    let way = Way::to(server.port);
    let theirs = locks(&format!("redis://127.0.0.1:{}", way.port)).await;
    let (claims, ours) = (way.newest(), locks(&address).await);
    for round in 0.. {
        assert!(round < 50, "this machine is too slow for it");
        let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("a free key");
        let begun = Instant::now();
        let waits = waiter(&theirs, "key");
        waiting(&ours, "key", 1).await;
        eventually("it listens", async || count(&address, "subscribe") > 0).await;
        let queue: Vec<String> = tell(&address, &["KEYS", "latchwork:q:*"]);
        let ids: Vec<String> = tell(&address, &["LRANGE", &queue[0], "0", "-1"]);
        let entries = queue[0].replacen(":q:", ":d:", 1);
        let entry: String = tell(&address, &["HGET", &entries, &ids[0]]);
        let parts: Vec<&str> = entry.split('\n').collect();
        let (stay, client) = (parts[3].parse::<u64>().expect("a time"), parts[6]);
        let notice = format!("{}:{}:{}:0", ids[0], stay - 1, guard.fence().get() + 1);
        // Else the answer to its claim may end what it has begun before we see it.
        let (held_up, before) = (claims.hold_up(), claims.pieces());
        let heard: i64 = tell(&address, &["PUBLISH", &format!("latchwork:c:{client}"), &notice]);
        assert_eq!(heard, 1);
        eventually("it claims", async || claims.pieces() > before).await;
        // Who has waited for a quarter of the window would not begin on any notice.
        let in_time = begun.elapsed() < millis(400);
        // It was woken before the claim was sent, if it was.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waits.is_finished(), "two at once");
        drop(held_up);
        eventually("it claims in vain", async || has_sent(&address, "c", &ids[0])).await;
        eventually("it asks again", async || has_sent(&address, "a", &ids[0])).await;
        waiting(&ours, "key", 1).await;
        guard.release().await.expect("held");
        waits.await.expect("no panic").release().await.expect("held");
        if in_time {
            return;
        }
    }
}

/// Whether the server was sent this operation for this request, other than as a first question.
fn has_sent(address: &str, operation: &str, id: &str) -> bool {
    type Logged = (i64, i64, i64, Vec<String>, String, String);
    let log: Vec<Logged> = tell(address, &["SLOWLOG", "GET", "-1"]);
    log.iter().any(|logged| logged.3.windows(2).any(|pair| pair == [operation, id]))
}
