//! A holder that was stopped past the end of its lease and goes on: its late save is refused.

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{InMemoryLockProvider, Locks, ManualClock};
use latchwork_payments::application::ports::Store;
use latchwork_payments::domain::PaymentState;
use latchwork_payments::infrastructure::{MemoryStore, SqliteStore};
use tokio::sync::Notify;

use crate::hooked::Hooked;
use crate::support::{World, amount, code, key, soon, transfer};

/// Longer than a lease of 30 s.
const STOPPED: Duration = Duration::from_secs(31);

fn locks(clock: &ManualClock) -> Locks {
    Locks::new(InMemoryLockProvider::with_clock(Arc::new(clock.clone())))
}

/// Ana is stopped between check and save; Ben captures meanwhile.
async fn a_late_save_is_refused(store: impl Store) {
    let clock = ManualClock::new();
    let ben = Arc::new(World::new(locks(&clock), clock.clone(), store.clone()));
    let id = ben.authorized(10_000).await;
    let stopped = Hooked::new(store, {
        let ben = ben.clone();
        move || {
            let (clock, ben) = (clock.clone(), ben.clone());
            async move {
                clock.advance(STOPPED);
                let captured = ben.capture(id, "ben", 4_000).await.expect("the lease is over");
                assert!(!captured.replayed);
            }
        }
    });
    let ana = World::new(ben.locks.clone(), ManualClock::new(), stopped);
    let late = soon("Ana ends", ana.capture(id, "ana", 10_000)).await.expect_err("too late");
    assert_eq!(late.code(), "stale_fence");
    assert!(late.is_temporary(), "she may ask again");
    let captures = ben.store.captures_of(id).await.expect("read");
    assert_eq!(captures.len(), 1);
    assert_eq!(captures[0].idempotency_key.as_str(), "ben");
    assert_eq!(ben.payment(id).await.state(), PaymentState::Captured);
    assert_eq!(code(ben.capture(id, "ana", 10_000).await), "payment_already_captured");
}

/// What Ben does.
#[derive(Clone, Copy)]
enum Ben {
    Captures,
    Transfers,
}

/// The sharper case: when Ana wakes up, Ben has looked at the payment but not yet saved. Ben said
/// on entering that he is the one who writes, so Ana comes too late already.
async fn a_late_save_does_not_slip_in_between(store: impl Store, what: Ben) {
    let clock = ManualClock::new();
    let setup = World::new(locks(&clock), clock.clone(), store.clone());
    let (id, other) = (setup.authorized(10_000).await, setup.authorized(10_000).await);
    let [ben_may_begin, ana_may_go_on, ana_is_done] = [(); 3].map(|()| Arc::new(Notify::new()));

    let stopped = Hooked::new(store.clone(), {
        let (clock, begin, go_on) = (clock.clone(), ben_may_begin.clone(), ana_may_go_on.clone());
        move || {
            let (clock, begin, go_on) = (clock.clone(), begin.clone(), go_on.clone());
            async move {
                clock.advance(STOPPED);
                begin.notify_one();
                go_on.notified().await;
            }
        }
    });
    let slow = Hooked::new(store, {
        let (go_on, done) = (ana_may_go_on, ana_is_done.clone());
        move || {
            let (go_on, done) = (go_on.clone(), done.clone());
            async move {
                go_on.notify_one();
                done.notified().await;
            }
        }
    });
    let ana = World::new(setup.locks.clone(), clock.clone(), stopped);
    let ben = World::new(setup.locks.clone(), clock, slow);
    let both = async {
        tokio::join!(
            async {
                let answer = ana.capture(id, "ana", 10_000).await;
                ana_is_done.notify_one();
                answer
            },
            async {
                ben_may_begin.notified().await;
                match what {
                    Ben::Captures => ben.capture(id, "ben", 10_000).await.map(|_| ()),
                    Ben::Transfers => {
                        let request = transfer(id, other, "ben", 4_000);
                        ben.service.transfer.execute(request).await.map(|_| ())
                    }
                }
            }
        )
    };
    let (ana, ben) = soon("both end", both).await;
    assert_eq!(code(ana), "stale_fence");
    ben.expect("he holds the lock");
    let captures = setup.store.captures_of(id).await.expect("read");
    let keys: Vec<_> = captures.iter().map(|capture| capture.idempotency_key.as_str()).collect();
    let left = setup.payment(id).await.data().amount;
    match what {
        Ben::Captures => assert_eq!((&keys[..], left), (&["ben"][..], amount(10_000))),
        Ben::Transfers => assert_eq!((&keys[..], left), (&[][..], amount(6_000))),
    }
}

/// A transfer writes two payments under two leases: one that ended is enough to refuse both.
async fn a_late_transfer_moves_nothing(store: impl Store) {
    let clock = ManualClock::new();
    let ben = Arc::new(World::new(locks(&clock), clock.clone(), store.clone()));
    let (a, b) = (ben.authorized(10_000).await, ben.authorized(10_000).await);
    let stopped = Hooked::new(store, {
        let (clock, ben) = (clock.clone(), ben.clone());
        move || {
            let (clock, ben) = (clock.clone(), ben.clone());
            async move {
                clock.advance(STOPPED);
                ben.capture(b, "ben", 10_000).await.expect("the leases are over");
            }
        }
    });
    let ana = World::new(ben.locks.clone(), clock, stopped);
    let late = ana.service.transfer.execute(transfer(a, b, "ana", 500));
    assert_eq!(code(soon("Ana ends", late).await), "stale_fence");
    for id in [a, b] {
        assert_eq!(ben.payment(id).await.data().amount, amount(10_000));
    }
    let moved = ben.store.transfer_by_key(a, &key("ana")).await.expect("read");
    assert_eq!(moved, None);
}

async fn sqlite() -> (tempfile::TempDir, SqliteStore) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(directory.path().join("payments.db")).await.expect("a file");
    (directory, store)
}

#[tokio::test]
async fn a_late_save_is_refused_in_memory() {
    a_late_save_is_refused(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_late_save_is_refused_in_sqlite() {
    let (_directory, store) = sqlite().await;
    a_late_save_is_refused(store).await;
}

#[tokio::test]
async fn a_late_save_does_not_slip_in_between_in_memory() {
    for what in [Ben::Captures, Ben::Transfers] {
        a_late_save_does_not_slip_in_between(MemoryStore::new(), what).await;
    }
}

#[tokio::test]
async fn a_late_save_does_not_slip_in_between_in_sqlite() {
    for what in [Ben::Captures, Ben::Transfers] {
        let (_directory, store) = sqlite().await;
        a_late_save_does_not_slip_in_between(store, what).await;
    }
}

#[tokio::test]
async fn a_late_transfer_moves_nothing_in_memory() {
    a_late_transfer_moves_nothing(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_late_transfer_moves_nothing_in_sqlite() {
    let (_directory, store) = sqlite().await;
    a_late_transfer_moves_nothing(store).await;
}
