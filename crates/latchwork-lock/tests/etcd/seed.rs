//! What the lock that seed 004 describes can do, sentence by sentence.

use std::time::{Duration, Instant};

use etcd_client::GetOptions;
use latchwork_contract::proxy::Proxy;
use latchwork_lock::{EtcdLockProvider, Locks, Mode, Refresh};

use crate::cluster::Cluster;
use crate::support::{connect, eventually, millis, secs, waiter, waiting};

const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// "There can only be one exclusive lock at the same time, but there can be multiple shared
/// locks. If there is any shared lock an exclusive lock is not possible."
pub(crate) async fn exclusive_locks_exclude_and_shared_ones_coexist() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let exclusive = locks.lock("key").acquire().await.expect("free");
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none());
    assert!(locks.lock("key").shared().try_acquire().await.expect("it answers").is_none());
    exclusive.release().await.expect("held");
    let one = locks.lock("key").shared().acquire().await.expect("free");
    let two = locks.lock("key").shared().acquire().await.expect("beside another");
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none());
    one.release().await.expect("held");
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none());
    two.release().await.expect("held");
    locks.lock("key").acquire().await.expect("free again").release().await.expect("held");
}

/// "The lock will be released automatically if the time runs out."
pub(crate) async fn a_lock_is_released_when_its_time_runs_out() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let asked = Instant::now();
    let dead = locks.lock("key").ttl(secs(2)).acquire().await.expect("free");
    let next = locks.lock("key").wait(secs(20)).acquire().await.expect("it ran out");
    assert!(asked.elapsed() >= secs(2), "after {:?}", asked.elapsed());
    assert!(next.fence() > dead.fence() && !dead.is_held());
    assert_eq!(dead.refresh_with(FORCE).await.expect_err("over").code(), "lock_expired");
}

/// "The timeout can be refreshed": with default values, and with another time.
pub(crate) async fn the_time_can_be_refreshed() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").ttl(secs(4)).acquire().await.expect("free");
    tokio::time::sleep(millis(2_500)).await;
    guard.refresh().await.expect("less than half is left");
    assert!(guard.remaining() > secs(2));
    let longer = Refresh { ttl: Some(secs(120)), threshold: Some(Duration::ZERO) };
    guard.refresh_with(longer).await.expect("held");
    assert!(guard.remaining() > secs(100));
    // And in etcd too.
    let seen = locks.inspect("key").await.expect("it answers");
    assert!(seen.holders[0].expires_in > secs(100), "{seen:?}");
    tokio::time::sleep(secs(5)).await;
    assert!(locks.lock("key").try_acquire().await.expect("it answers").is_none(), "prolonged");
    guard.release().await.expect("held");
}

/// "The lock will only be refreshed if the remaining locking time is below this threshold. This
/// avoids spamming etcd with unnecessary queries."
pub(crate) async fn above_the_threshold_etcd_is_not_asked() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let mut client = cluster.client(0).await;
    let guard = locks.lock("key").ttl(secs(120)).acquire().await.expect("free");
    let mut revision = async || {
        let told = client.get("x", None).await.expect("it answers");
        told.header().expect("a header").revision()
    };
    let before = revision().await;
    let rarely = Refresh { ttl: Some(secs(120)), threshold: Some(secs(60)) };
    guard.refresh_with(rarely).await.expect("held");
    assert_eq!(revision().await, before, "nothing was written");
    let soon = Refresh { ttl: Some(secs(120)), threshold: Some(secs(121)) };
    guard.refresh_with(soon).await.expect("held");
    assert!(revision().await > before, "it was renewed");
}

/// "You can specify a maximum time to wait for other locks"; then "check if the lock was actually
/// acquired or if the wait timeout was reached".
pub(crate) async fn one_can_wait_for_other_locks() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").shared().acquire().await.expect("free");
    let asked = Instant::now();
    let late = locks.lock("key").wait(secs(1)).try_acquire().await.expect("contention is a value");
    assert!(late.is_none() && asked.elapsed() >= secs(1));
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    let next = next.await.expect("no panic");
    assert!(next.waited() && next.is_held());
    next.release().await.expect("held");
}

/// "Of course it's important to break the lock after finishing the operation": what we call a
/// release, and a break where it is another's.
pub(crate) async fn a_lock_can_be_broken() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").acquire().await.expect("free");
    let broken = locks.break_lock("key").await.expect("it answers");
    assert_eq!(broken.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [guard.fence()]);
    assert_eq!(guard.release().await.expect_err("broken").code(), "lock_lost");
    locks.lock("key").acquire().await.expect("free").release().await.expect("held");
}

/// "all those locks are able to take over the other locks that were previously created"; its
/// mode changes with it, which the seed's own system only says it does.
pub(crate) async fn an_identifier_takes_over() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let shared = locks.lock("key").owner("me").shared().acquire().await.expect("free");
    let exclusive = locks.lock("key").owner("me").acquire().await.expect("taken over");
    assert_eq!(exclusive.mode(), Mode::Exclusive);
    assert!(exclusive.fence() > shared.fence());
    assert!(locks.lock("key").shared().try_acquire().await.expect("it answers").is_none());
    assert_eq!(shared.refresh_with(FORCE).await.expect_err("lost").code(), "lock_lost");
    assert!(locks.lock("key").owner("you").try_acquire().await.expect("it answers").is_none());
    exclusive.release().await.expect("held");
}

/// "Either by setting the default for all locks or by overwriting the default identifier on a
/// specific lock".
pub(crate) async fn a_default_identifier_takes_over_and_can_be_overwritten() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await.with_owner("default-identifier").expect("legal");
    let first = locks.lock("key").acquire().await.expect("free");
    let second = locks.lock("key").acquire().await.expect("the same identifier");
    assert!(second.fence() > first.fence());
    let other = locks.lock("key").owner("different-identifier").try_acquire().await;
    assert!(other.expect("it answers").is_none());
    second.release().await.expect("held");
}

/// "It also would be possible to see which other process … is currently holding a lock."
pub(crate) async fn who_holds_a_lock_can_be_seen() {
    let cluster = Cluster::start(1).await;
    let locks = cluster.locks().await;
    let guard = locks.lock("key").owner("me").note("a chunk").acquire().await.expect("free");
    let error = locks.lock("key").acquire().await.expect_err("taken").to_string();
    assert!(error.contains("by me") && error.contains("a chunk"), "{error}");
    let seen = locks.inspect("key").await.expect("it answers");
    assert_eq!(seen.holders[0].who(), "me");
    assert_eq!(seen.holders[0].fence, guard.fence());
}

/// "You can set a prefix for all locking keys in etcd … The default prefix is `lock/`."
pub(crate) async fn keys_have_a_prefix() {
    let cluster = Cluster::start(1).await;
    let mut client = cluster.client(0).await;
    let place = format!("etcd://{}", cluster.place(0));
    let plain = connect(&place).await;
    let (one, two) = (plain.clone(), plain.with_prefix("my-prefix/").expect("legal"));
    let rooted = connect(&format!("{place}/app")).await;
    let mut guards = Vec::new();
    for locks in [&one, &two, &rooted] {
        guards.push(locks.lock("key").acquire().await.expect("another key"));
    }
    for beginning in ["lock/key", "my-prefix/key", "app/lock/key"] {
        let there = client.get(beginning, Some(GetOptions::new().with_prefix())).await;
        assert_eq!(there.expect("it answers").kvs().len(), 1, "{beginning}");
    }
    for guard in guards {
        guard.release().await.expect("held");
    }
    let all = client.get("", Some(GetOptions::new().with_all_keys())).await.expect("it answers");
    assert!(all.kvs().is_empty(), "nothing remains");
}

/// "You can set an etcd client object to specify the etcd connection details."
pub(crate) async fn a_client_of_ones_own_is_taken() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(0).await;
    let provider = EtcdLockProvider::from_client(client, "app/").await.expect("it is there");
    let locks = Locks::new(provider);
    let same = connect(&format!("etcd://{}/app", cluster.place(0))).await;
    let guard = locks.lock("key").acquire().await.expect("free");
    let next = waiter(&same, "key");
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    let guard = next.await.expect("no panic");
    let next = waiter(&locks, "key");
    waiting(&same, "key", 1).await;
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
}

/// "If more processes are fighting over the same lock, they will start to delay their retries in
/// random intervals to find a consistent conclusion": here they stand in line instead.
pub(crate) async fn many_who_fight_come_to_an_end() {
    let cluster = Cluster::start(1).await;
    let address = cluster.address(0);
    let mut tasks = Vec::new();
    for n in 0..12 {
        let locks = connect(&address).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..4 {
                let mode = if n % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
                let asking = locks.lock("key").mode(mode).wait(secs(60)).acquire();
                asking.await.expect("its turn").release().await.expect("held");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// "Timeouts (UnavailableExceptions) from etcd will also be detected and the operations retried
/// after some delay to avoid problems because of short availability problems."
pub(crate) async fn an_outage_is_waited_out_with_random_delays() {
    let cluster = Cluster::start(1).await;
    let server = cluster.place(0).parse().expect("a socket address");
    let proxy = Proxy::before(server).await.expect("a port");
    let locks = connect(&format!("etcd://{}/room", proxy.address())).await;
    proxy.refuse().await;
    proxy.cut();
    let asking = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.lock("key").wait(secs(40)).acquire().await })
    };
    tokio::time::sleep(secs(2)).await;
    assert!(!asking.is_finished(), "an outage is no answer");
    proxy.pass().await.expect("its port");
    let guard = asking.await.expect("no panic").expect("the outage is over");
    guard.release().await.expect("held");
    eventually("nothing is left", async || !locks.exists("key").await.expect("it answers")).await;
}
