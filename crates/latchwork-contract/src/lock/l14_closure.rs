//! L14 The closure form releases however it ends, and stops when the lease is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_lock::{Locks, OnLoss};
use tokio::sync::oneshot;

use super::case::case;
use super::fixture::{FORCE, SLACK, code};
use super::{Case, Fixture};

pub(super) const CASES: &[Case] = &[
    case!(l14_it_releases_on_return, [Exclusion]),
    case!(l14_it_releases_on_error, [Exclusion]),
    case!(l14_it_releases_on_panic, [Exclusion]),
    case!(l14_it_releases_on_cancellation, [Exclusion]),
    case!(l14_a_taken_key_runs_nothing, [Exclusion]),
    case!(l14_a_broken_lease_drops_the_work, [Break, Renew, Exclusion]),
    case!(l14_an_expired_lease_drops_the_work, []),
    case!(l14_finish_lets_it_finish, []),
    case!(l14_a_loss_found_at_the_end_is_told, [Break, Exclusion]),
    case!(l14_what_was_released_says_so, [Renew]),
];

/// True once it was dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn is_free(locks: &Locks, key: &str) -> bool {
    match locks.lock(key).try_acquire().await.expect("it answers") {
        // Not dropped: that would only queue the release, and the next question could be faster.
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

async fn l14_it_releases_on_return(f: Fixture) {
    let (ours, theirs) = (f.open().await, f.open().await);
    let key = f.key("a");
    let fence = ours.lock(&key).run(|held| async move { held.fence() }).await.expect("it ran");
    assert!(is_free(&theirs, &key).await);
    let inside = ours.lock(&key).run(|_| is_free(&theirs, &key)).await.expect("it ran");
    assert!(!inside, "it was not locked inside");
    let next = theirs.lock(&key).acquire().await.expect("free");
    assert!(next.fence() > fence);
}

async fn l14_it_releases_on_error(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let out = locks.lock(&key).run(|_| async { Err::<(), _>("the work's own error") }).await;
    assert_eq!(out.expect("the lock went well"), Err("the work's own error"));
    assert!(is_free(&locks, &key).await);
}

async fn l14_it_releases_on_panic(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let (own, name) = (locks.clone(), key.clone());
    let task = tokio::spawn(async move {
        own.lock(&name).run(|_| async { panic!("simulated failure") }).await
    });
    assert!(task.await.expect_err("it panicked").is_panic());
    locks.close().await;
    assert!(is_free(&locks, &key).await);
}

async fn l14_it_releases_on_cancellation(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let dropped = Arc::new(AtomicBool::new(false));
    let (own, name, flag) = (locks.clone(), key.clone(), Flag(dropped.clone()));
    let (entered, is_in) = oneshot::channel();
    let task = tokio::spawn(async move {
        let work = |_| async move {
            let _flag = flag;
            let _ = entered.send(());
            std::future::pending::<()>().await;
        };
        own.lock(&name).run(work).await
    });
    is_in.await.expect("it runs");
    assert!(!is_free(&locks, &key).await);
    task.abort();
    assert!(task.await.expect_err("it was aborted").is_cancelled());
    assert!(dropped.load(Ordering::SeqCst), "the work was dropped");
    locks.close().await;
    assert!(is_free(&locks, &key).await);
}

async fn l14_a_taken_key_runs_nothing(f: Fixture) {
    let locks = f.open().await;
    let key = f.key("a");
    let guard = locks.lock(&key).acquire().await.expect("a free key");
    let ran = AtomicBool::new(false);
    let work = |_| async { ran.store(true, Ordering::SeqCst) };
    assert_eq!(code(locks.lock(&key).run(work).await), "lock_taken");
    assert!(!ran.load(Ordering::SeqCst));
    guard.release().await.expect("held");
}

async fn l14_a_broken_lease_drops_the_work(f: Fixture) {
    let (ours, admin) = (f.open().await, f.open().await);
    let key = f.key("a");
    let dropped = Arc::new(AtomicBool::new(false));
    let (flag, name) = (Flag(dropped.clone()), key.clone());
    let ttl = f.ttl() * 10;
    let request = ours.lock(&key).ttl(ttl).auto_renew(Duration::from_secs(600));
    let running = request.run(|_| async move {
        let _flag = flag;
        admin.break_lock(&name).await.expect("it answers");
        std::future::pending::<()>().await;
    });
    let asked = f.now();
    let answer = f.within(ttl, "the next renewal tells", running).await;
    assert_eq!(code(answer), "lock_lost");
    assert!(f.now().since(asked) < ttl, "it was noticed by time only");
    assert!(dropped.load(Ordering::SeqCst), "the work was dropped");
}

async fn l14_an_expired_lease_drops_the_work(f: Fixture) {
    let locks = f.open().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(dropped.clone());
    let running = locks.lock(f.key("a")).ttl(f.ttl()).run(|_| async move {
        let _flag = flag;
        std::future::pending::<()>().await;
    });
    let answer = f.within(f.ttl() + SLACK, "the ttl ends it", running).await;
    // Trust ends before the ttl, so by our clock it may not be expired yet.
    assert!(answer.is_err_and(|error| error.is_loss()));
    assert!(dropped.load(Ordering::SeqCst), "the work was dropped");
}

async fn l14_finish_lets_it_finish(f: Fixture) {
    let locks = f.open().await;
    let request = locks.lock(f.key("a")).ttl(f.ttl()).on_loss(OnLoss::Finish);
    let running = request.run(|held| async move {
        held.lost().await;
        tokio::task::yield_now().await;
        assert!(!held.is_held());
        "finished"
    });
    let answer = f.within(f.ttl() + SLACK, "the work finishes", running).await;
    assert_eq!(answer.expect("finishing was asked for"), "finished");
}

async fn l14_what_was_released_says_so(f: Fixture) {
    let locks = f.open().await;
    let ended = locks.lock(f.key("a")).run(|held| async { held }).await.expect("it ran");
    let guard = locks.lock(f.key("b")).acquire().await.expect("a free key");
    let released = guard.share();
    guard.release().await.expect("held");
    let guard = locks.lock(f.key("c")).acquire().await.expect("a free key");
    let dropped = guard.share();
    drop(guard);
    for held in [ended, released, dropped] {
        assert!(!held.is_held());
        let error = held.refresh_with(FORCE).await.expect_err("it is over");
        assert_eq!(error.code(), "lock_lost");
        let told = error.to_string();
        assert!(told.contains("released") && !told.contains("broken"), "{told}");
        assert!(told.contains(&format!("(fence {})", held.fence())), "{told}");
    }
}

async fn l14_a_loss_found_at_the_end_is_told(f: Fixture) {
    let (ours, admin) = (f.open().await, f.open().await);
    let key = f.key("a");
    for (on_loss, told) in [(OnLoss::Cancel, true), (OnLoss::Finish, false)] {
        let work = |_| async { admin.break_lock(&key).await.expect("it answers").len() };
        let answer = ours.lock(&key).on_loss(on_loss).run(work).await;
        match answer {
            Err(error) => assert!(told && error.code() == "lock_lost", "{error}"),
            Ok(broken) => assert!(!told && broken == 1, "the loss was kept quiet"),
        }
    }
}
