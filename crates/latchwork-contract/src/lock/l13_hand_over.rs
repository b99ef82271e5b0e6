//! L13 Hand-over: a serialised lease can be resumed elsewhere, or reports that it was lost.

use std::time::Duration;

use latchwork_lock::{Lease, Mode};

use super::case::case;
use super::fixture::{FORCE, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l13_a_lease_travels_as_json, [HandOver, Exclusion]),
    case!(l13_it_stays_held_on_the_way, [HandOver, Exclusion]),
    case!(l13_of_two_resumers_one_wins, [HandOver, Tokens]),
    case!(l13_an_old_copy_is_dead, [HandOver, Tokens, Renew]),
    case!(l13_resuming_too_late_says_so, [HandOver, Expiry]),
    case!(l13_resuming_a_broken_lease_says_so, [HandOver, Break]),
    case!(l13_a_broken_lease_is_not_handed_over, [HandOver, Break]),
    case!(l13_an_expired_lease_is_not_handed_over, [HandOver, Expiry]),
    case!(l13_the_prefix_travels_along, [HandOver, Exclusion]),
    case!(l13_a_shared_lease_travels_too, [HandOver, Shared, Exclusion]),
    case!(l13_resuming_starts_a_new_ttl, [HandOver, Expiry, Exclusion]),
    case!(l13_a_lease_outlives_every_client, [HandOver, Inspect, Exclusion, Durability]),
];

/// There and back again.
fn through_json(lease: &Lease) -> Lease {
    let text = serde_json::to_string(lease).expect("it serialises");
    serde_json::from_str(&text).expect("it reads")
}

async fn l13_a_lease_travels_as_json(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let fence = guard.fence();
    let lease = through_json(&guard.into_lease().await.expect("held"));
    assert_eq!((lease.key.as_str(), lease.fence), (key.as_str(), fence));
    ours.close().await;
    let guard = theirs.resume(lease).await.expect("still held");
    assert_eq!(guard.key(), key);
    assert!(guard.is_held() && guard.fence() > fence);
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("it held to the end");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l13_a_broken_lease_is_not_handed_over(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    assert_eq!(code(guard.into_lease().await), "lock_lost");
    // Nor is the next holder's, by the token of the one before.
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    let next = locks.lock(&key).acquire().await.expect("a free key");
    assert_eq!(code(guard.into_lease().await), "lock_lost");
    next.release().await.expect("it is not disturbed");
}

async fn l13_an_expired_lease_is_not_handed_over(f: Fixture) {
    let locks = f.open().await;
    let guard = locks.lock(f.key("a")).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    assert_eq!(code(guard.into_lease().await), "lock_expired");
}

/// As far as a suite can tell that shares its server: nobody is there any more who could have
/// remembered it. What a restart leaves, the tests of each provider show.
async fn l13_a_lease_outlives_every_client(f: Fixture) {
    let key = f.key("a");
    let last = f.open().await;
    let guard = last.lock(&key).ttl(Duration::from_secs(60)).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    last.close().await;
    drop(last);
    let (ours, theirs) = (f.open().await, f.open().await);
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    let found = theirs.inspect(&key).await.expect("it answers");
    assert_eq!(found.holders.len(), 1, "{found:?}");
    assert_eq!(found.holders[0].fence, lease.fence);
    let fence = lease.fence;
    let guard = ours.resume(lease).await.expect("still held");
    assert!(guard.fence() > fence);
    guard.release().await.expect("held");
    let next = theirs.lock(&key).acquire().await.expect("free");
    assert!(next.fence() > fence);
}

async fn l13_it_stays_held_on_the_way(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let lease = {
        let guard = ours.lock(&key).acquire().await.expect("a free key");
        guard.into_lease().await.expect("held")
    };
    ours.close().await;
    drop(ours);
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    theirs.resume(lease).await.expect("held").release().await.expect("held");
}

async fn l13_of_two_resumers_one_wins(f: Fixture) {
    for round in 0..5 {
        let clients = [f.open().await, f.open().await];
        let key = f.key(&format!("{round}"));
        let guard = clients[0].lock(&key).acquire().await.expect("a free key");
        let lease = guard.into_lease().await.expect("held");
        let resume = clients.map(|locks| {
            let lease = lease.clone();
            tokio::spawn(async move { locks.resume(lease).await })
        });
        let mut answers = Vec::new();
        for task in resume {
            answers.push(f.soon("it answers", task).await);
        }
        let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 1));
        for answer in lost {
            assert_eq!(code(answer), "lock_lost");
        }
        for winner in won.into_iter().flatten() {
            winner.release().await.expect("the loser has not disturbed it");
        }
    }
}

async fn l13_an_old_copy_is_dead(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let old = guard.into_lease().await.expect("held");
    let guard = locks.resume(old.clone()).await.expect("held");
    assert_eq!(code(locks.resume(old.clone()).await), "lock_lost");
    guard.refresh_with(FORCE).await.expect("not disturbed by the old copy");
    let new = guard.into_lease().await.expect("held");
    assert_ne!(new.token, old.token);
    let guard = locks.resume(new.clone()).await.expect("held");
    guard.release().await.expect("held");
    assert_eq!(code(locks.resume(new).await), "lock_lost", "released");
}

async fn l13_resuming_too_late_says_so(f: Fixture) {
    let locks = f.open().await;
    let guard = locks.lock(f.key("a")).ttl(f.ttl()).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    assert_eq!(code(locks.resume(lease).await), "lock_lost");
}

async fn l13_resuming_a_broken_lease_says_so(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    assert_eq!(locks.break_lock(&key).await.expect("it answers").len(), 1);
    assert_eq!(code(locks.resume(lease).await), "lock_lost");
}

async fn l13_the_prefix_travels_along(f: Fixture) {
    let ours = f.open().await.with_prefix("ours/").expect("a legal prefix");
    let theirs = f.open().await.with_prefix("theirs/").expect("a legal prefix");
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let lease = through_json(&guard.into_lease().await.expect("held"));
    let guard = theirs.resume(lease).await.expect("held");
    assert_eq!(guard.key(), key);
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    let other = theirs.lock(&key).acquire().await.expect("another prefix is another key");
    other.release().await.expect("held");
    guard.release().await.expect("held");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l13_a_shared_lease_travels_too(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let reader = ours.lock(&key).shared().acquire().await.expect("a free key");
    let other = ours.lock(&key).shared().acquire().await.expect("beside a reader");
    let lease = through_json(&reader.into_lease().await.expect("held"));
    let reader = theirs.resume(lease).await.expect("held");
    assert_eq!(reader.mode(), Mode::Shared);
    other.release().await.expect("the other reader is not disturbed");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    assert!(ours.lock(&key).shared().try_acquire().await.expect("it answers").is_some());
    reader.release().await.expect("held");
}

async fn l13_resuming_starts_a_new_ttl(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.patient_ttl();
    let guard = ours.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    f.pass(ttl * 6 / 10).await;
    let guard = theirs.resume(lease).await.expect("held");
    f.pass(ttl * 6 / 10).await;
    assert!(guard.is_held());
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
}
