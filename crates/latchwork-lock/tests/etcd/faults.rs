//! Clusters whose members die, stop and forget what was.

use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use latchwork_contract::proxy::Proxy;
use latchwork_lock::{Clock, EtcdLockProvider, Locks, Refresh, SystemClock};

use crate::cluster::{Cluster, provider};
use crate::support::child::{print_line, read_line};
use crate::support::{Part, SLACK, Signal, connect, eventually, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// Parts of child processes that only these tests need.
pub(crate) fn play(part: &Part) -> bool {
    match part.name.as_str() {
        // Holds, is told to write, and writes only as the owner.
        "owner" => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(owner(part));
            true
        }
        _ => false,
    }
}

async fn owner(part: &Part) {
    let own = provider(&part.address).await;
    let locks = Locks::new(own.clone());
    let guard = locks.lock(&part.key).ttl(part.ttl).acquire().await.expect("free");
    print_line(&format!("held {}", guard.fence()));
    read_line();
    let mut client = Client::connect([&part.place], None).await.expect("an address");
    let write = Txn::new().when([own.is_owner(&guard)]).and_then([TxnOp::put(
        "guarded",
        guard.fence().to_string(),
        None,
    )]);
    let written = client.txn(write).await.expect("it answers").succeeded();
    print_line(&format!("wrote {written}"));
}

pub(crate) async fn the_leader_may_be_killed() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    // One is connected to the leader, the other is not.
    let ours = connect(&cluster.address(leader)).await;
    let theirs = Locks::new(provider(&cluster.address(leader)).await);
    let other = connect(&cluster.address(leader + 1)).await.with_prefix("x/").expect("legal");
    let request = ours.lock("key").ttl(secs(10)).auto_renew(secs(60));
    let guard = request.acquire().await.expect("free");
    let kept = other.lock("other").ttl(secs(30)).acquire().await.expect("free");
    let begun = Instant::now();
    cluster.kill(leader);
    // Exclusion holds throughout, and the lease outlives the leader by its renewals.
    while begun.elapsed() < secs(12) {
        match theirs.lock("other-key").ttl(secs(5)).try_acquire().await {
            Ok(found) => assert!(found.is_some()),
            Err(error) => assert_eq!(error.code(), "lock_unavailable", "{error}"),
        }
        assert!(guard.is_held(), "lost after {:?}", begun.elapsed());
        tokio::time::sleep(millis(300)).await;
    }
    guard.refresh_with(FORCE).await.expect("still held");
    kept.refresh_with(FORCE).await.expect("still held");
    let next = waiter(&ours, "key");
    waiting(&ours, "key", 1).await;
    let fence = guard.fence();
    guard.release().await.expect("held to the end");
    let next = next.await.expect("no panic");
    assert!(next.fence() > fence);
    next.release().await.expect("held");
    kept.release().await.expect("held");
}

pub(crate) async fn a_member_may_be_stopped() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for stopped in [leader, (leader + 1) % 3] {
        // Connected to the one that stops.
        let address = cluster.address(stopped);
        let ours = connect(&address).await;
        let request = ours.lock("key").ttl(secs(20)).auto_renew(secs(90));
        let guard = request.acquire().await.expect("free");
        let next = waiter(&ours, "key");
        waiting(&ours, "key", 1).await;
        cluster.signal(stopped, Signal::STOP);
        let asked = ours.lock("meanwhile").ttl(secs(10)).wait(secs(30)).acquire();
        asked.await.expect("another member answers").release().await.expect("held");
        guard.refresh_with(FORCE).await.expect("another member answers");
        let fence = guard.fence();
        guard.release().await.expect("held");
        let next = next.await.expect("no panic");
        assert!(next.fence() > fence);
        cluster.signal(stopped, Signal::CONT);
        next.release().await.expect("held");
        cluster.is_healthy(stopped).await;
    }
}

pub(crate) async fn a_question_that_comes_late_takes_nothing() {
    let cluster = Cluster::start(3).await;
    let asleep = (cluster.leader().await + 1) % 3;
    // Connected to the one that stops, whose lease of the server serves the next question, too.
    let ours = connect(&cluster.address(asleep)).await;
    ours.lock("before").acquire().await.expect("free").release().await.expect("held");
    cluster.signal(asleep, Signal::STOP);
    // It lies at the one that is stopped, and another one grants it.
    let asked = ours.lock("key").wait(secs(30)).acquire().await.expect("another member answers");
    asked.release().await.expect("held");
    cluster.signal(asleep, Signal::CONT);
    cluster.is_healthy(asleep).await;
    // Nobody asks any more for what it finds there now.
    let awake = Instant::now();
    while awake.elapsed() < secs(2) {
        let seen = ours.inspect("key").await.expect("it answers");
        assert!(seen.holders.is_empty(), "{seen:?}");
        tokio::time::sleep(millis(20)).await;
    }
}

pub(crate) async fn a_place_that_nobody_stands_in_is_cleared() {
    let cluster = Cluster::start(1).await;
    let ours = connect(&cluster.address(0)).await;
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let first = waiter(&ours, "key");
    waiting(&ours, "key", 1).await;
    // As a question would make it that comes late: on the lease that this process keeps alive.
    let mut client = cluster.client(0).await;
    let all = client.get("", Some(GetOptions::new().with_all_keys())).await.expect("it answers");
    let stands = |entry: &&KeyValue| entry.key_str().is_ok_and(|name| name.contains("wait/"));
    let ticket = all.kvs().iter().find(stands).expect("one waits");
    let (name, about) = (ticket.key_str().expect("text"), ticket.value().to_vec());
    let nobodys = format!("{}{:032x}", &name[..name.len() - 32], 7);
    let hangs_on = PutOptions::new().with_lease(ticket.lease());
    client.put(nobodys, about, Some(hangs_on)).await.expect("written");
    waiting(&ours, "key", 2).await;
    let behind = waiter(&ours, "key");
    waiting(&ours, "key", 3).await;
    guard.release().await.expect("held");
    first.await.expect("its turn comes").release().await.expect("held");
    behind.await.expect("its turn comes, too").release().await.expect("held");
}

pub(crate) async fn without_a_majority_nothing_is_granted() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (alone, others) = (leader, [(leader + 1) % 3, (leader + 2) % 3]);
    let ours = connect(&cluster.address(alone)).await;
    let ttl = secs(4);
    let guard = ours.lock("held").ttl(ttl).acquire().await.expect("free");
    let asked = SystemClock.now();
    let waits = waiter(&ours, "held");
    waiting(&ours, "held", 1).await;
    // The one that led does not know yet that nobody follows.
    others.iter().for_each(|other| cluster.signal(*other, Signal::STOP));
    let error =
        ours.lock("free").ttl(secs(10)).wait(secs(5)).acquire().await.expect_err("no majority");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    guard.lost().await;
    assert!(SystemClock.now().since(asked) < ttl + SLACK, "known in time, although nobody answers");
    assert!(!waits.is_finished(), "granted without a majority");
    others.iter().for_each(|other| cluster.signal(*other, Signal::CONT));
    let next = waits.await.expect("its turn comes when there is a majority again");
    assert!(next.fence() > guard.fence());
    next.release().await.expect("held");
    eventually("free again", async || {
        ours.lock("free").try_acquire().await.is_ok_and(|got| got.is_some())
    })
    .await;
}

pub(crate) async fn a_compaction_takes_no_turn_away() {
    let cluster = Cluster::start(1).await;
    let server = cluster.place(0).parse().expect("a socket address");
    let proxy = Proxy::before(server).await.expect("a port");
    let test_database = format!("etcd://{}/room", proxy.address());
    let there = connect(&format!("etcd://{}/room", cluster.place(0))).await;
    let waits = connect(&test_database).await;
    let mut client = cluster.client(0).await;
    for cut in [false, true] {
        let guard = there.lock("key").ttl(secs(60)).acquire().await.expect("free");
        let next = waiter(&waits, "key");
        waiting(&there, "key", 1).await;
        let behind = waiter(&waits, "key");
        waiting(&there, "key", 2).await;
        if cut {
            // While it hears nothing, everything that it would have heard is forgotten.
            proxy.refuse().await;
            proxy.cut();
        }
        for n in 0..200 {
            client.put("noise", n.to_string(), None).await.expect("written");
        }
        let fence = guard.fence();
        guard.release().await.expect("held");
        let revision = client.put("noise", "", None).await.expect("written");
        let revision = revision.header().expect("a header").revision();
        let now = CompactionOptions::new().with_physical();
        client.compact(revision, Some(now)).await.expect("compacted");
        if cut {
            proxy.pass().await.expect("its port");
        }
        let first =
            tokio::time::timeout(secs(20), next).await.expect("its turn").expect("no panic");
        assert!(first.fence() > fence);
        first.release().await.expect("held");
        behind.await.expect("no panic").release().await.expect("held");
    }
}

pub(crate) async fn a_restart_keeps_leases_and_queues() {
    let mut cluster = Cluster::start(1).await;
    let address = cluster.address(0);
    let (ours, theirs) = (connect(&address).await, connect(&address).await);
    let guard = ours.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let next = waiter(&theirs, "key");
    waiting(&ours, "key", 1).await;
    for _ in 0..2 {
        cluster.kill(0);
        let error = ours.lock("other").acquire().await.expect_err("nobody is there");
        assert_eq!(error.code(), "lock_unavailable", "{error}");
        cluster.up(0);
        cluster.is_healthy(0).await;
        guard.refresh_with(FORCE).await.expect("the lease outlives the server");
        assert!(ours.lock("key").try_acquire().await.expect("it answers").is_none());
        waiting(&ours, "key", 1).await;
        assert!(!next.is_finished(), "two at once");
    }
    let fence = guard.fence();
    guard.release().await.expect("held");
    let next = next.await.expect("no panic");
    assert!(next.fence() > fence, "fences grow over a restart");
    next.release().await.expect("held");
}

/// A counter that everybody reads and then writes as its owner, while members are killed and
/// stopped: no increment is lost. And a holder that was stopped past its lease cannot write.
pub(crate) async fn no_guarded_write_is_stale() {
    let mut cluster = Cluster::start(3).await;
    let address = cluster.address(0);
    let end = Instant::now() + secs(15);
    let mut tasks = Vec::new();
    for n in 0..4 {
        let places: Vec<String> = (0..3).map(|member| cluster.place((member + n) % 3)).collect();
        let own = provider(&address).await;
        tasks.push(tokio::spawn(async move { count(own, &places, end).await }));
    }
    let mut round = 0;
    while Instant::now() < end - secs(4) {
        let victim = round % 3;
        if round % 2 == 0 {
            cluster.kill(victim);
            tokio::time::sleep(secs(2)).await;
            cluster.up(victim);
        } else {
            cluster.signal(victim, Signal::STOP);
            tokio::time::sleep(secs(2)).await;
            cluster.signal(victim, Signal::CONT);
        }
        tokio::time::sleep(millis(500)).await;
        round += 1;
    }
    let (mut written, mut unknown) = (0, 0);
    for task in tasks {
        let (own, own_unknown) = task.await.expect("no panic");
        written += own;
        unknown += own_unknown;
    }
    cluster.is_healthy(0).await;
    let counter = read(&mut cluster.client(0).await).await.expect("it answers");
    println!("{written} increments, {unknown} without an answer, {counter} in the end");
    assert!(written > 20, "too few to say anything: {written}");
    assert!(counter >= written && counter <= written + unknown, "an increment was lost");

    // Stopped past its end, it goes on as if nothing had happened.
    let part = Part::new("owner", &address, "stopped", secs(2)).writing_to(&cluster.place(0));
    let mut child = part.start();
    child.expect_line("held");
    child.signal(Signal::STOP);
    let locks = connect(&address).await;
    let guard = locks.lock("stopped").wait(secs(20)).acquire().await.expect("it ran out");
    child.signal(Signal::CONT);
    child.send_line("write");
    assert_eq!(child.expect_line("wrote"), "false", "a stale write was let through");
    guard.release().await.expect("held");
}

/// Increments under the lock; how many were written, and of how many it is not known.
async fn count(own: EtcdLockProvider, places: &[String], end: Instant) -> (u64, u64) {
    let locks = Locks::new(own.clone());
    let (mut written, mut unknown) = (0, 0);
    while Instant::now() < end {
        let asking = locks.lock("counter").ttl(secs(3)).wait(secs(5));
        let Ok(guard) = asking.acquire().await else { continue };
        for place in places {
            let mut client = Client::connect([place], None).await.expect("an address");
            let Ok(Some(before)) = tokio::time::timeout(secs(1), read(&mut client)).await else {
                continue;
            };
            // Without a compare of the counter itself: only the lease guards it.
            let write = Txn::new().when([own.is_owner(&guard)]).and_then([TxnOp::put(
                "counter",
                (before + 1).to_string(),
                None,
            )]);
            match tokio::time::timeout(secs(2), client.txn(write)).await {
                Ok(Ok(answer)) => written += u64::from(answer.succeeded()),
                // It may be carried out yet, by the same owner's lease; no second one then.
                _ => unknown += 1,
            }
            break;
        }
        let _ = guard.release().await;
    }
    (written, unknown)
}

async fn read(client: &mut Client) -> Option<u64> {
    let found = client.get("counter", None).await.ok()?;
    Some(
        found
            .kvs()
            .first()
            .map_or(0, |kv| kv.value_str().expect("text").parse().expect("a number")),
    )
}
