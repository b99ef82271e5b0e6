//! The same promises for threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use latchwork_lock::blocking::Locks;

use super::case::case;
use super::fixture::{FORCE, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l01_threads_exclude_each_other, [Exclusion, Wait]),
    case!(l05_threads_wait_without_limit_by_default, [Exclusion, Wait, Inspect]),
    case!(l05_threads_can_bound_their_wait, [Exclusion, Wait]).real_time(),
    case!(l10_a_scoped_section_outlives_its_ttl, [Exclusion, Wait, Renew]).real_time(),
    case!(l14_threads_release_on_panic, [Exclusion, Wait]),
    case!(l14_threads_run_under_several_keys, [Exclusion, Wait]).real_time(),
    case!(l14_threads_are_told_of_a_loss, [Exclusion, Wait, Break, Renew]),
];

/// On a thread that may block, as a caller's would.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

async fn l01_threads_exclude_each_other(f: Fixture) {
    let key = f.key("counter");
    let counter = Arc::new(AtomicU64::new(0));
    let rounds = f.rounds(25);
    let mut threads = Vec::new();
    for _ in 0..4 {
        let (locks, key, counter) = (Locks::from(f.open().await), key.clone(), counter.clone());
        threads.push(tokio::task::spawn_blocking(move || {
            for _ in 0..rounds {
                let work = |_: &latchwork_lock::Held| {
                    let read = counter.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(read + 1, Ordering::Relaxed);
                };
                locks.scoped(&key, work).expect("its turn comes");
            }
        }));
    }
    for thread in threads {
        f.soon("the threads end", thread).await;
    }
    assert_eq!(counter.load(Ordering::Relaxed), 4 * rounds as u64);
}

async fn l05_threads_wait_without_limit_by_default(f: Fixture) {
    let holder = f.open().await;
    let key = f.key("a");
    let guard = holder.lock(&key).ttl(Duration::from_secs(300)).acquire().await.expect("free");
    // Where another default is set, the scoped form waits without limit all the same.
    let defaults = latchwork_lock::LockConfig {
        wait_timeout: Some(Duration::from_millis(20)),
        ..latchwork_lock::LockConfig::default()
    };
    let (locks, name) = (Locks::from(f.open().await.with_defaults(defaults)), key.clone());
    let waiting = tokio::task::spawn_blocking(move || locks.scoped(&name, |held| held.waited()));
    f.queued(&holder, &key, 1).await;
    f.pass(f.ttl()).await;
    assert!(!waiting.is_finished(), "it gave up");
    guard.release().await.expect("held");
    let waited = f.soon("the thread is let in", waiting).await.expect("its turn comes");
    assert!(waited);
}

async fn l05_threads_can_bound_their_wait(f: Fixture) {
    let holder = f.open().await;
    let key = f.key("a");
    let guard = holder.lock(&key).acquire().await.expect("a free key");
    let (locks, name, wait) = (Locks::from(f.open().await), key.clone(), f.ttl());
    let asked = f.now();
    let answers = on_a_thread(move || {
        let bounded = code(locks.lock(&name).wait(wait).run(|_| ()));
        let at_once = locks.lock(&name).try_acquire().expect("it answers").is_none();
        (bounded, at_once)
    })
    .await;
    assert_eq!(answers, ("lock_taken", true));
    assert!(f.now().since(asked) >= wait);
    guard.release().await.expect("held");
}

async fn l10_a_scoped_section_outlives_its_ttl(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let (key, ttl) = (f.key("a"), f.patient_ttl());
    let defaults = latchwork_lock::LockConfig { ttl, ..latchwork_lock::LockConfig::default() };
    let locks = Locks::from(ours.with_defaults(defaults));
    let name = key.clone();
    let (entered, is_in) = tokio::sync::oneshot::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let section = tokio::task::spawn_blocking(move || {
        locks.scoped(&name, |held| {
            let _ = entered.send(());
            std::thread::sleep(ttl * 3 / 2);
            // Before the release: a grant to another that is seen without this was one too many.
            over.store(true, Ordering::SeqCst);
            held.is_held()
        })
    });
    is_in.await.expect("it runs");
    while !section.is_finished() {
        let other = theirs.lock(&key).try_acquire().await.expect("it answers");
        assert!(other.is_none() || is_over.load(Ordering::SeqCst), "two at once");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(section.await.expect("no panic").expect("held to the end"));
    // And it ends there: nobody renews it any more.
    f.free(&theirs, &key).await.release().await.expect("held");
}

async fn l14_threads_run_under_several_keys(f: Fixture) {
    let (locks, theirs) = (Locks::from(f.open().await), f.open().await);
    let keys = ["b", "a"].map(|name| f.key(name));
    let names = keys.clone();
    on_a_thread(move || {
        let fences = locks.lock_all(&names).run(|set| {
            assert!(set.is_held() && set.len() == 2);
            for key in &names {
                let other = Locks::from(theirs.clone()).lock(key).try_acquire();
                assert!(other.expect("it answers").is_none(), "{key} is not locked inside");
                let nested = locks.lock(key).wait(Duration::from_secs(60)).acquire();
                assert_eq!(code(nested), "lock_deadlock");
            }
            set.iter().map(|held| held.fence()).collect::<Vec<_>>()
        });
        assert_eq!(fences.expect("its turn comes").len(), 2);
        for key in &names {
            locks.lock(key).acquire().expect("released").release().expect("held");
        }
        let taken = locks.lock(&names[0]).acquire().expect("free");
        let bounded = locks.lock_all(&names).wait(Duration::from_millis(50)).run(|_| ());
        assert_eq!(code(bounded), "lock_taken");
        taken.release().expect("held");
    })
    .await;
}

async fn l14_threads_release_on_panic(f: Fixture) {
    let locks = Locks::from(f.open().await);
    let key = f.key("a");
    let (own, name) = (locks.clone(), key.clone());
    let panicked = tokio::task::spawn_blocking(move || {
        own.scoped(&name, |_| -> () { panic!("simulated failure") })
    });
    assert!(panicked.await.expect_err("it panicked").is_panic());
    on_a_thread(move || {
        locks.close();
        let guard = locks.lock(&key).try_acquire().expect("it answers").expect("released");
        guard.release().expect("held");
    })
    .await;
}

async fn l14_threads_are_told_of_a_loss(f: Fixture) {
    let locks = Locks::from(f.open().await);
    let key = f.key("a");
    on_a_thread(move || {
        let finished = AtomicBool::new(false);
        let answer = locks.scoped(&key, |held| {
            assert!(held.is_held());
            assert_eq!(locks.break_lock(&key).expect("it answers").len(), 1);
            finished.store(true, Ordering::SeqCst);
        });
        assert_eq!(code(answer), "lock_lost");
        assert!(finished.load(Ordering::SeqCst), "a thread cannot be stopped from outside");
        let guard = locks.lock(&key).acquire().expect("free");
        assert_eq!(locks.break_lock(&key).expect("it answers").len(), 1);
        assert_eq!(code(guard.refresh_with(FORCE)), "lock_lost");
        assert!(guard.wait_lost(Duration::from_secs(5)));
    })
    .await;
}
