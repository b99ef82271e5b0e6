//! L22 A deadlock within a process is told where it is certain, and only there.

#![expect(
    clippy::async_yields_async,
    reason = "the closure gives its tasks out, so that they are awaited when the lock is free"
)]

use std::time::Duration;

use futures::future::join;
use latchwork_lock::provider::process_label;
use latchwork_lock::{Attempt, ErrorKind, Held, LockStrategy, Locks, OnLoss};
use tokio::sync::oneshot;

use super::case::case;
use super::fixture::{SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l22_what_the_work_itself_holds_is_not_waited_for, [Wait, Exclusion, Inspect]),
    case!(l22_modes_that_exclude_each_other_count, [Wait, Exclusion, Shared]),
    case!(l22_threads_are_told_too, [Wait, Exclusion]),
    case!(l22_who_closes_a_circle_is_told, [Wait, Exclusion, Inspect]),
    case!(l22_a_circle_may_be_longer, [Wait, Exclusion, Inspect]),
    case!(l22_what_lock_all_has_so_far_counts, [Wait, Exclusion, Inspect]),
    case!(l22_a_guard_given_to_another_task_is_waited_for, [Wait, Exclusion, Inspect]),
    case!(l22_a_task_of_its_own_is_not_in_the_work, [Wait, Exclusion]),
    case!(l22_requests_that_do_not_wait_are_answered, [Wait, Exclusion]),
    case!(l22_the_holders_owner_takes_over, [Wait, Exclusion, TakeOver]),
    case!(l22_shared_inside_shared_is_granted, [Wait, Exclusion, Shared, Inspect]),
    case!(l22_another_prefix_is_another_key, [Wait, Exclusion, Inspect]),
    case!(l22_another_provider_is_another_key, [Wait, Exclusion]),
    case!(l22_who_finishes_after_a_loss_may_wait_for_it, [Wait, Exclusion, Expiry]),
    case!(l22_another_wait_that_ends_sooner_is_waited_for, [Wait, Exclusion, Inspect]),
    case!(l22_a_bare_guard_is_waited_for_and_shown, [Wait, Exclusion, Inspect]),
];

const LONG: Duration = Duration::from_secs(60);

/// The keys of a deadlock.
#[track_caller]
fn keys_of<T>(answer: latchwork_lock::Result<T>) -> Vec<String> {
    let error = match answer {
        Ok(_) => panic!("a deadlock was not told"),
        Err(error) => error,
    };
    assert_eq!(error.code(), "lock_deadlock", "{error}");
    assert!(!error.is_temporary());
    let ErrorKind::LockDeadlock { keys, .. } = error.kind() else { panic!("{error:?}") };
    for key in keys {
        assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    keys.clone()
}

async fn l22_what_the_work_itself_holds_is_not_waited_for(f: Fixture) {
    let locks = f.open().await;
    let (key, inner) = (f.key("a"), f.key("b"));
    let work = locks.lock(&key).ttl(LONG).run(|_| async {
        let same = std::slice::from_ref(&key);
        assert_eq!(keys_of(locks.lock(&key).wait_forever().acquire().await), same);
        assert_eq!(keys_of(locks.lock(&key).wait(LONG).acquire().await), same);
        assert_eq!(keys_of(locks.lock(&key).wait(LONG).run(|_| async {}).await), same);
        let all = locks.lock_all([&key, &inner]).wait(LONG);
        assert_eq!(keys_of(all.acquire().await), same);
        let nested = locks.lock(&inner).wait(LONG).run(|_| async {
            assert_eq!(keys_of(locks.clone().lock(&key).wait(LONG).acquire().await), same);
        });
        nested.await.expect("another key is free");
        locks.close().await;
        let seen = locks.inspect(&key).await.expect("it answers");
        assert!(seen.is_held() && seen.waiters.is_empty(), "{seen:?}");
    });
    f.within(LONG / 2, "it is told at once", work).await.expect("the work goes on");
    let guard = locks.lock(&key).wait(LONG).acquire().await.expect("it was released");
    guard.release().await.expect("held");
}

async fn l22_modes_that_exclude_each_other_count(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let reads = locks.lock(&key).shared().ttl(LONG).run(|_| async {
        keys_of(locks.lock(&key).wait(LONG).acquire().await);
    });
    f.within(LONG / 2, "it is told at once", reads).await.expect("the work goes on");
    let writes = locks.lock(&key).wait(LONG).ttl(LONG).run(|_| async {
        keys_of(locks.lock(&key).shared().wait(LONG).acquire().await);
    });
    f.within(LONG / 2, "it is told at once", writes).await.expect("the work goes on");
}

async fn l22_threads_are_told_too(f: Fixture) {
    let locks = latchwork_lock::blocking::Locks::from(f.open().await);
    let (key, other) = (f.key("a"), f.key("b"));
    let thread = tokio::task::spawn_blocking(move || {
        let told = |_: &Held| {
            assert_eq!(keys_of(locks.scoped(&key, |_| ())), std::slice::from_ref(&key));
            keys_of(locks.lock(&key).wait(LONG).acquire());
            keys_of(locks.lock_all([&other, &key]).wait(LONG).acquire());
            locks.scoped(&other, |_| keys_of(locks.scoped(&key, |_| ()))).expect("another key")
        };
        locks.scoped(&key, told).expect("the work goes on");
        locks.scoped(&key, |_| ()).expect("it was released");
    });
    f.soon("it is told at once", thread).await;
}

/// Holds `first` and then waits for `next`, without limit, in a task.
async fn holds_and_waits(
    f: &Fixture,
    locks: &Locks,
    first: &str,
    next: &str,
) -> tokio::task::JoinHandle<latchwork_lock::Result<()>> {
    let (own, first, wanted) = (locks.clone(), first.to_owned(), next.to_owned());
    let task = tokio::spawn(async move {
        let work = |_| async { own.lock(&wanted).ttl(LONG).wait_forever().acquire().await };
        let guard = own.lock(&first).ttl(LONG).run(work).await.expect("it is free")?;
        guard.release().await
    });
    f.queued(locks, next, 1).await;
    task
}

async fn l22_who_closes_a_circle_is_told(f: Fixture) {
    let locks = f.open().await;
    let (a, b) = (f.key("a"), f.key("b"));
    let work = locks.lock(&b).ttl(LONG).run(|_| async {
        let other = holds_and_waits(&f, &locks, &a, &b).await;
        let told = keys_of(locks.lock(&a).wait(LONG).acquire().await);
        assert_eq!(told, [a.clone(), b.clone()]);
        other
    });
    let other = work.await.expect("the work goes on");
    f.soon("the other one goes on", other).await.expect("its turn has come");
}

async fn l22_a_circle_may_be_longer(f: Fixture) {
    let locks = f.open().await;
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| f.key(name));
    let work = locks.lock(&c).ttl(LONG).run(|_| async {
        let second = holds_and_waits(&f, &locks, &b, &c).await;
        let first = holds_and_waits(&f, &locks, &a, &b).await;
        // In a scope of its own inside: what is further out is held all the same.
        let inside = locks
            .lock(&d)
            .ttl(LONG)
            .run(|_| async { keys_of(locks.lock(&a).wait(LONG).acquire().await) });
        assert_eq!(inside.await.expect("it is free"), [a.clone(), b.clone(), c.clone()]);
        [first, second]
    });
    for other in work.await.expect("the work goes on") {
        f.soon("the others go on", other).await.expect("its turn has come");
    }
}

async fn l22_what_lock_all_has_so_far_counts(f: Fixture) {
    let locks = f.open().await;
    let [a, b, c] = ["a", "b", "c"].map(|name| f.key(name));
    let work = locks.lock(&b).ttl(LONG).run(|_| async {
        let (own, names) = (locks.clone(), [a.clone(), b.clone(), c.clone()]);
        let other = tokio::spawn(async move {
            let [a, b, c] = &names;
            let all = |_| async { own.lock_all([a, b]).ttl(LONG).wait_forever().acquire().await };
            let set = own.lock(c).ttl(LONG).run(all).await.expect("it is free")?;
            set.release().await
        });
        f.queued(&locks, &b, 1).await;
        let told = keys_of(locks.lock(&a).wait(LONG).acquire().await);
        assert_eq!(told, [a.clone(), b.clone()]);
        other
    });
    let other = work.await.expect("the work goes on");
    f.soon("the other one goes on", other).await.expect("its turn has come");
}

async fn l22_a_guard_given_to_another_task_is_waited_for(f: Fixture) {
    let locks = f.open().await;
    let (outer, key) = (f.key("a"), f.key("b"));
    let work = locks.lock(&outer).ttl(LONG).run(|_| async {
        let guard = locks.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let (waits, is_waited_for) = oneshot::channel();
        let other = tokio::spawn(async move {
            is_waited_for.await.expect("the work goes on");
            guard.release().await.expect("held");
        });
        let looks = async {
            f.queued(&locks, &key, 1).await;
            let _ = waits.send(());
        };
        let (next, ()) = join(locks.lock(&key).wait(LONG).acquire(), looks).await;
        next.expect("it was released").release().await.expect("held");
        other
    });
    f.soon("the other task ends", work.await.expect("the work ends")).await;
}

async fn l22_a_task_of_its_own_is_not_in_the_work(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let own = locks.clone();
    let work = locks.lock(&key).ttl(LONG).run(|_| async {
        let name = key.clone();
        let (began, begins) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut asking = std::pin::pin!(own.lock(&name).wait(LONG).acquire());
            let first = futures::poll!(asking.as_mut());
            assert!(first.is_pending(), "{first:?}");
            let _ = began.send(());
            asking.await
        });
        begins.await.expect("it waits");
        task
    });
    let waiting = work.await.expect("the work ends");
    let guard = f.soon("its turn comes", waiting).await.expect("no deadlock");
    guard.release().await.expect("held");
}

async fn l22_requests_that_do_not_wait_are_answered(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let work = locks.lock(&key).ttl(LONG).run(|_| async {
        assert!(locks.lock(&key).try_acquire().await.expect("an answer").is_none());
        assert_eq!(code(locks.lock(&key).acquire().await), "lock_taken");
        assert_eq!(code(locks.lock(&key).wait(Duration::ZERO).acquire().await), "lock_taken");
        let strategy = |strategy| locks.lock(&key).strategy(strategy).attempt();
        assert_eq!(code(strategy(LockStrategy::FailFast).await), "lock_taken");
        assert!(matches!(strategy(LockStrategy::Skip).await, Ok(Attempt::Skipped)));
        assert!(matches!(strategy(LockStrategy::None).await, Ok(Attempt::Unlocked)));
        // It waits, and its answer is a value all the same.
        let short = locks.lock(&key).wait(f.ttl()).try_acquire();
        let short = f.within(f.ttl() + SLACK * 5, "the wait ends", short).await;
        assert!(short.expect("an answer").is_none());
    });
    work.await.expect("held to the end");
}

async fn l22_the_holders_owner_takes_over(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let ask = || locks.lock(&key).owner("me").ttl(LONG);
    let work = ask().run(|held| async move {
        let guard = ask().wait_forever().acquire().await.expect("it takes over");
        assert!(guard.fence() > held.fence());
        guard
    });
    // Whether the outer one has noticed yet is not what this is about.
    if let Ok(guard) = work.await {
        guard.release().await.expect("held");
    }
}

async fn l22_shared_inside_shared_is_granted(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let work = locks.lock(&key).shared().ttl(LONG).run(|_| async {
        let guard = locks.lock(&key).shared().wait_forever().acquire().await.expect("room");
        guard.release().await.expect("held");
        // Behind a writer that gives up, it waits; but not for the lease of its own work.
        let (own, name, wait) = (locks.clone(), key.clone(), f.ttl());
        let writer = tokio::spawn(async move { own.lock(&name).wait(wait).acquire().await });
        f.queued(&locks, &key, 1).await;
        let guard = locks.lock(&key).shared().wait(LONG).acquire().await.expect("room");
        guard.release().await.expect("held");
        assert_eq!(code(f.soon("the writer gives up", writer).await), "lock_taken");
    });
    f.within(LONG / 2, "its turn comes", work).await.expect("held to the end");
}

async fn l22_another_prefix_is_another_key(f: Fixture) {
    let locks = f.open().await;
    let other = locks.with_prefix("other/").expect("a legal prefix");
    let key = f.key("a");
    let work = locks.lock(&key).ttl(LONG).run(|_| async {
        let theirs = other.lock(&key).ttl(LONG).acquire().await.expect("another key");
        let released = async {
            f.queued(&other, &key, 1).await;
            theirs.release().await.expect("held");
        };
        let (ours, ()) = join(other.lock(&key).wait(LONG).acquire(), released).await;
        ours.expect("it was released").release().await.expect("held");
    });
    f.within(LONG / 2, "its turn comes", work).await.expect("held to the end");
}

async fn l22_another_provider_is_another_key(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let work = ours.lock(&key).ttl(LONG).run(|_| async {
        // Here it happens to be the same backend, which nobody else can know.
        let asked = theirs.lock(&key).wait(f.ttl()).acquire();
        let answer = f.within(f.ttl() + SLACK * 5, "the wait ends", asked).await;
        assert_eq!(code(answer), "lock_taken");
    });
    work.await.expect("held to the end");
}

async fn l22_who_finishes_after_a_loss_may_wait_for_it(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let request = locks.lock(&key).ttl(f.ttl()).on_loss(OnLoss::Finish);
    let work = request.run(|_| async {
        let guard = locks.lock(&key).wait_forever().acquire().await.expect("the lease has ended");
        guard.release().await.expect("held");
    });
    let limit = f.ttl() + f.capabilities().granularity() + SLACK * 5;
    f.within(limit, "the outer lease ends", work).await.expect("it may finish");
}

async fn l22_another_wait_that_ends_sooner_is_waited_for(f: Fixture) {
    let locks = f.open().await;
    let (a, b) = (f.key("a"), f.key("b"));
    let (has_b, b_is_held) = oneshot::channel();
    let one = locks.lock(&a).ttl(LONG).run(|_| async {
        b_is_held.await.expect("the other one runs");
        code(locks.lock(&b).wait(f.ttl() * 2).acquire().await)
    });
    let two = locks.lock(&b).ttl(LONG).run(|_| async {
        let _ = has_b.send(());
        f.queued(&locks, &b, 1).await;
        let guard = locks.lock(&a).wait(LONG).acquire().await.expect("the other one gave up");
        guard.release().await.expect("held");
    });
    let (one, two) = f.within(LONG / 2, "both end", join(one, two)).await;
    assert_eq!(one.expect("held to the end"), "lock_taken");
    two.expect("held to the end");
}

async fn l22_a_bare_guard_is_waited_for_and_shown(f: Fixture) {
    let locks = f.open().await;
    let (outer, key) = (f.key("a"), f.key("b"));
    let work = locks.lock(&outer).ttl(LONG).run(|_| async {
        let guard = locks.lock(&key).ttl(LONG).acquire().await.expect("a free key");
        let waits = locks.lock(&key).wait(f.ttl()).acquire();
        let looks = async {
            f.queued(&locks, &key, 1).await;
            locks.inspect(&key).await.expect("it answers")
        };
        let both = join(waits, looks);
        let (waited, seen) = f.within(f.ttl() + SLACK * 5, "the wait ends", both).await;
        assert_eq!(code(waited), "lock_taken");
        assert_eq!(seen.held_and_waited_for_by(), [process_label()]);
        guard.release().await.expect("held");
    });
    work.await.expect("held to the end");
}
