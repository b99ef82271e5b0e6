//! L9 Loss is known in time: trust ends a margin before the ttl, counted from before the request.

use std::time::Duration;

use latchwork_lock::provider::trust_margin;

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture, Operation};

pub(super) const CASES: &[Case] = &[
    case!(l09_trust_ends_a_margin_before_the_ttl, []),
    case!(l09_remaining_falls, []),
    case!(l09_lost_resolves_when_the_backend_says_so, [Renew, Break]),
    case!(l09_lost_waits_on_through_a_renewal, [Renew]),
    case!(l09_a_slow_grant_is_trusted_from_before_it, []),
    case!(l09_a_slow_renewal_is_trusted_from_before_it, [Renew]),
    case!(l09_trust_ends_also_when_the_backend_is_away, [Renew]),
];

/// The longest tick of a kernel's clock.
const TICK: Duration = Duration::from_millis(10);

async fn l09_trust_ends_a_margin_before_the_ttl(f: Fixture) {
    let locks = f.open().await;
    let ttl = f.ttl() * 4;
    let margin = trust_margin(ttl);
    assert!(!margin.is_zero(), "the margin is stated");
    // A busy machine may notice late: the best of some tries counts.
    for attempt in 0..5 {
        let key = f.key(&format!("{attempt}"));
        let asked = f.now();
        let guard = locks.lock(&key).ttl(ttl).acquire().await.expect("a free key");
        assert!(guard.is_held());
        f.within(ttl + SLACK, "lost() resolves", guard.lost()).await;
        let lasted = f.now().since(asked);
        assert!(!guard.is_held() && guard.remaining().is_zero());
        // A lease may begin at the last tick of the kernel's clock before the request.
        assert!(lasted + TICK >= ttl - margin, "trusted for only {lasted:?} of {ttl:?}");
        if lasted < ttl {
            return;
        }
    }
    panic!("in five tries trust never ended before the ttl");
}

async fn l09_remaining_falls(f: Fixture) {
    let locks = f.open().await;
    let ttl = f.ttl() * 10;
    let asked = f.now();
    let guard = locks.lock(f.key("a")).ttl(ttl).acquire().await.expect("a free key");
    let first = guard.remaining();
    assert!(first <= ttl - trust_margin(ttl), "{first:?} of {ttl:?}");
    f.pass(f.ttl()).await;
    let second = guard.remaining();
    assert!(second + f.ttl() <= first, "{second:?} after {first:?}");
    let known = f.now().since(asked);
    assert!(second + known >= ttl - trust_margin(ttl), "{second:?} left after {known:?}");
}

async fn l09_lost_resolves_when_the_backend_says_so(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    locks.break_lock(&key).await.expect("it answers");
    let refresh = async {
        tokio::task::yield_now().await;
        assert_eq!(code(guard.refresh_with(FORCE).await), "lock_lost");
    };
    // Long before the ttl of thirty seconds.
    let both = async { futures::join!(guard.lost(), refresh) };
    f.within(SLACK, "lost() resolves", both).await;
}

async fn l09_lost_waits_on_through_a_renewal(f: Fixture) {
    let locks = f.open().await;
    let ttl = f.patient_ttl();
    let asked = f.now();
    let guard = locks.lock(f.key("a")).ttl(ttl).acquire().await.expect("a free key");
    let renewed = async {
        f.pass(ttl / 2).await;
        let renewed = f.now();
        guard.refresh_with(FORCE).await.expect("held");
        renewed
    };
    let both = async { futures::join!(guard.lost(), renewed) };
    let ((), renewed) = f.within(ttl * 2 + SLACK, "lost() resolves", both).await;
    assert!(renewed.since(asked) >= ttl / 2);
    assert!(f.now().since(renewed) >= ttl - trust_margin(ttl), "the renewal did not count");
}

async fn l09_a_slow_grant_is_trusted_from_before_it(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let key = f.key("a");
    let ttl = f.ttl() * 10;
    let (reached, go) = faults.hold_answer(Operation::Acquire);
    let asking =
        tokio::spawn(async move { locks.lock(&key).ttl(ttl).acquire().await.expect("free") });
    reached.await.expect("the call arrives");
    f.pass(f.ttl() * 2).await;
    drop(go);
    let guard = f.soon("the answer arrives", asking).await;
    let most = ttl - trust_margin(ttl) - f.ttl() * 2;
    assert!(guard.remaining() <= most, "{:?}, and {most:?} is left at most", guard.remaining());
}

async fn l09_a_slow_renewal_is_trusted_from_before_it(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let ttl = f.ttl() * 10;
    let guard = locks.lock(f.key("a")).ttl(ttl).acquire().await.expect("a free key");
    let (reached, go) = faults.hold_answer(Operation::Renew);
    let slow = async {
        reached.await.expect("the call arrives");
        f.pass(f.ttl() * 2).await;
        drop(go);
    };
    let (renewed, ()) = futures::join!(guard.refresh_with(FORCE), slow);
    renewed.expect("held");
    let most = ttl - trust_margin(ttl) - f.ttl() * 2;
    assert!(guard.remaining() <= most, "{:?}, and {most:?} is left at most", guard.remaining());
}

async fn l09_trust_ends_also_when_the_backend_is_away(f: Fixture) {
    let (locks, faults) = f.open_flaky().await;
    let ttl = f.ttl() * 4;
    let asked = f.now();
    let guard = locks.lock(f.key("a")).ttl(ttl).acquire().await.expect("a free key");
    faults.away(Operation::Renew, true);
    assert_eq!(code(guard.refresh_with(FORCE).await), "lock_unavailable");
    assert!(guard.is_held(), "an outage is no loss yet");
    f.within(ttl + SLACK, "lost() resolves", guard.lost()).await;
    assert!(!guard.is_held());
    assert!(f.now().since(asked) + Duration::from_millis(1) >= ttl - trust_margin(ttl));
}
