//! Fences grow, whatever becomes of the rows and of the clock.

use latchwork_lock::{Fence, Locks};

use crate::support::backend::mysql::{admin, test_database};
use crate::support::{connect, eventually, secs, waiter, waiting};
use crate::{FORCE, number, open};

pub(crate) async fn fence(locks: &Locks, key: &'static str) -> u64 {
    let guard = locks.lock(key).acquire().await.expect("a free key");
    let fence = guard.fence().get();
    guard.release().await.expect("held");
    fence
}

pub(crate) async fn fences_go_on_above_a_restored_copy() {
    let address = test_database().await;
    let before = fence(&connect(&address).await, "key").await;
    // As a copy from long ago would have it.
    admin(&address, "UPDATE latchwork_lock_key SET fence = 1000").await;
    let restored = fence(&connect(&address).await, "key").await;
    assert!(restored > before, "{restored} after {before}");
    admin(&address, "DELETE FROM latchwork_lock_key; UPDATE latchwork_lock_floor SET fence = 0")
        .await;
    let emptied = fence(&connect(&address).await, "key").await;
    assert!(emptied > restored, "{emptied} after {restored}");
}

/// An hour of fences was given by a clock that was ahead: on they go from there.
pub(crate) async fn fences_grow_although_the_clock_was_set_back() {
    let address = test_database().await;
    let locks = connect(&address).await;
    fence(&locks, "key").await;
    admin(&address, "UPDATE latchwork_lock_key SET fence = fence + 3600000000").await;
    let mut connection = open(&address).await;
    let last = number(&mut connection, "SELECT MAX(fence) FROM latchwork_lock_key").await;
    let last = last.unsigned_abs();
    assert_eq!(fence(&locks, "key").await, last + 1);
    // By the rules, too: somebody waits for it.
    let guard = locks.lock("key").acquire().await.expect("a free key");
    assert_eq!(guard.fence().get(), last + 2);
    let next = waiter(&locks, "key");
    waiting(&locks, "key", 1).await;
    guard.release().await.expect("held");
    let next = next.await.expect("no panic");
    assert_eq!(next.fence().get(), last + 3);
    assert_eq!(next.previous_fence().map(Fence::get), Some(last + 2));
    next.release().await.expect("held");
    // And when the row has gone meanwhile.
    let floor = "UPDATE latchwork_lock_floor SET fence = (SELECT MAX(fence) FROM latchwork_lock_key); \
                 DELETE FROM latchwork_lock_key";
    admin(&address, floor).await;
    assert_eq!(fence(&locks, "key").await, last + 4);
}

pub(crate) async fn keys_that_nobody_uses_go_and_their_fences_stay() {
    const ROWS: &str = "SELECT COUNT(*) FROM latchwork_lock_key";
    let address = test_database().await;
    let locks = connect(&address).await;
    let held = locks.lock("held").ttl(secs(90)).acquire().await.expect("a free key");
    for key in ["a", "b", "c"] {
        fence(&locks, key).await;
    }
    // An hour later.
    admin(&address, "UPDATE latchwork_lock_key SET fence = fence - 3600000000").await;
    fence(&locks, "c").await;
    let mut connection = open(&address).await;
    let newest = "SELECT MAX(fence) FROM latchwork_lock_key WHERE name IN ('lock/a', 'lock/b')";
    let newest = number(&mut connection, newest).await;
    assert_eq!(number(&mut connection, ROWS).await, 4);
    // Who opens it looks.
    connect(&address).await;
    eventually("two are gone", async || number(&mut connection, ROWS).await == 2).await;
    let floor = number(&mut connection, "SELECT fence FROM latchwork_lock_floor").await;
    assert_eq!(floor, newest);
    assert_eq!(locks.inspect("held").await.expect("it answers").holders.len(), 1);
    held.refresh_with(FORCE).await.expect("held");
    assert!(fence(&locks, "a").await > newest.unsigned_abs());
}

pub(crate) async fn every_shared_holder_has_its_own_fence() {
    let locks = connect(&test_database().await).await;
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(locks.lock("key").shared().acquire().await.expect("shared"));
    }
    let given: Vec<Fence> = guards.iter().map(|guard| guard.fence()).collect();
    assert!(given.is_sorted() && given[0] < given[1] && given[1] < given[2], "{given:?}");
    let seen = locks.inspect("key").await.expect("it answers");
    let told: Vec<Fence> = seen.holders.iter().map(|holder| holder.fence).collect();
    assert_eq!(told, given);
    // The first one goes, and another takes its row.
    guards.remove(0).release().await.expect("held");
    let seen = locks.inspect("key").await.expect("it answers");
    let told: Vec<Fence> = seen.holders.iter().map(|holder| holder.fence).collect();
    assert_eq!(told, given[1..]);
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert!(fence(&locks, "key").await > given[2].get());
}
