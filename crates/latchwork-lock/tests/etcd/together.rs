//! Requests that share a message: what is wrong with one, and what is lost on the way, is nobody
//! else's harm.

use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use latchwork_contract::proxy::{Direction, Flow, Proxy};
use latchwork_lock::{Guard, Locks, PageRequest};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, test_database};
use crate::support::{connect, eventually, millis, secs};
use crate::trips::during;

/// How many ask at once.
const CROWD: usize = 32;

/// Long enough for nobody to be saved by it.
const TTL: Duration = Duration::from_secs(60);

/// A server far away: what comes while the first are under way goes together.
struct Far {
    cluster: Cluster,
    proxy: Proxy,
    locks: Locks,
}

impl Far {
    async fn start() -> Self {
        Self::before(Cluster::start(1).await).await
    }

    async fn before(cluster: Cluster) -> Self {
        let server = cluster.place(0).parse().expect("a socket address");
        let proxy = Proxy::before(server).await.expect("a port");
        let locks = connect(&format!("etcd://{}/{}", proxy.address(), test_database())).await;
        proxy.set(Direction::ToServer, Flow::Delay(millis(10)));
        // The connection and the lease of the server.
        locks.lock("warm").ttl(TTL).acquire().await.expect("free").release().await.expect("held");
        Far { cluster, proxy, locks }
    }

    /// Nobody holds and nobody waits for anything, long before the ttl would see to it.
    async fn is_free(&self) {
        eventually("all is free", async || {
            let page = self.locks.list("", PageRequest::default()).await;
            page.is_ok_and(|page| page.keys.is_empty())
        })
        .await;
    }

    /// One for each key of a crowd, who ask at once.
    fn crowd(&self, ttl: impl Fn(usize) -> Duration) -> Vec<JoinHandle<Guard>> {
        let ask = |n: usize| {
            let (locks, ttl) = (self.locks.clone(), ttl(n));
            tokio::spawn(async move {
                let request = locks.lock(format!("key-{n}")).ttl(ttl).wait(secs(30));
                request.acquire().await.expect("free")
            })
        };
        (0..CROWD).map(ask).collect()
    }
}

async fn all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    futures::future::join_all(tasks).await.into_iter().map(|task| task.expect("no panic")).collect()
}

/// Gives all back at once; whether all were told that they held the key. A disk that takes seconds
/// for a write may lose answers.
async fn release(guards: Vec<Guard>) -> bool {
    let released = |guard: Guard| {
        tokio::spawn(async move {
            let told = guard.release().await;
            if let Err(error) = &told {
                assert_eq!(error.code(), "lock_unavailable", "{error}");
            }
            told.is_ok()
        })
    };
    all(guards.into_iter().map(released).collect()).await.into_iter().all(|told| told)
}

/// The server compares all of a message before it changes anything.
pub(crate) async fn of_those_who_want_one_key_one_gets_it() {
    const EACH: usize = 3;
    let far = Far::start().await;
    let mut told = false;
    for _ in 0..10 {
        let mut guards: Vec<Option<Guard>> = Vec::new();
        let asked = during(&far.cluster, async {
            let ask = |n: usize| {
                let locks = far.locks.clone();
                tokio::spawn(async move {
                    let request = locks.lock(format!("key-{}", n / EACH)).ttl(TTL);
                    request.try_acquire().await.expect("it answers")
                })
            };
            guards = all((0..EACH * CROWD).map(ask).collect()).await;
        });
        let asked = asked.await;
        let questions = asked.get("Txn").copied().unwrap_or(0);
        assert!(questions < (EACH * CROWD) as u64, "nobody shared a message: {asked:?}");
        for (key, wanted) in guards.chunks(EACH).enumerate() {
            assert_eq!(wanted.iter().flatten().count(), 1, "of those who wanted key-{key}");
        }
        let released = during(&far.cluster, async {
            told |= release(guards.into_iter().flatten().collect()).await;
        });
        let released: u64 = released.await.values().sum();
        assert!(!told || released < CROWD as u64, "nobody shared a message: {released}");
    }
    assert!(told, "nobody was told what became of a release");
    far.is_free().await;
}

/// It fails the whole message, in which nothing is done.
pub(crate) async fn a_lease_that_is_gone_is_no_harm_to_others() {
    let far = Far::start().await;
    let mut client = far.cluster.client(0).await;
    let short = secs(40);
    for _ in 0..5 {
        let warm = far.locks.lock("warm").ttl(short).acquire().await.expect("free");
        warm.release().await.expect("held");
        for lease in client.leases().await.expect("it answers").leases() {
            let told = client.lease_time_to_live(lease.id(), None).await.expect("it answers");
            if told.granted_ttl() == 41 {
                client.lease_revoke(lease.id()).await.expect("revoked");
            }
        }
        let guards = all(far.crowd(|n| if n % 4 == 3 { short } else { TTL })).await;
        let mut seen = 0;
        for (n, guard) in guards.iter().enumerate() {
            let holders = far.locks.inspect(&format!("key-{n}")).await.expect("it answers").holders;
            seen += holders.iter().filter(|holder| holder.fence == guard.fence()).count();
        }
        assert_eq!(seen, CROWD);
        release(guards).await;
    }
    far.is_free().await;
}

/// Who goes leaves nothing, and takes nobody's answer along.
pub(crate) async fn members_that_go_are_no_harm_to_others() {
    let far = Far::start().await;
    for round in 0..12 {
        let (going, staying): (Vec<_>, Vec<_>) =
            far.crowd(|_| TTL).into_iter().enumerate().partition(|(n, _)| n % 2 == 1);
        let staying: Vec<_> = staying.into_iter().map(|(_, task)| task).collect();
        // Before they are sent, while they are under way, and when they have what they asked for.
        tokio::time::sleep(millis(3 * round)).await;
        going.iter().for_each(|(_, task)| task.abort());
        let guards = all(staying).await;
        assert!(guards.iter().all(|guard| guard.is_held()));
        release(guards).await;
        for (_, task) in going {
            drop(task.await);
        }
        far.is_free().await;
    }
}

/// Each member finds again what it got, or gives it back; and a release is done, heard or not.
pub(crate) async fn an_answer_to_many_may_be_lost() {
    let far = Far::start().await;
    for answers in 0..6 {
        far.proxy.pass_answers(answers);
        let guards = far.crowd(|_| TTL);
        let lost = lose_answers(&far, || guards.iter().all(JoinHandle::is_finished)).await;
        assert!(lost || answers > 0, "every answer was to be lost");
        let mut guards = all(guards).await;
        for (n, guard) in guards.iter().enumerate() {
            let seen = far.locks.inspect(&format!("key-{n}")).await.expect("it answers");
            let fences: Vec<_> = seen.holders.iter().map(|holder| holder.fence).collect();
            assert_eq!(fences, [guard.fence()], "key-{n}");
        }
        // One stays, so that not all is free by a lease that ends.
        let kept = guards.pop().expect("one");
        far.proxy.pass_answers(answers);
        let released = tokio::spawn(release(guards));
        let lost = lose_answers(&far, || released.is_finished()).await;
        assert!(lost || answers > 0, "every answer was to be lost");
        released.await.expect("no panic");
        assert!(kept.is_held());
        kept.release().await.expect("held");
        far.is_free().await;
    }
}

/// Nobody waits for one message after the other.
pub(crate) async fn a_crowd_is_told_soon_that_a_server_is_silent() {
    let far = Far::start().await;
    far.proxy.black_hole();
    let ask = |n: usize| {
        let locks = far.locks.clone();
        tokio::spawn(async move { locks.lock(format!("key-{n}")).ttl(TTL).try_acquire().await })
    };
    let asked = futures::future::join_all((0..1_500).map(ask));
    // Far more than it takes; that nobody waits for message after message is tested beside the code.
    let told = tokio::time::timeout(secs(20), asked).await;
    for told in told.expect("all are told") {
        let error = told.expect("no panic").expect_err("nobody answers");
        assert_eq!(error.code(), "lock_unavailable", "{error}");
    }
    far.proxy.pass().await.expect("its port");
    far.proxy.cut();
    far.is_free().await;
}

/// A server may be told to take fewer operations at a time than a message of several has.
pub(crate) async fn few_operations_at_a_time_are_enough() {
    let few = ["--max-txn-ops", "4"].map(str::to_owned);
    let far = Far::before(Cluster::start_with(1, &few).await).await;
    let mut client = far.cluster.client(0).await;
    let five = (0..5).map(|n| TxnOp::put(format!("other-{n}"), "", None)).collect::<Vec<_>>();
    let refused = client.txn(Txn::new().and_then(five)).await.expect_err("five at a time");
    assert!(refused.to_string().contains("too many operations"), "{refused}");
    for _ in 0..2 {
        assert!(release(all(far.crowd(|_| TTL)).await).await);
    }
    // One key goes around, also with those who stand in line along the way.
    let locks = far.cluster.locks().await;
    let around = |_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..5 {
                let request = locks.lock("key").ttl(TTL).wait(secs(30));
                let guard = request.acquire().await.expect("its turn");
                fences.push(guard.fence());
                guard.release().await.expect("held");
            }
            fences
        })
    };
    let mut fences = all((0..2 * CROWD).map(around).collect()).await.concat();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 10 * CROWD);
    far.is_free().await;
}

/// Waits until an answer is lost, or all is done with the answers that were let through; then cuts the
/// connection and lets everything pass. Returns whether one was lost.
async fn lose_answers(far: &Far, done: impl Fn() -> bool) -> bool {
    let before = far.proxy.counts().dropped;
    let lost = || far.proxy.counts().dropped > before;
    eventually("an answer is lost, or all is done", async || lost() || done()).await;
    far.proxy.pass().await.expect("its port");
    far.proxy.set(Direction::ToServer, Flow::Delay(millis(10)));
    far.proxy.cut();
    lost()
}
