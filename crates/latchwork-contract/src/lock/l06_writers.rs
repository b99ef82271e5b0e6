//! L6 Writers do not starve: a waiting exclusive request holds back later shared ones.

use latchwork_lock::Mode;

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(
        l06_a_waiting_writer_holds_back_later_readers,
        [Shared, Wait, Fairness, Inspect, Exclusion]
    ),
    case!(l06_a_cancelled_writer_lets_readers_in, [Shared, Wait, Fairness, Inspect, Exclusion]),
    case!(l06_a_timed_out_writer_lets_readers_in, [Shared, Wait, Fairness, Inspect, Exclusion]),
    case!(l06_readers_in_a_row_enter_together, [Shared, Wait, Fairness, Inspect, Exclusion]),
    case!(l06_readers_behind_a_writer_wait_for_it, [Shared, Wait, Fairness, Inspect, Exclusion]),
];

async fn l06_a_waiting_writer_holds_back_later_readers(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let reader = ours.lock(&key).shared().acquire().await.expect("a free key");
    let writer = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    for locks in [&ours, &theirs] {
        let late = locks.lock(&key).shared().try_acquire().await.expect("it answers");
        assert!(late.is_none(), "a reader overtook a waiting writer");
    }
    reader.release().await.expect("held");
    f.soon("the writer is let in", writer).await.release().await.expect("held");
    assert!(ours.lock(&key).shared().try_acquire().await.expect("it answers").is_some());
}

async fn l06_a_cancelled_writer_lets_readers_in(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let reader = ours.lock(&key).shared().acquire().await.expect("a free key");
    let writer = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    let behind = f.enqueue(&ours, &key, Mode::Shared).await;
    writer.abort();
    let limit = f.capabilities().claim_window() + SLACK;
    let second = f.within(limit, "the reader is let in", behind).await.expect("no panic");
    assert!(reader.is_held() && second.is_held(), "both are in together");
    reader.release().await.expect("held");
    second.release().await.expect("held");
}

async fn l06_a_timed_out_writer_lets_readers_in(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let reader = ours.lock(&key).shared().acquire().await.expect("a free key");
    let (locks, name, timeout) = (theirs.clone(), key.clone(), f.ttl() * 2);
    let writer = tokio::spawn(async move { code(locks.lock(&name).wait(timeout).acquire().await) });
    f.queued(&ours, &key, 1).await;
    let behind = f.enqueue(&ours, &key, Mode::Shared).await;
    let limit = timeout + f.capabilities().claim_window() + SLACK;
    let second = f.within(limit, "the reader is let in", behind).await.expect("no panic");
    let told = f.within(SLACK, "the writer is told", writer).await.expect("no panic");
    assert_eq!(told, "lock_taken");
    reader.release().await.expect("held");
    second.release().await.expect("held");
}

async fn l06_readers_in_a_row_enter_together(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let writer = ours.lock(&key).acquire().await.expect("a free key");
    let first = f.enqueue(&theirs, &key, Mode::Shared).await;
    let second = f.enqueue(&ours, &key, Mode::Shared).await;
    let third = f.enqueue(&theirs, &key, Mode::Shared).await;
    writer.release().await.expect("held");
    // None of them is released before all are in.
    let mut guards = Vec::new();
    for reader in [first, second, third] {
        guards.push(f.soon("the reader is let in", reader).await);
    }
    assert_eq!(ours.inspect(&key).await.expect("it answers").holders.len(), 3);
    for guard in guards {
        guard.release().await.expect("held");
    }
}

async fn l06_readers_behind_a_writer_wait_for_it(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let holder = ours.lock(&key).acquire().await.expect("a free key");
    let before = f.enqueue(&theirs, &key, Mode::Shared).await;
    let writer = f.enqueue(&ours, &key, Mode::Exclusive).await;
    let behind = f.enqueue(&theirs, &key, Mode::Shared).await;
    holder.release().await.expect("held");
    let before = f.soon("the first reader is let in", before).await;
    assert!(!writer.is_finished() && !behind.is_finished(), "only the first reader is in");
    before.release().await.expect("held");
    let writer = f.soon("then the writer", writer).await;
    assert!(!behind.is_finished(), "a reader came in beside a writer");
    writer.release().await.expect("held");
    f.soon("then the last reader", behind).await.release().await.expect("held");
}
