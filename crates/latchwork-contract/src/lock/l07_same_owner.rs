//! L7 Same owner: a request that names the owner who holds the key takes the lease over.

use std::time::Duration;

use latchwork_lock::Mode;

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l07_the_same_owner_takes_over, [TakeOver, Renew, Exclusion]),
    case!(l07_another_owner_does_not, [TakeOver, Exclusion]),
    case!(l07_an_unnamed_request_never_does, [Exclusion]),
    case!(l07_an_unnamed_request_does_not_take_over_a_named_one, [TakeOver, Exclusion]),
    case!(l07_a_default_owner_counts, [TakeOver, Exclusion]),
    case!(l07_a_downgrade_lets_readers_in, [TakeOver, Shared, Exclusion]),
    case!(l07_a_downgrade_lets_waiting_readers_in, [TakeOver, Shared, Wait, Inspect, Exclusion]),
    case!(l07_an_upgrade_alone_succeeds, [TakeOver, Shared, Exclusion]),
    case!(
        l07_an_upgrade_among_others_is_refused_at_once,
        [TakeOver, Shared, Wait, Renew, Exclusion]
    ),
    case!(l07_a_take_over_does_not_queue, [TakeOver, Wait, Inspect, Exclusion]),
];

async fn l07_the_same_owner_takes_over(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let old = ours.lock(&key).owner("me").acquire().await.expect("a free key");
    let new = theirs.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert!(new.fence() > old.fence());
    assert_eq!(code(old.refresh_with(FORCE).await), "lock_lost");
    assert!(!old.is_held(), "the old guard knows");
    assert_eq!(code(old.release().await), "lock_lost");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    new.release().await.expect("held");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l07_another_owner_does_not(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    assert!(locks.lock(&key).owner("you").try_acquire().await.expect("it answers").is_none());
    // Names are compared as they are.
    assert!(locks.lock(&key).owner("Me").try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
}

async fn l07_an_unnamed_request_never_does(f: Fixture) {
    // By default every request is its own owner: two tasks of one process exclude each other.
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    guard.release().await.expect("held");
}

async fn l07_an_unnamed_request_does_not_take_over_a_named_one(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let named = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    named.release().await.expect("held");
    let unnamed = locks.lock(&key).acquire().await.expect("free");
    assert!(locks.lock(&key).owner("me").try_acquire().await.expect("it answers").is_none());
    unnamed.release().await.expect("held");
}

async fn l07_a_default_owner_counts(f: Fixture) {
    let mine = f.open().await.with_owner("me").expect("a legal name");
    let yours = f.open().await.with_owner("you").expect("a legal name");
    let key = f.key("a");
    let old = mine.lock(&key).acquire().await.expect("a free key");
    assert!(yours.lock(&key).try_acquire().await.expect("it answers").is_none());
    assert!(mine.lock(&key).owner("you").try_acquire().await.expect("it answers").is_none());
    let new = mine.lock(&key).acquire().await.expect("the same owner");
    assert!(new.fence() > old.fence());
    let named = yours.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert!(named.fence() > new.fence());
}

async fn l07_a_downgrade_lets_readers_in(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _writer = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    assert!(locks.lock(&key).shared().try_acquire().await.expect("it answers").is_none());
    let me = locks.lock(&key).owner("me").shared().acquire().await.expect("a downgrade");
    assert_eq!(me.mode(), Mode::Shared);
    let reader = locks.lock(&key).shared().acquire().await.expect("beside a reader");
    assert!(locks.lock(&key).try_acquire().await.expect("it answers").is_none());
    reader.release().await.expect("held");
    me.release().await.expect("held");
}

async fn l07_a_downgrade_lets_waiting_readers_in(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _writer = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    let waiting = f.enqueue(&f.open().await, &key, Mode::Shared).await;
    let me = locks.lock(&key).owner("me").shared().acquire().await.expect("a downgrade");
    let reader = f.soon("the waiting reader is let in", waiting).await;
    reader.release().await.expect("held");
    me.release().await.expect("held");
}

async fn l07_an_upgrade_alone_succeeds(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _reader = locks.lock(&key).owner("me").shared().acquire().await.expect("a free key");
    let writer = locks.lock(&key).owner("me").acquire().await.expect("an upgrade, alone");
    assert_eq!(writer.mode(), Mode::Exclusive);
    // The trap: a stored shared lease that stays shared although the answer said exclusive.
    assert!(locks.lock(&key).shared().try_acquire().await.expect("it answers").is_none());
    writer.release().await.expect("held");
}

async fn l07_an_upgrade_among_others_is_refused_at_once(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let me = ours.lock(&key).owner("me").shared().acquire().await.expect("a free key");
    let other = theirs.lock(&key).shared().acquire().await.expect("beside a reader");
    // Two that upgrade would wait for each other for ever, so neither waits.
    let asked = f.now();
    let upgrade = ours.lock(&key).owner("me").wait(Duration::from_secs(30)).acquire();
    assert_eq!(code(f.within(SLACK, "it is refused at once", upgrade).await), "lock_taken");
    assert!(f.now().since(asked) < SLACK * f.slowness());
    me.refresh_with(FORCE).await.expect("the shared lease goes on");
    other.release().await.expect("held");
    me.release().await.expect("held");
}

async fn l07_a_take_over_does_not_queue(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let _old = locks.lock(&key).owner("me").acquire().await.expect("a free key");
    let waiting = f.enqueue(&f.open().await, &key, Mode::Exclusive).await;
    let new = locks.lock(&key).owner("me").acquire().await.expect("the same owner");
    assert!(!waiting.is_finished(), "two at once");
    let fence = new.fence();
    new.release().await.expect("held");
    let next = f.soon("the waiter is next", waiting).await;
    assert!(next.fence() > fence);
}
