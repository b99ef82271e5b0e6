//! L5 Waiting is fair: first come, first served, woken by notification, bounded in time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use latchwork_lock::provider::trust_margin;
use latchwork_lock::{LockConfig, LockStrategy, Locks, Mode};

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture, eventually};

pub(super) const CASES: &[Case] = &[
    case!(l05_first_come_first_served, [Wait, Fairness, Inspect, Exclusion]),
    case!(l05_a_wait_is_bounded, [Wait, Exclusion]),
    case!(l05_a_timed_out_waiter_leaves_nothing, [Wait, Inspect, Exclusion]),
    case!(l05_a_dropped_waiter_leaves_nothing, [Wait, Inspect, Exclusion]),
    case!(l05_a_dropped_head_lets_the_next_in, [Wait, Fairness, Inspect, Exclusion]),
    case!(l05_a_release_wakes_the_next_promptly, [Wait, Notification, Inspect, Exclusion])
        .real_time(),
    case!(l05_a_dead_holders_expiry_wakes_the_next, [Wait, Inspect, Exclusion, Expiry]),
    case!(l05_an_unclaimed_hand_off_passes_on, [Wait, Fairness, Inspect, Exclusion]),
    case!(
        l05_an_unclaimed_hand_off_within_a_client_passes_on,
        [Wait, Fairness, Inspect, Exclusion]
    ),
    case!(l05_a_waiter_that_missed_its_turn_queues_again, [Wait, Fairness, Inspect, Exclusion]),
    case!(l05_a_client_hands_over_within_itself, [Wait, Fairness, Inspect, Exclusion, Renew]),
    case!(l05_a_waiter_that_slept_past_its_lease_gets_a_live_one, [Wait, Inspect, Exclusion]),
    case!(l05_a_newcomer_does_not_overtake, [Wait, Fairness, Inspect, Exclusion]),
    case!(l05_a_granted_lease_lasts_its_ttl_from_the_grant, [Wait, Inspect, Exclusion, Expiry]),
    case!(l05_a_waiter_is_given_a_lease_with_its_whole_ttl, [Wait, Inspect, Exclusion]),
    case!(l05_a_waiter_of_the_same_client_is_given_one_too, [Wait, Inspect, Exclusion]),
    case!(l05_a_wait_is_not_longer_than_asked, [Wait, Exclusion]).real_time(),
    case!(l05_a_waiter_that_sleeps_keeps_nobody_out, [Wait, Inspect, Exclusion]),
    case!(l05_a_waiter_may_move_to_another_task, [Wait, Inspect, Exclusion]),
];

const LONG: Duration = Duration::from_secs(30);

async fn l05_first_come_first_served(f: Fixture) {
    let clients = [f.open().await, f.open().await];
    let key = f.key("a");
    let guard = clients[0].lock(&key).acquire().await.expect("a free key");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..6 {
        let (locks, key, served) = (clients[i % 2].clone(), key.clone(), served.clone());
        let looker = locks.clone();
        let name = key.clone();
        tasks.push(tokio::spawn(async move {
            let guard = locks.lock(&key).wait(LONG).acquire().await.expect("its turn comes");
            served.lock().expect("no panic").push(i);
            guard.release().await.expect("held");
        }));
        f.queued(&looker, &name, i + 1).await;
    }
    guard.release().await.expect("held");
    for task in tasks {
        f.soon("everybody is served", task).await;
    }
    assert_eq!(*served.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

async fn l05_a_wait_is_bounded(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let timeout = f.ttl() * 2;
    let asked = f.now();
    let waiting = theirs.lock(&key).wait(timeout).acquire();
    let answer = f.within(timeout + SLACK, "the wait ends", waiting).await;
    assert_eq!(code(answer), "lock_taken");
    assert!(f.now().since(asked) >= timeout, "it gave up after {:?}", f.now().since(asked));
    let waiting = theirs.lock(&key).wait(timeout).try_acquire();
    let answer = f.within(timeout + SLACK, "the wait ends", waiting).await;
    assert!(answer.expect("contention is a value").is_none());
    guard.release().await.expect("the holder is not disturbed");
}

async fn l05_a_timed_out_waiter_leaves_nothing(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let waiting = theirs.lock(&key).wait(f.ttl()).acquire();
    let answer = f.within(f.ttl() + SLACK, "the wait ends", waiting).await;
    assert_eq!(code(answer), "lock_taken");
    f.queued(&ours, &key, 0).await;
    guard.release().await.expect("held");
    // Nothing was handed to the one that is gone.
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l05_a_dropped_waiter_leaves_nothing(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let waiter = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    waiter.abort();
    assert!(waiter.await.expect_err("it was aborted").is_cancelled());
    f.queued(&ours, &key, 0).await;
    guard.release().await.expect("held");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l05_a_dropped_head_lets_the_next_in(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let head = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    let second = f.enqueue(&ours, &key, Mode::Exclusive).await;
    let third = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    // At the same time as the release, so that the head may have been granted the key already.
    head.abort();
    guard.release().await.expect("held");
    let limit = f.capabilities().claim_window() + SLACK;
    let second = f.within(limit, "the second is let in", second).await.expect("no panic");
    assert!(!third.is_finished(), "two at once");
    second.release().await.expect("held");
    let third = f.within(limit, "the third is let in", third).await.expect("no panic");
    third.release().await.expect("held");
}

async fn l05_a_release_wakes_the_next_promptly(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    // A tick of this length could never pass for a notification.
    let config = LockConfig {
        strategy: LockStrategy::Wait,
        retry_interval: Duration::from_secs(5),
        ..LockConfig::default()
    };
    let mut took = Vec::new();
    for _ in 0..5 {
        let guard = ours.lock(&key).acquire().await.expect("a free key");
        let (locks, name, config) = (theirs.clone(), key.clone(), config.clone());
        let waiter = tokio::spawn(async move {
            locks.lock(&name).config(&config).acquire().await.expect("its turn comes")
        });
        f.queued(&ours, &key, 1).await;
        let released = f.now();
        guard.release().await.expect("held");
        let guard = f.soon("the waiter wakes", waiter).await;
        took.push(f.now().since(released));
        guard.release().await.expect("held");
    }
    took.sort_unstable();
    // The fallback timer is a second or two; the median forgives a machine that dawdled.
    assert!(took[2] < Duration::from_millis(500), "hand-offs took {took:?}");
}

async fn l05_a_dead_holders_expiry_wakes_the_next(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 2;
    let asked = f.now();
    let dead = ours.lock(&key).ttl(ttl).acquire().await.expect("a free key");
    let waiter = f.enqueue(&theirs, &key, Mode::Exclusive).await;
    let limit = ttl + f.capabilities().granularity() + SLACK;
    let next = f.within(limit, "the waiter is let in", waiter).await.expect("no panic");
    assert!(f.now().since(asked) >= ttl, "let in before the ttl was over");
    assert!(next.fence() > dead.fence());
    next.release().await.expect("held");
}

async fn l05_an_unclaimed_hand_off_passes_on(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    unclaimed(&f, ours, theirs).await;
}

/// Where the one who releases and the next are of one client, it need not ask itself for a claim;
/// and yet a waiter that sleeps must not hold the key.
async fn l05_an_unclaimed_hand_off_within_a_client_passes_on(f: Fixture) {
    let ours = f.open().await;
    unclaimed(&f, ours.clone(), ours).await;
}

async fn unclaimed(f: &Fixture, ours: Locks, theirs: Locks) {
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    // A task that stands in the queue and then is never polled again.
    let mut asleep = Box::pin(theirs.lock(&key).wait(LONG).acquire());
    eventually("it stands in the queue", async || {
        assert!(asleep.as_mut().now_or_never().is_none(), "the key is taken");
        ours.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    let behind = f.enqueue(&ours, &key, Mode::Exclusive).await;
    guard.release().await.expect("held");
    let limit = f.capabilities().claim_window() + f.capabilities().granularity() + SLACK;
    let next = f.within(limit, "it passes on", behind).await.expect("no panic");
    drop(asleep);
    // The one that slept gives up nothing but its own claim.
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_none());
    next.release().await.expect("held");
}

async fn l05_a_waiter_that_missed_its_turn_queues_again(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let mut asleep = Box::pin(theirs.lock(&key).wait(LONG).acquire());
    eventually("it stands in the queue", async || {
        assert!(asleep.as_mut().now_or_never().is_none(), "the key is taken");
        ours.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    let behind = f.enqueue(&ours, &key, Mode::Exclusive).await;
    guard.release().await.expect("held");
    let limit = f.capabilities().claim_window() + f.capabilities().granularity() + SLACK;
    let next = f.within(limit, "it passes on", behind).await.expect("no panic");
    let fence = next.fence();
    let again = async {
        let late = asleep.await.expect("its turn comes again");
        assert!(late.fence() > fence, "two at once");
        late.release().await.expect("it is held now");
    };
    let release = async {
        eventually("it stands in the queue again", async || {
            ours.inspect(&key).await.expect("it answers").waiters.len() == 1
        })
        .await;
        next.release().await.expect("held");
    };
    f.within(SLACK * 4, "it is let in", async { futures::join!(again, release) }).await;
}

async fn l05_a_client_hands_over_within_itself(f: Fixture) {
    let ours = f.open().await;
    let key = f.key("a");
    let ttl = f.ttl() * 4;
    let mut guard = ours.lock(&key).acquire().await.expect("a free key");
    let mut waiters = Vec::new();
    for count in 1..=4 {
        let (locks, name) = (ours.clone(), key.clone());
        waiters.push(tokio::spawn(async move {
            locks.lock(&name).ttl(ttl).wait(LONG).acquire().await.expect("its turn comes")
        }));
        f.queued(&ours, &key, count).await;
    }
    // One of them is dropped as the key comes to it.
    waiters[1].abort();
    for (at, waiter) in waiters.into_iter().enumerate() {
        let fence = guard.fence();
        if at == 1 {
            continue;
        }
        guard.release().await.expect("held");
        let limit = f.capabilities().claim_window() + SLACK;
        guard = f.within(limit, "the next is let in", waiter).await.expect("no panic");
        assert!(guard.fence() > fence && guard.waited(), "{guard:?} after {fence}");
        assert!(guard.is_held());
        guard.refresh_with(FORCE).await.expect("the backend knows it too");
    }
    guard.release().await.expect("held");
    assert!(ours.lock(&key).try_acquire().await.expect("it answers").is_some());
}

async fn l05_a_waiter_that_slept_past_its_lease_gets_a_live_one(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 4;
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let mut asleep = Box::pin(theirs.lock(&key).ttl(ttl).wait(LONG).acquire());
    eventually("it stands in the queue", async || {
        assert!(asleep.as_mut().now_or_never().is_none(), "the key is taken");
        ours.inspect(&key).await.expect("it answers").waiters.len() == 1
    })
    .await;
    guard.release().await.expect("held");
    // Nobody else wants it, so nothing takes it away, and yet its time is over.
    f.pass(f.capabilities().claim_window() + f.capabilities().granularity() + ttl).await;
    let late = f.within(SLACK * 2, "it is let in", asleep).await.expect("nobody else has it");
    assert!(late.is_held(), "a guard that was lost before it was given: {late:?}");
    late.release().await.expect("held");
}

async fn l05_a_newcomer_does_not_overtake(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    for _ in 0..5 {
        let guard = ours.lock(&key).acquire().await.expect("a free key");
        let waiter = f.enqueue(&theirs, &key, Mode::Exclusive).await;
        guard.release().await.expect("held");
        // Released, but not free: it is the waiter's, claimed or not.
        let newcomer = ours.lock(&key).try_acquire().await.expect("it answers");
        assert!(newcomer.is_none(), "a newcomer overtook the queue");
        f.soon("the waiter is let in", waiter).await.release().await.expect("held");
    }
}

async fn l05_a_granted_lease_lasts_its_ttl_from_the_grant(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let ttl = f.ttl() * 4;
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let (locks, name) = (theirs.clone(), key.clone());
    let waiter = tokio::spawn(async move {
        locks.lock(&name).ttl(ttl).wait(LONG).acquire().await.expect("its turn comes")
    });
    f.queued(&ours, &key, 1).await;
    // Longer in the queue than the lease will last.
    f.pass(ttl + ttl / 2).await;
    let released = f.now();
    guard.release().await.expect("held");
    let next = f.soon("the waiter is let in", waiter).await;
    let limit = ttl + f.capabilities().granularity() + SLACK;
    let third = async {
        loop {
            if let Some(guard) = ours.lock(&key).try_acquire().await.expect("it answers") {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let third = f.within(limit, "the lease ends", third).await;
    assert!(
        f.now().since(released) >= ttl,
        "it ended {:?} after its grant",
        f.now().since(released)
    );
    assert!(third.fence() > next.fence());
}

async fn l05_a_waiter_is_given_a_lease_with_its_whole_ttl(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    whole_ttl(&f, ours, theirs).await;
}

async fn l05_a_waiter_of_the_same_client_is_given_one_too(f: Fixture) {
    let ours = f.open().await;
    whole_ttl(&f, ours.clone(), ours).await;
}

/// What `acquire` returns is confirmed: trust counts from the hand-over, not from the request, and
/// it is not the claim window that is left of it.
async fn whole_ttl(f: &Fixture, ours: Locks, theirs: Locks) {
    // Those who have just come, and one who has waited for longer than what is tolerated below.
    for waits in [Duration::ZERO, Duration::ZERO, SLACK * 2] {
        let key = f.key("a");
        let guard = ours.lock(&key).acquire().await.expect("a free key");
        let waiters = [
            f.enqueue(&theirs, &key, Mode::Exclusive).await,
            f.enqueue(&theirs, &key, Mode::Exclusive).await,
        ];
        if !waits.is_zero() {
            f.pass(waits).await;
        }
        let mut before = guard;
        for waiter in waiters {
            let released = f.now();
            before.release().await.expect("held");
            let next = f.soon("the waiter is let in", waiter).await;
            let (remaining, took) = (next.remaining(), f.now().since(released));
            let least = next.ttl() - trust_margin(next.ttl()) - SLACK;
            assert!(
                remaining + took >= least,
                "{remaining:?} are left of {:?}, {took:?} after it was handed over",
                next.ttl()
            );
            before = next;
        }
        before.release().await.expect("held");
    }
}

/// One that dawdles for a busy machine's sake does so once in a while, and not each time.
async fn l05_a_wait_is_not_longer_than_asked(f: Fixture) {
    const LATE: Duration = Duration::from_secs(1);
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
    let mut late = Vec::new();
    for _ in 0..5 {
        let asked = f.now();
        let answer = theirs.lock(&key).wait(f.ttl()).try_acquire().await;
        assert!(answer.expect("contention is a value").is_none());
        late.push(f.now().since(asked).saturating_sub(f.ttl()));
        if late.iter().any(|late| *late < LATE) {
            break;
        }
    }
    let best = late.iter().min();
    assert!(best < Some(&LATE), "waits of {:?} ended late, each time: {late:?}", f.ttl());
    guard.release().await.expect("the holder is not disturbed");
}

/// Also where nobody promises an order: a turn that is not claimed is over after the declared window.
async fn l05_a_waiter_that_sleeps_keeps_nobody_out(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let guard = ours.lock(&key).acquire().await.expect("a free key");
    let mut asleep = Box::pin(theirs.lock(&key).wait(LONG).acquire());
    queue_up(&ours, &key, || asleep.as_mut().now_or_never().is_none()).await;
    guard.release().await.expect("held");
    let limit = f.capabilities().claim_window() + f.capabilities().granularity() + SLACK;
    let free = async {
        loop {
            if let Some(guard) = ours.lock(&key).try_acquire().await.expect("it answers") {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let next = f.within(limit, "somebody else is let in", free).await;
    next.release().await.expect("held");
}

/// A future may be polled by one task and then by another, which is the one to wake from then on.
async fn l05_a_waiter_may_move_to_another_task(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    for _ in 0..2 {
        let guard = ours.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let (name, locks) = (key.clone(), theirs.clone());
        let mut waits = Box::pin(async move { locks.lock(&name).wait(LONG).acquire().await });
        queue_up(&ours, &key, || waits.as_mut().now_or_never().is_none()).await;
        let (polled, is_polled) = tokio::sync::oneshot::channel();
        let mut polled = Some(polled);
        let elsewhere = tokio::spawn(std::future::poll_fn(move |cx| {
            let answer = waits.as_mut().poll(cx);
            if let Some(polled) = polled.take() {
                let _ = polled.send(());
            }
            answer
        }));
        is_polled.await.expect("it runs");
        guard.release().await.expect("held");
        let next = f.soon("it is woken where it is now", elsewhere).await;
        next.expect("its turn comes").release().await.expect("held");
    }
}

/// Polls a request, which must not be granted, until it stands in the queue.
async fn queue_up(looker: &Locks, key: &str, mut poll: impl FnMut() -> bool) {
    eventually("it stands in the queue", async || {
        assert!(poll(), "the key is taken");
        looker.inspect(key).await.expect("it answers").waiters.len() == 1
    })
    .await;
}
