//! L2 Expiry: a lease that is not renewed ends by the backend's clock.

use std::time::Duration;

use latchwork_lock::{Guard, MAX_TTL, MIN_TTL};

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l02_a_lease_ends_neither_early_nor_late, [Exclusion, Expiry]),
    case!(l02_a_held_key_stays_taken_until_then, [Exclusion, Expiry]),
    case!(l02_a_clients_clock_does_not_end_it_early, [Exclusion, Expiry]),
    case!(l02_a_clients_clock_does_not_keep_it, [Exclusion, Expiry]),
    case!(l02_each_reader_has_its_own_ttl, [Exclusion, Expiry, Shared, Renew, Inspect]),
    case!(l02_a_ttl_is_checked, []),
];

async fn l02_a_lease_ends_neither_early_nor_late(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 2;
    let asked = f.now();
    let dead = ours.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    let answered = f.now();
    let next = taken_by_next(&f, &theirs, &key, ttl).await;
    let ended = f.now();
    assert!(
        ended.since(asked) >= ttl,
        "a lease of {ttl:?} was given to another {:?} after it was asked for",
        ended.since(asked)
    );
    let latest = ttl + f.capabilities().granularity() + SLACK;
    assert!(ended.since(answered) <= latest, "it ended only after {:?}", ended.since(answered));
    drop(dead);
    next.release().await.expect("the next holder is not disturbed by the dead one");
}

async fn l02_a_held_key_stays_taken_until_then(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 3;
    let asked = f.now();
    let guard = ours.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    f.pass(ttl / 2).await;
    let other = theirs.lock(&key).try_acquire().await.expect("it answers");
    // Only what was answered within the ttl says anything.
    assert!(
        other.is_none() || f.now().since(asked) >= ttl,
        "half of the ttl is over, and another got in"
    );
    drop(guard);
}

async fn l02_a_clients_clock_does_not_end_it_early(f: Fixture) {
    let (ours, hasty) = (f.open().await, f.open_skewed().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let other = hasty.lock(&key).try_acquire().await.expect("it answers");
    assert!(other.is_none(), "a client whose clock is an hour ahead got in");
    guard.release().await.expect("it held to the end");
}

async fn l02_a_clients_clock_does_not_keep_it(f: Fixture) {
    let (skewed, ours) = (f.open_skewed().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl();
    let dead = skewed.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    assert!(dead.remaining() <= ttl, "trusted for longer than its ttl");
    let next = taken_by_next(&f, &ours, &key, ttl).await;
    assert!(next.fence() > dead.fence());
}

async fn l02_each_reader_has_its_own_ttl(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 2;
    let short = locks.lock(&key).shared().ttl(ttl).acquire().await.expect("a free key");
    let long = locks.lock(&key).shared().acquire().await.expect("beside a reader");
    f.within(ttl + f.capabilities().granularity() + SLACK, "the short one ends", async {
        loop {
            // The trap: one time to live for all readers, which any of them prolongs.
            long.refresh_with(FORCE).await.expect("the long one is held");
            let holders = locks.inspect(&key).await.expect("it answers").holders;
            if holders.iter().all(|holder| holder.fence != short.fence()) {
                assert_eq!(holders.len(), 1, "the long one goes on");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    long.release().await.expect("it held to the end");
    drop(short);
}

async fn l02_a_ttl_is_checked(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    for bad in [Duration::ZERO, MIN_TTL / 2, MAX_TTL + Duration::from_secs(1), Duration::MAX] {
        assert_eq!(code(locks.lock(&key).ttl(bad).acquire().await), "invalid_argument", "{bad:?}");
    }
}

/// Asks again and again, without waiting in the queue, until the lease before has ended.
async fn taken_by_next(
    f: &Fixture,
    locks: &latchwork_lock::Locks,
    key: &str,
    ttl: Duration,
) -> Guard {
    let limit = ttl + f.capabilities().granularity() + SLACK;
    f.within(limit, "the lease ends", async {
        loop {
            if let Some(guard) = locks.lock(key).try_acquire().await.expect("it answers") {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}
