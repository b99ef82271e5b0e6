//! A member that is cut off from the others, while clients that know only this one still reach it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use latchwork_lock::{Clock, Guard, Locks, Refresh, Result, SystemClock};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, test_database};
use crate::support::{SLACK, connect, eventually, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

pub(crate) async fn a_leader_that_is_alone_decides_nothing() {
    decides_nothing(0).await;
}

pub(crate) async fn a_follower_that_is_alone_decides_nothing() {
    decides_nothing(1).await;
}

/// The member that is so far behind the leader is cut off.
async fn decides_nothing(behind: usize) {
    let (cluster, ways) = Cluster::start_apart(3).await;
    let alone = (cluster.leader().await + behind) % 3;
    let test_database = test_database();
    let inside = connect(&cluster.address_of(&[alone], &test_database)).await;
    let others = [(alone + 1) % 3, (alone + 2) % 3];
    let outside = connect(&cluster.address_of(&others, &test_database)).await;

    let ttl = secs(6);
    let held = inside.lock("held").ttl(ttl).auto_renew(secs(90)).acquire().await.expect("free");
    let held = Arc::new(held);
    let heir = inherits(&outside, &held);
    let first = outside.lock("queue").ttl(secs(90)).acquire().await.expect("free");
    let waits_inside = waiter(&inside, "queue");
    waiting(&outside, "queue", 1).await;
    let waits_outside = waiter(&outside, "queue");
    waiting(&outside, "queue", 2).await;
    let goes = waiter(&inside, "queue");
    waiting(&outside, "queue", 3).await;

    ways.isolate(alone);
    let since = SystemClock.now();
    // From here on nobody inside hears anything, whatever it asks. The others go on.
    let knocks = tokio::spawn(unheard(inside.clone(), held.clone()));
    let asked = outside.lock("free").ttl(secs(90)).wait(secs(30)).acquire();
    let taken = asked.await.expect("two of three are enough");
    goes.abort();
    held.lost().await;
    assert!(SystemClock.now().since(since) < ttl + SLACK, "known in time, although nobody answers");
    let heir = heir.await.expect("no panic");
    assert!(heir.fence() > held.fence());
    let fence = first.fence();
    first.release().await.expect("held");
    let second = waits_outside.await.expect("who is not heard of loses its turn");
    assert!(second.fence() > fence);
    assert!(!waits_inside.is_finished(), "two at once");
    // The member itself answers who does not ask the others, with what was true before.
    let mut stale = cluster.client(alone).await;
    let old =
        stale.get(&*test_database, Some(GetOptions::new().with_prefix().with_serializable())).await;
    assert_eq!(old.expect("it lives").kvs().len(), 6, "two held, four waited");
    knocks.await.expect("nothing was answered");

    ways.heal().await;
    let shown = async || inside.lock("free").try_acquire().await;
    eventually("it is asked again", async || shown().await.is_ok()).await;
    assert!(shown().await.expect("it answers").is_none(), "two at once");
    let held = Arc::into_inner(held).expect("nobody else has it");
    held.release().await.expect_err("it is lost");
    heir.refresh_with(FORCE).await.expect("a late release of another changes nothing");
    taken.refresh_with(FORCE).await.expect("held all the while");

    // First come, first served, on whichever member.
    waiting(&outside, "queue", 1).await;
    let mut line = VecDeque::from([waits_inside]);
    for locks in [&outside, &inside, &outside, &inside] {
        line.push_back(waiter(locks, "queue"));
        waiting(&inside, "queue", line.len()).await;
    }
    let mut holder = second;
    while let Some(next) = line.pop_front() {
        let fence = holder.fence();
        holder.release().await.expect("held");
        holder = next.await.expect("its turn");
        assert!(holder.fence() > fence);
        assert!(!line.iter().any(JoinHandle::is_finished), "out of turn");
    }
    holder.release().await.expect("held");
    heir.release().await.expect("held");
    taken.release().await.expect("held");
    eventually("nothing is left", async || {
        let left = stale.get(&*test_database, Some(GetOptions::new().with_prefix())).await;
        left.is_ok_and(|left| left.kvs().is_empty())
    })
    .await;
}

/// Asks for what another one holds. When it is granted, the other one knows that it has lost it.
fn inherits(locks: &Locks, from: &Arc<Guard>) -> JoinHandle<Guard> {
    let (locks, from) = (locks.clone(), from.clone());
    tokio::spawn(async move {
        let asked = locks.lock("held").ttl(secs(90)).wait(secs(60)).acquire().await;
        assert!(!from.is_held(), "two at once");
        asked.expect("the other ran out")
    })
}

/// Asks for everything that can be asked for, until the lease is long lost.
async fn unheard(locks: Locks, held: Arc<Guard>) {
    while held.is_held() {
        is_unheard("granted", locks.lock("free").try_acquire().await);
        is_unheard("granted", locks.lock("unknown").shared().wait(secs(1)).acquire().await);
        // It may also find that its time is over.
        held.refresh_with(FORCE).await.expect_err("renewed by a member that is alone");
    }
    is_unheard("refused", locks.lock("held").try_acquire().await);
    is_unheard("seen", locks.inspect("held").await);
    is_unheard("seen", locks.exists("queue").await);
    is_unheard("broken", locks.break_lock("queue").await);
}

fn is_unheard<T>(what: &str, answer: Result<T>) {
    match answer {
        Ok(_) => panic!("{what} by a member that is alone"),
        Err(error) => assert_eq!(error.code(), "lock_unavailable", "{what}: {error}"),
    }
}
