//! Clients that are cut off from members which live: nothing is refused, it just does not arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use latchwork_contract::proxy::Proxy;
use latchwork_lock::{Fence, Locks, Refresh};
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::support::{SLACK, connect, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// A cluster, a client that reaches it by proxies, one for each member, and one that is near it.
struct Divided {
    _cluster: Cluster,
    ways: Vec<Proxy>,
    far: Locks,
    near: Locks,
}

impl Divided {
    async fn start() -> Self {
        let cluster = Cluster::start(3).await;
        let mut ways = Vec::new();
        for member in 0..3 {
            let place = cluster.place(member).parse().expect("a socket address");
            ways.push(Proxy::before(place).await.expect("a port"));
        }
        let address = cluster.address(0);
        let test_database = address.rsplit('/').next().expect("a room");
        let places: Vec<String> = ways.iter().map(|way| way.address().to_string()).collect();
        let far = connect(&format!("etcd://{}/{test_database}", places.join(","))).await;
        let near = connect(&address).await;
        Divided { _cluster: cluster, ways, far, near }
    }
}

pub(crate) async fn a_client_goes_on_with_the_members_that_it_reaches() {
    let Divided { ways, far, near, .. } = &Divided::start().await;
    let inside = Arc::new(AtomicBool::new(false));
    // Each member in turn is the only one that it reaches; at first that is not the one it asks.
    for reached in [2, 0, 1] {
        let asked = far.lock("key").ttl(secs(30)).wait(secs(60));
        let guard = asked.auto_renew(secs(90)).acquire().await.expect("its turn");
        let waits = visit(far, &inside);
        waiting(near, "key", 1).await;
        for (member, way) in ways.iter().enumerate() {
            if member != reached {
                way.black_hole();
            }
        }
        let other = far.lock("other").ttl(secs(10)).wait(secs(30)).acquire().await;
        other.expect("another member answers").release().await.expect("held");
        guard.refresh_with(FORCE).await.expect("held all the while");
        assert!(near.lock("key").try_acquire().await.expect("it answers").is_none(), "two at once");
        assert!(!waits.is_finished(), "two at once");
        let near_waits = visit(near, &inside);
        let fence = guard.fence();
        guard.release().await.expect("held");
        // In any order: who was not heard of for some seconds may have lost its place.
        let (far_fence, near_fence) =
            (waits.await.expect("its turn"), near_waits.await.expect("its turn"));
        assert!(far_fence > fence && near_fence > fence && far_fence != near_fence);
        for way in ways {
            way.pass().await.expect("its port");
        }
    }
}

/// Asks for the key, and sees that nobody else has it meanwhile.
fn visit(locks: &Locks, inside: &Arc<AtomicBool>) -> JoinHandle<Fence> {
    let (locks, inside) = (locks.clone(), inside.clone());
    tokio::spawn(async move {
        let asked = locks.lock("key").ttl(secs(20)).wait(secs(60));
        let guard = asked.acquire().await.expect("its turn");
        assert!(!inside.swap(true, Ordering::AcqRel), "two at once");
        tokio::time::sleep(millis(50)).await;
        inside.store(false, Ordering::Release);
        let fence = guard.fence();
        guard.release().await.expect("held");
        fence
    })
}

pub(crate) async fn a_client_that_reaches_nobody_knows_its_loss_in_time() {
    let Divided { ways, far, near, .. } = &Divided::start().await;
    let ttl = secs(4);
    let asked = Instant::now();
    let guard = far.lock("key").ttl(ttl).auto_renew(secs(60)).acquire().await.expect("free");
    let waits = waiter(far, "key");
    waiting(near, "key", 1).await;
    ways.iter().for_each(Proxy::black_hole);
    let theirs = {
        let near = near.clone();
        tokio::spawn(async move {
            let asked = near.lock("key").ttl(secs(60)).wait(secs(60));
            asked.acquire().await.expect("the other ran out")
        })
    };
    // Nothing that reaches nobody is granted, and it is known in time that nothing is held.
    let error = far.lock("free").wait(secs(2)).acquire().await.expect_err("nobody is reached");
    assert_eq!(error.code(), "lock_unavailable", "{error}");
    guard.lost().await;
    assert!(asked.elapsed() < ttl * 2 + SLACK, "known in time");
    let theirs = theirs.await.expect("no panic");
    assert!(!guard.is_held(), "two at once");
    assert!(theirs.fence() > guard.fence());
    assert!(!waits.is_finished(), "granted without a word from the cluster");
    // What comes late changes nothing.
    for way in ways {
        way.pass().await.expect("its port");
    }
    guard.release().await.expect_err("it is lost");
    tokio::time::sleep(millis(500)).await;
    theirs.refresh_with(FORCE).await.expect("still held");
    assert!(!waits.is_finished(), "two at once");
    theirs.release().await.expect("held");
    waits.await.expect("its turn, now that it reaches them again").release().await.expect("held");
}
