//! L20 Enforced fencing: a write with an older fence than one already seen is refused.
//!
//! In memory here; the gates of the databases have their own tests beside them. For exclusive
//! leases only: fences of concurrent shared leases say nothing about each other.

use latchwork_lock::{FenceGate, StaleFence};

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l20_a_late_write_is_refused, [Exclusion, Expiry]),
    case!(l20_advance_makes_the_refusal_certain, [Exclusion, Expiry]),
    case!(l20_the_holder_may_write_again_and_again, []),
];

/// A holder that was stopped past its end, and the one that came after it.
async fn stopped_and_next(
    f: &Fixture,
    key: &str,
) -> (latchwork_lock::Guard, latchwork_lock::Guard) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let stopped = ours.lock(key).ttl(f.ttl()).acquire().await.expect("a free key");
    f.pass(f.ttl() + f.capabilities().granularity()).await;
    (stopped, f.free(&theirs, key).await)
}

async fn l20_a_late_write_is_refused(f: Fixture) {
    let key = f.key("a");
    let gate = FenceGate::new();
    let (stopped, next) = stopped_and_next(&f, &key).await;
    let mut value = 0;
    gate.write(&key, next.fence(), || value = 2).expect("the holder may write");
    let late = gate.write(&key, stopped.fence(), || value = 1).expect_err("too late");
    assert_eq!((late.fence, late.newest), (stopped.fence(), next.fence()));
    assert_eq!(StaleFence::CODE, "stale_fence");
    assert_eq!(value, 2, "a refused write does not happen");
    gate.check(&key, next.fence()).expect("the holder is not disturbed");
}

async fn l20_advance_makes_the_refusal_certain(f: Fixture) {
    let key = f.key("a");
    let gate = FenceGate::new();
    let (stopped, next) = stopped_and_next(&f, &key).await;
    // Before the new holder has written anything.
    gate.advance(&key, next.fence()).expect("the newest");
    assert!(gate.check(&key, stopped.fence()).is_err());
    assert!(gate.advance(&key, stopped.fence()).is_err());
    gate.check(&f.key("another"), stopped.fence()).expect("another key is another matter");
}

async fn l20_the_holder_may_write_again_and_again(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let gate = FenceGate::new();
    for _ in 0..3 {
        let guard = locks.lock(&key).acquire().await.expect("a free key");
        gate.advance(&key, guard.fence()).expect("the newest");
        for _ in 0..3 {
            gate.check(&key, guard.fence()).expect("the holder may write");
        }
        guard.release().await.expect("held");
    }
}
