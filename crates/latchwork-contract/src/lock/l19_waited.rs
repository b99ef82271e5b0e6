//! L19 Did I wait? A guard says whether it had to wait and what the previous fence was.

use latchwork_lock::Mode;

use super::case::case;
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l19_who_did_not_wait_is_told_so, []),
    case!(l19_who_waited_is_told_so, [Wait, Inspect, Exclusion]),
    case!(l19_the_fence_before_is_told_on_a_hand_off, [Wait, Inspect, Exclusion]),
    case!(l19_the_fence_before_is_told_on_a_take_over, [TakeOver]),
    case!(l19_the_fence_before_is_never_wrong, [Exclusion]),
];

async fn l19_who_did_not_wait_is_told_so(f: Fixture) {
    let locks = f.open().await;
    for _ in 0..2 {
        let guard = locks.lock(f.key("a")).acquire().await.expect("a free key");
        assert!(!guard.waited());
        guard.release().await.expect("held");
    }
}

async fn l19_who_waited_is_told_so(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&f.open().await, &key, Mode::Exclusive).await;
    guard.release().await.expect("held");
    assert!(f.soon("the waiter is let in", waiter).await.waited());
}

async fn l19_the_fence_before_is_told_on_a_hand_off(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&f.open().await, &key, Mode::Exclusive).await;
    let fence = guard.fence();
    guard.release().await.expect("held");
    let next = f.soon("the waiter is let in", waiter).await;
    assert_eq!(next.previous_fence(), Some(fence));
}

async fn l19_the_fence_before_is_told_on_a_take_over(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let old = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    let new = locks.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert_eq!(new.previous_fence(), Some(old.fence()));
}

async fn l19_the_fence_before_is_never_wrong(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let mut before = None;
    for locks in [&ours, &ours, &theirs, &ours, &theirs, &theirs] {
        let guard = locks.lock(&key).acquire().await.expect("a free key");
        // The backend may have forgotten. If it tells, it tells of the last, so that a caller that
        // finds its own fence there knows that nobody was in between.
        if guard.previous_fence().is_some() {
            assert_eq!(guard.previous_fence(), before);
        }
        before = Some(guard.fence());
        guard.release().await.expect("held");
    }
}
