//! L10 Renewal: an optional watchdog, with an upper bound on the total hold time.

use std::time::Duration;

use super::case::case;
use super::fixture::SLACK;
use super::{Case, Fixture, Operation, eventually};

pub(super) const CASES: &[Case] = &[
    case!(l10_it_is_off_by_default, [Renew]),
    case!(l10_a_renewed_lease_outlives_its_ttl, [Renew, Exclusion, Expiry]),
    case!(l10_it_stops_at_the_bound, [Renew, Exclusion, Expiry]),
    case!(l10_it_stops_with_the_guard, [Renew, Exclusion]),
    case!(l10_it_stops_on_hand_over, [Renew, HandOver]),
    case!(l10_a_short_outage_does_not_stop_it, [Renew, Exclusion, Expiry]),
    case!(l10_an_error_that_seems_permanent_does_not_stop_it, [Renew, Exclusion, Expiry]),
    case!(l10_it_tells_of_a_loss, [Renew, Break]),
];

const LONG: Duration = Duration::from_secs(600);

async fn l10_it_is_off_by_default(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let guard = locks.lock(f.key("a")).ttl(f.ttl()).acquire().await.expect("a free key");
    f.within(f.ttl() + SLACK, "it ends", guard.lost()).await;
    assert_eq!(faults.calls(Operation::Renew), 0);
}

async fn l10_a_renewed_lease_outlives_its_ttl(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.patient_ttl();
    let asked = f.now();
    let guard = ours.lock(&key).ttl(ttl).auto_renew(LONG).acquire().await.expect("a free key");
    while f.now().since(asked) < ttl * 2 {
        let before = guard.remaining();
        f.pass(ttl * 4 / 10).await;
        eventually("the watchdog renews", async || guard.remaining() > before - ttl / 5).await;
        assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    }
    guard.release().await.expect("held for twice its ttl");
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l10_it_stops_at_the_bound(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 2;
    let asked = f.now();
    let stuck = ours.lock(&key).ttl(ttl).auto_renew(ttl * 2).acquire().await.expect("a free key");
    let freed = async {
        loop {
            if let Some(guard) = theirs.lock(&key).try_acquire().await.expect("it answers") {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let limit = ttl * 3 + f.capabilities().granularity() + SLACK;
    let next = f.within(limit, "the bound ends it", freed).await;
    assert!(f.now().since(asked) >= ttl * 2, "it ended before the bound");
    assert!(!stuck.is_held(), "the one that is stuck can know");
    next.release().await.expect("held");
}

async fn l10_it_stops_with_the_guard(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let key = f.key("a");
    let ttl = f.ttl();
    let guard = locks.lock(&key).ttl(ttl).auto_renew(LONG).acquire().await.expect("a free key");
    f.within(ttl + SLACK, "it renews", async {
        while faults.calls(Operation::Renew) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    drop(guard);
    let next = f.free(&locks, &key).await;
    let calls = faults.calls(Operation::Renew);
    f.pass(ttl * 2).await;
    // One may have been under way.
    assert!(faults.calls(Operation::Renew) <= calls + 1, "it goes on without its guard");
    drop(next);
}

async fn l10_it_stops_on_hand_over(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let ttl = f.ttl() * 2;
    let request = locks.lock(f.key("a")).ttl(ttl).auto_renew(LONG);
    let guard = request.acquire().await.expect("a free key");
    let lease = guard.into_lease().await.expect("held");
    let calls = faults.calls(Operation::Renew);
    f.pass(ttl).await;
    assert!(faults.calls(Operation::Renew) <= calls + 1, "it goes on without its guard");
    drop(lease);
}

async fn l10_a_short_outage_does_not_stop_it(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 6;
    let guard = ours.lock(&key).ttl(ttl).auto_renew(LONG).acquire().await.expect("a free key");
    faults.lose_calls(Operation::Renew, 1);
    faults.lose_answers(Operation::Renew, 1);
    f.within(ttl + SLACK, "it tries again", async {
        while faults.calls(Operation::Renew) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    eventually("it renews", async || guard.remaining() > ttl / 2).await;
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
}

/// A right may be given back, and a full server emptied, before the lease is over.
async fn l10_an_error_that_seems_permanent_does_not_stop_it(f: Fixture) {
    let (ours, faults) = f.open_flaky().await;
    let theirs = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 6;
    let guard = ours.lock(&key).ttl(ttl).auto_renew(LONG).acquire().await.expect("a free key");
    faults.refuse(Operation::Renew);
    faults.refuse(Operation::Renew);
    f.within(ttl + SLACK, "it tries again", async {
        while faults.calls(Operation::Renew) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    eventually("it renews", async || guard.remaining() > ttl / 2).await;
    eventually("and says no more of it", async || guard.renewal_error().is_none()).await;
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());

    // Refused to the end: what is said of it then names the cause.
    faults.away(Operation::Renew, true);
    f.within(ttl * 2 + SLACK, "trust ends", guard.lost()).await;
    let why = guard.renewal_error().expect("it failed").to_string();
    assert!(why.contains("away"), "{why}");
    f.pass(ttl).await;
    let lost = guard.release().await.expect_err("it is over").to_string();
    assert!(lost.contains("away"), "{lost}");
}

async fn l10_it_tells_of_a_loss(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 10;
    let asked = f.now();
    let guard = locks.lock(&key).ttl(ttl).auto_renew(LONG).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    f.within(ttl, "lost() resolves at the next renewal", guard.lost()).await;
    assert!(f.now().since(asked) < ttl, "it was noticed by time only");
    assert!(!guard.is_held());
}
