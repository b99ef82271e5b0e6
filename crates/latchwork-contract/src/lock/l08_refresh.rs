//! L8 Refresh: above the threshold no round trip, below it a new ttl.

use std::time::Duration;

use latchwork_lock::Refresh;

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture, Operation};

pub(super) const CASES: &[Case] = &[
    case!(l08_above_the_threshold_no_call_is_made, [Renew]),
    case!(l08_below_the_threshold_a_call_is_made, [Renew]),
    case!(l08_another_ttl_always_asks, [Renew]),
    case!(l08_above_the_threshold_a_break_goes_unseen, [Renew, Break]),
    case!(l08_a_refresh_starts_the_ttl_anew, [Renew, Exclusion, Expiry]),
    case!(l08_a_longer_ttl_counts, [Renew, Exclusion, Expiry]),
    case!(l08_a_shorter_ttl_counts, [Renew, Exclusion, Expiry]),
    case!(l08_a_refresh_after_the_end_says_so, [Renew, Tokens, Expiry]),
    case!(l08_a_new_ttl_is_checked, [Renew]),
];

async fn l08_above_the_threshold_no_call_is_made(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let guard = locks.lock(f.key("a")).acquire().await.expect("a free key");
    guard.refresh().await.expect("held");
    let little = Refresh { ttl: None, threshold: Some(Duration::from_secs(1)) };
    guard.refresh_with(little).await.expect("held");
    assert_eq!(faults.calls(Operation::Renew), 0, "nearly all of the ttl is left");
    guard.refresh_with(FORCE).await.expect("held");
    assert_eq!(faults.calls(Operation::Renew), 1, "a threshold of zero always asks");
}

async fn l08_below_the_threshold_a_call_is_made(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let ttl = f.patient_ttl();
    let guard = locks.lock(f.key("a")).ttl(ttl).acquire().await.expect("a free key");
    f.pass(ttl * 6 / 10).await;
    guard.refresh().await.expect("held");
    assert_eq!(faults.calls(Operation::Renew), 1, "less than half of the ttl was left");
    let all = Refresh { ttl: None, threshold: Some(ttl * 2) };
    guard.refresh_with(all).await.expect("held");
    assert_eq!(faults.calls(Operation::Renew), 2, "less than the threshold was left");
}

async fn l08_another_ttl_always_asks(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let seconds = Duration::from_secs;
    let guard = locks.lock(f.key("a")).ttl(seconds(60)).acquire().await.expect("a free key");
    let mut asked = 0;
    // Longer and shorter, above any threshold: nearly all of the ttl is left.
    for (ttl, threshold) in [(100, None), (90, None), (120, Some(seconds(1))), (60, None)] {
        let ttl = seconds(ttl);
        let refresh = Refresh { ttl: Some(ttl), threshold };
        guard.refresh_with(refresh).await.expect("held");
        asked += 1;
        assert_eq!(faults.calls(Operation::Renew), asked, "{refresh:?}");
        assert_eq!(guard.ttl(), ttl);
        let left = guard.remaining();
        assert!(left <= ttl && left > ttl - seconds(10), "{left:?} of {ttl:?}");
        // The same once more is what the threshold is for.
        guard.refresh_with(refresh).await.expect("held");
        guard.refresh().await.expect("held");
        assert_eq!(faults.calls(Operation::Renew), asked, "{refresh:?} again");
    }
}

async fn l08_above_the_threshold_a_break_goes_unseen(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    guard.refresh().await.expect("nothing was asked, so nothing was learned");
    assert!(guard.is_held());
    assert_eq!(code(guard.refresh_with(FORCE).await), "lock_lost");
    assert!(!guard.is_held());
    assert_eq!(code(guard.refresh().await), "lock_lost", "and it stays lost");
}

async fn l08_a_refresh_starts_the_ttl_anew(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.patient_ttl();
    let guard = ours.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    for _ in 0..2 {
        f.pass(ttl * 6 / 10).await;
        guard.refresh().await.expect("held");
        assert!(guard.remaining() > ttl / 2, "{:?} of {ttl:?}", guard.remaining());
    }
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held for longer than its first ttl");
}

async fn l08_a_longer_ttl_counts(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).ttl(f.ttl() * 3).acquire().await.expect("a free key");
    let longer = Refresh { ttl: Some(Duration::from_secs(30)), threshold: None };
    guard.refresh_with(longer).await.expect("held");
    assert_eq!(guard.ttl(), Duration::from_secs(30));
    assert!(guard.remaining() > f.ttl() * 3);
    f.pass(f.ttl() * 3 + f.capabilities().granularity()).await;
    assert!(guard.is_held());
    assert!(theirs.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
}

async fn l08_a_shorter_ttl_counts(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let shorter = Refresh { ttl: Some(f.ttl()), threshold: Some(Duration::ZERO) };
    guard.refresh_with(shorter).await.expect("held");
    assert!(guard.remaining() <= f.ttl());
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    assert!(!guard.is_held());
    f.within(SLACK, "it ends in the backend too", async {
        f.free(&theirs, &key).await.release().await.expect("held");
    })
    .await;
}

async fn l08_a_refresh_after_the_end_says_so(f: Fixture) {
    let locks = f.open().await;
    let guard = locks.lock(f.key("a")).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    assert_eq!(code(guard.refresh().await), "lock_expired");
    assert!(!guard.is_held());
}

async fn l08_a_new_ttl_is_checked(f: Fixture) {
    let locks = f.open().await;
    let guard = locks.lock(f.key("a")).acquire().await.expect("a free key");
    let bad = Refresh { ttl: Some(Duration::ZERO), threshold: Some(Duration::ZERO) };
    assert_eq!(code(guard.refresh_with(bad).await), "invalid_argument");
    assert!(guard.is_held(), "a refused setting changes nothing");
}
