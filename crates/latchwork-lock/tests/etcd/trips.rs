//! How often the server is asked, as it counts itself.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use latchwork_lock::{Locks, Refresh};

use crate::cluster::Cluster;
use crate::support::{connect, eventually, secs, waiting};

/// The questions that the server has had, by their names.
fn asked(cluster: &Cluster) -> HashMap<String, u64> {
    let mut stream = TcpStream::connect(cluster.place(0)).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    let counts = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("grpc_server_started_total{")?;
        let (labels, count) = rest.split_once("} ")?;
        let method = labels.split("grpc_method=\"").nth(1)?.split('"').next()?;
        Some((method.to_owned(), count.parse::<f64>().ok()? as u64))
    });
    counts.collect()
}

/// What was asked meanwhile.
pub(crate) async fn during(
    cluster: &Cluster,
    work: impl Future<Output = ()>,
) -> HashMap<String, u64> {
    let before = asked(cluster);
    work.await;
    let mut after = asked(cluster);
    for (method, count) in &mut after {
        *count -= before.get(method).copied().unwrap_or(0);
    }
    after.retain(|_, count| *count > 0);
    after
}

pub(crate) fn counts(pairs: &[(&str, u64)]) -> HashMap<String, u64> {
    pairs.iter().map(|(method, count)| ((*method).to_owned(), *count)).collect()
}

/// As the table in the provider's own documentation has it.
pub(crate) async fn round_trips_are_as_declared() {
    const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    // Grants of one second share a server lease: with it, each of these is one request. A round that
    // runs into the next second is repeated.
    let mut found = HashMap::new();
    for _ in 0..20 {
        locks.lock("warm").acquire().await.expect("free").release().await.expect("held");
        found = during(&cluster, async {
            let guard = locks.lock("key").acquire().await.expect("free");
            guard.refresh_with(FORCE).await.expect("held");
            guard.release().await.expect("held");
        })
        .await;
        if !found.contains_key("LeaseGrant") {
            break;
        }
    }
    assert_eq!(found, counts(&[("Txn", 2), ("DeleteRange", 1)]));

    let guard = locks.lock("key").acquire().await.expect("free");
    let refused = during(&cluster, async {
        assert!(locks.lock("key").ttl(secs(30)).try_acquire().await.expect("it answers").is_none());
    });
    let mut refused = refused.await;
    refused.remove("LeaseGrant");
    refused.remove("LeaseRevoke");
    assert_eq!(refused, counts(&[("Txn", 1), ("LeaseTimeToLive", 1)]));
    guard.release().await.expect("held");
}

pub(crate) async fn a_thousand_waiters_ask_for_almost_nothing() {
    const WAITERS: usize = 1_000;
    const SPAN: Duration = Duration::from_secs(5);
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").ttl(secs(60)).acquire().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let locks = locks.clone();
        tasks.spawn(async move { locks.lock("key").wait(secs(90)).acquire().await.map(drop) });
    }
    waiting(&locks, "key", WAITERS).await;
    let found = during(&cluster, tokio::time::sleep(SPAN)).await;
    let total: u64 = found.values().sum();
    println!("{total} questions in {SPAN:?} for {WAITERS} waiters: {found:?}");
    assert!(total <= 4 * SPAN.as_secs(), "{found:?}");
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    locks.close().await;
    waiting(&locks, "key", 0).await;
    guard.release().await.expect("held");
}

/// Grants of one second share a lease, and none is left when nobody holds any more.
pub(crate) async fn leases_are_shared_and_ended() {
    let cluster = Cluster::start(1).await;
    let address = cluster.address(0);
    let locks: Locks = connect(&address).await;
    let mut client = cluster.client(0).await;
    let begun = Instant::now();
    let mut guards = Vec::new();
    for n in 0..100 {
        let request = locks.lock(format!("key-{n}")).ttl(secs(600));
        guards.push(request.acquire().await.expect("free"));
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).expect("a number") + 2;
    let leases = client.leases().await.expect("it answers").leases().len();
    assert!(leases <= 2 * seconds, "{leases} leases in {seconds} seconds");
    let kept = guards.pop().expect("one").into_lease().await.expect("held");
    for guard in guards {
        guard.release().await.expect("held");
    }
    // Of another length, so that those of before are looked at.
    tokio::time::sleep(secs(2)).await;
    locks.lock("other").ttl(secs(5)).acquire().await.expect("free").release().await.expect("held");
    let mut left = 0;
    eventually("they are ended", async || {
        left = client.leases().await.expect("it answers").leases().len();
        left <= 2
    })
    .await;
    // What was handed over lives on, also without whom it was granted to.
    drop(locks);
    let locks: Locks = connect(&address).await;
    locks.resume(kept).await.expect("still held").release().await.expect("held");
}

/// After so long, too little is left of a server lease for a new entry; the lease itself lives on.
const TOO_OLD: Duration = Duration::from_millis(2_500);

/// What the server is asked from the release of a key to the grant of a waiter elsewhere, which was
/// refused before it waited. `uses` is called with the locks of the waiter before that.
async fn asked_for_a_turn(
    cluster: &Cluster,
    uses: impl AsyncFnOnce(&Locks),
) -> HashMap<String, u64> {
    let address = cluster.address(0);
    let (holder, other) = (connect(&address).await, connect(&address).await);
    let guard = holder.lock("key").ttl(secs(60)).acquire().await.expect("free");
    uses(&other).await;
    let waits = tokio::spawn(async move {
        let waited = other.lock("key").ttl(secs(60)).wait(secs(60)).acquire().await;
        waited.expect("its turn").release().await.expect("held");
    });
    waiting(&holder, "key", 1).await;
    tokio::time::sleep(TOO_OLD).await;
    let found = during(cluster, async {
        guard.release().await.expect("held");
        waits.await.expect("it ran");
    });
    found.await
}

/// The lease that the waiter asked for in vain with is renewed, which is not written to a disk.
pub(crate) async fn a_waiter_needs_no_new_lease_for_its_turn() {
    let cluster = Cluster::start(1).await;
    let found = asked_for_a_turn(&cluster, async |_| ()).await;
    assert!(!found.contains_key("LeaseGrant"), "{found:?}");
    assert!(found.contains_key("LeaseKeepAlive"), "{found:?}");
}

/// To renew it would prolong what is attached to it: a lease that was handed over, or an entry that a
/// late request creates after its release.
pub(crate) async fn a_lease_that_was_attached_to_is_not_renewed_for_another() {
    let cluster = Cluster::start(1).await;
    let of_another =
        async |locks: &Locks| locks.lock("another").ttl(secs(60)).acquire().await.expect("free");
    let released = asked_for_a_turn(&cluster, async |other| {
        of_another(other).await.release().await.expect("held");
    });
    let released = released.await;
    assert!(released.contains_key("LeaseGrant"), "{released:?}");
    let handed_over = asked_for_a_turn(&cluster, async |other| {
        of_another(other).await.into_lease().await.expect("held");
    });
    let handed_over = handed_over.await;
    assert!(handed_over.contains_key("LeaseGrant"), "{handed_over:?}");
}
