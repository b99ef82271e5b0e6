//! L12 Break: an administrator can end a lease.

use latchwork_lock::{Fence, Mode};

use super::case::case;
use super::fixture::{FORCE, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l12_a_break_ends_the_lease, [Break, Renew, Exclusion]),
    case!(l12_a_broken_guards_release_says_so, [Break, Exclusion]),
    case!(l12_all_readers_are_broken, [Break, Shared, Exclusion]),
    case!(l12_one_lease_is_broken_by_its_fence, [Break, Shared, Renew, Exclusion]),
    case!(l12_an_old_fence_breaks_nothing, [Break, Exclusion]),
    case!(l12_a_free_key_can_be_broken, [Break]),
    case!(l12_the_next_waiter_is_let_in, [Break, Wait, Inspect, Exclusion]),
];

async fn l12_a_break_ends_the_lease(f: Fixture) {
    let (ours, admin) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).note("stuck").acquire().await.expect("a free key");
    let broken = admin.break_lock(&key).await.expect("it answers");
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].fence, guard.fence());
    assert_eq!(broken[0].note.as_deref(), Some("stuck"));
    let next = admin.lock(&key).acquire().await.expect("it is free at once");
    assert!(next.fence() > guard.fence());
    assert_eq!(code(guard.refresh_with(FORCE).await), "lock_lost");
    next.release().await.expect("held");
}

async fn l12_a_broken_guards_release_says_so(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    let next = locks.lock(&key).acquire().await.expect("free");
    assert_eq!(code(guard.release().await), "lock_lost");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    next.release().await.expect("held");
}

async fn l12_all_readers_are_broken(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let mut fences = Vec::new();
    let mut guards = Vec::new();
    for _ in 0..3 {
        let guard = locks.lock(&key).shared().acquire().await.expect("readers coexist");
        fences.push(guard.fence());
        guards.push(guard);
    }
    let mut broken: Vec<_> =
        locks.break_lock(&key).await.expect("it answers").iter().map(|h| h.fence).collect();
    broken.sort_unstable();
    assert_eq!(broken, fences);
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l12_one_lease_is_broken_by_its_fence(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let one = locks.lock(&key).shared().acquire().await.expect("a free key");
    let two = locks.lock(&key).shared().acquire().await.expect("beside a reader");
    let broken = locks.break_lease(&key, one.fence()).await.expect("it answers");
    assert_eq!(broken.map(|holder| holder.fence), Some(one.fence()));
    assert_eq!(code(one.refresh_with(FORCE).await), "lock_lost");
    two.refresh_with(FORCE).await.expect("the other goes on");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    two.release().await.expect("held");
}

async fn l12_an_old_fence_breaks_nothing(f: Fixture) {
    // What was seen is what is broken, and not the holder after it.
    let locks = f.open().await;
    let key = f.key("a");
    let seen = locks.lock(&key).acquire().await.expect("a free key");
    let fence = seen.fence();
    seen.release().await.expect("held");
    let next = locks.lock(&key).acquire().await.expect("free");
    for old in [fence, Fence::new(0), Fence::new(u64::MAX >> 1)] {
        assert!(locks.break_lease(&key, old).await.expect("it answers").is_none());
    }
    next.release().await.expect("it held to the end");
}

async fn l12_a_free_key_can_be_broken(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    assert!(locks.break_lock(&key).await.expect("it answers").is_empty());
    assert!(locks.break_lease(&key, Fence::new(1)).await.expect("it answers").is_none());
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l12_the_next_waiter_is_let_in(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    let behind = f.enqueue(&ours, &key, Mode::Exclusive).await;
    assert_eq!(ours.break_lock(&key).await.expect("it answers").len(), 1);
    let next = f.soon("the waiter is let in", waiter).await;
    assert!(next.fence() > guard.fence());
    assert!(!behind.is_finished(), "a break ends leases, not the queue");
    next.release().await.expect("held");
    f.soon("and then the one behind", behind).await.release().await.expect("held");
}
