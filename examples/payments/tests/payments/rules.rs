//! What a single caller sees. Nobody else is there, so no lock is needed: `NoOpLockProvider`.

use std::time::Duration;

use latchwork_lock::{InMemoryLockProvider, LockConfig, Locks, ManualClock};
use latchwork_payments::application::ports::{
    CaptureRepository as _, Changes, Fences, Store, UnitOfWork as _, lock_key,
};
use latchwork_payments::application::{Decision, Error};
use latchwork_payments::domain::{Capture, PaymentId, PaymentState};
use latchwork_payments::infrastructure::{MemoryStore, SqliteStore};

use crate::support::{
    OnSqlite, Setting as _, WINDOW, World, amount, code, currency, request, soon, transfer,
    unlocked, waiters,
};

/// The same for both stores.
macro_rules! over_stores {
    ($($test:ident,)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::MemoryStore::new()).await;
            })*
        }

        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                let directory = tempfile::tempdir().expect("a directory");
                let file = directory.path().join("payments.db");
                super::$test(super::SqliteStore::open(file).await.expect("a file")).await;
            })*
        }
    };
}

over_stores! {
    a_capture_is_stored_and_replayed,
    a_key_with_another_amount_is_a_conflict,
    a_replay_outlives_the_window,
    the_checks_come_in_their_order,
    the_window_ends_at_its_end,
    only_authorized_payments_are_captured,
    a_payment_is_created_once,
    transfers_are_replayed_and_checked,
}

async fn a_capture_is_stored_and_replayed(store: impl Store) {
    let (world, _) = unlocked(store);
    let id = world.authorized(10_000).await;
    let first = world.capture(id, " key:1 ", 6_000).await.expect("captured");
    assert!(!first.replayed);
    let payment = world.payment(id).await;
    assert_eq!(payment.state(), PaymentState::Captured);
    assert_eq!(payment.data().captured, Some(amount(6_000)));
    let stored = world.store.captures_of(id).await.expect("read");
    assert_eq!(stored, std::slice::from_ref(&first.capture));
    for _ in 0..2 {
        let again = world.capture(id, "key:1", 6_000).await.expect("replayed");
        assert!(again.replayed);
        assert_eq!(again.capture, first.capture);
    }
    // A key belongs to its payment.
    let other = world.authorized(6_000).await;
    assert!(!world.capture(other, "key:1", 6_000).await.expect("captured").replayed);
}

async fn a_key_with_another_amount_is_a_conflict(store: impl Store) {
    let (world, _) = unlocked(store);
    let id = world.authorized(10_000).await;
    let first = world.capture(id, "key", 6_000).await.expect("captured");
    let error = world.capture(id, "key", 6_001).await.expect_err("a conflict");
    assert_eq!(error.code(), "idempotency_conflict");
    let said = error.to_string();
    assert!(
        said.contains("60.00") && said.contains("60.01") && said.contains("a new key"),
        "{said}"
    );
    assert_eq!(world.store.captures_of(id).await.expect("read"), [first.capture]);
}

async fn a_replay_outlives_the_window(store: impl Store) {
    let (world, clock) = unlocked(store);
    let id = world.authorized(10_000).await;
    let first = world.capture(id, "key", 10_000).await.expect("captured");
    clock.advance(WINDOW * 2);
    let again = world.capture(id, "key", 10_000).await.expect("replayed");
    assert!(again.replayed && again.capture == first.capture);
}

/// Of several reasons to refuse, the first in the order is told: idempotency, existence, state,
/// window, amount.
async fn the_checks_come_in_their_order(store: impl Store) {
    let (world, clock) = unlocked(store);
    let nobody = world.capture(PaymentId::random(), "key", 1).await;
    assert_eq!(code(nobody), "payment_not_found");
    let pending = world.pending(100).await;
    let captured = world.authorized(100).await;
    let expired = world.authorized(100).await;
    world.capture(captured, "key", 100).await.expect("captured");
    clock.advance(WINDOW);
    for (id, key, cents, reason) in [
        (captured, "key", 200, "idempotency_conflict"),
        (captured, "other", 200, "payment_already_captured"),
        (pending, "key", 200, "illegal_transition"),
        (expired, "key", 200, "payment_expired"),
    ] {
        assert_eq!(code(world.capture(id, key, cents).await), reason);
    }
    let open = world.authorized(100).await;
    assert_eq!(code(world.capture(open, "key", 101).await), "amount_exceeds_authorized");
    // What was refused is no answer to keep: the same key may be used for what is right.
    assert!(!world.capture(open, "key", 100).await.expect("captured").replayed);
}

async fn the_window_ends_at_its_end(store: impl Store) {
    let (world, clock) = unlocked(store);
    let (one, two) = (world.authorized(100).await, world.authorized(100).await);
    clock.advance(WINDOW - Duration::from_nanos(1));
    world.capture(one, "key", 100).await.expect("in time");
    clock.advance(Duration::from_nanos(1));
    let error = world.capture(two, "key", 100).await.expect_err("too late");
    assert_eq!(error.code(), "payment_expired");
    assert!(error.to_string().contains("2026-01-02T00:00:00Z"), "{error}");
    assert_eq!(world.payment(two).await.state(), PaymentState::Authorized);
    assert!(world.store.captures_of(two).await.expect("read").is_empty());
}

async fn only_authorized_payments_are_captured(store: impl Store) {
    let (world, _) = unlocked(store);
    let id = world.pending(100).await;
    let error = world.capture(id, "key", 100).await.expect_err("pending");
    assert!(error.to_string().contains("pending cannot become captured"), "{error}");
    let authorize = &world.service.authorize;
    let failed = authorize.execute(id, Decision::Declined).await.expect("declined");
    assert_eq!(failed.state(), PaymentState::Failed);
    assert_eq!(code(world.capture(id, "key", 100).await), "illegal_transition");
    let approved = Decision::Approved { capture_window: WINDOW };
    assert_eq!(code(authorize.execute(id, approved).await), "illegal_transition");
    assert_eq!(code(authorize.execute(PaymentId::random(), approved).await), "payment_not_found");
    let other = world.pending(100).await;
    let none = Decision::Approved { capture_window: Duration::ZERO };
    assert_eq!(code(authorize.execute(other, none).await), "invalid_capture_window");
    assert_eq!(world.payment(other).await.state(), PaymentState::Pending);
}

async fn a_payment_is_created_once(store: impl Store) {
    let (world, _) = unlocked(store);
    let id = world.authorized(100).await;
    let again = world.service.create.execute(id, amount(200), currency("EUR")).await;
    assert_eq!(code(again), "payment_exists");
    let payment = world.payment(id).await;
    assert_eq!((payment.data().amount, payment.state()), (amount(100), PaymentState::Authorized));
}

async fn transfers_are_replayed_and_checked(store: impl Store) {
    let (world, clock) = unlocked(store);
    let (a, b, c) = (
        world.authorized(1_000).await,
        world.authorized(1_000).await,
        world.authorized(1_000).await,
    );
    let move_ = async |from, to, key: &str, cents| {
        world.service.transfer.execute(transfer(from, to, key, cents)).await
    };
    let first = move_(a, b, "key", 400).await.expect("transferred");
    let again = move_(a, b, "key", 400).await.expect("replayed");
    assert!(!first.replayed && again.replayed && first.transfer == again.transfer);
    for (to, cents) in [(b, 500), (c, 400)] {
        assert_eq!(code(move_(a, to, "key", cents).await), "idempotency_conflict");
    }
    assert_eq!(code(move_(a, a, "new", 1).await), "transfer_to_itself");
    assert_eq!(code(move_(a, PaymentId::random(), "new", 1).await), "payment_not_found");
    assert_eq!(code(move_(a, b, "new", 600).await), "transfer_too_large");
    let amounts = async || (world.payment(a).await, world.payment(b).await);
    let (left, right) = amounts().await;
    assert_eq!((left.data().amount, right.data().amount), (amount(600), amount(1_400)));
    world.capture(b, "key", 1_400).await.expect("what came can be captured");
    assert_eq!(code(move_(a, b, "new", 1).await), "payment_not_authorized");
    clock.advance(WINDOW);
    assert_eq!(code(move_(a, c, "new", 1).await), "payment_expired");
    assert!(move_(a, b, "key", 400).await.expect("a replay outlives the window").replayed);
}

#[tokio::test]
async fn the_time_is_read_inside_the_lock() {
    let clock = ManualClock::new();
    let locks = Locks::new(InMemoryLockProvider::new());
    let world = World::new(locks.clone(), clock.clone(), MemoryStore::new());
    let id = world.authorized(100).await;
    let holder = locks.lock(lock_key(id)).acquire().await.expect("free");
    let capture = tokio::spawn({
        let service = world.service.clone();
        async move { service.capture.execute(request(id, "key", 100)).await }
    });
    waiters(&locks, &lock_key(id), 1).await;
    clock.advance(WINDOW); // asked for in time, and its turn comes too late
    holder.release().await.expect("held");
    let answer = soon("its turn", capture).await.expect("no panic");
    assert_eq!(code(answer), "payment_expired");
}

#[tokio::test]
async fn one_payment_has_one_lock_however_its_id_is_written() {
    let locks = Locks::new(InMemoryLockProvider::new());
    let short = LockConfig { wait_timeout: Some(Duration::from_millis(20)), ..Default::default() };
    let world = World::new(locks.with_defaults(short), ManualClock::new(), MemoryStore::new());
    let id = world.authorized(100).await;
    let holder = locks.lock(format!("payment:{id}")).acquire().await.expect("free");
    for text in [id.to_string().to_uppercase(), format!("urn:uuid:{id}"), format!("{{{id}}}")] {
        let id = PaymentId::parse(&text).expect(&text);
        let error = world.capture(id, "key", 100).await.expect_err("taken");
        assert_eq!(error.code(), "lock_taken");
        assert!(error.is_temporary(), "the wait was bounded, so it may be asked again");
    }
    holder.release().await.expect("held");
    world.capture(id, "key", 100).await.expect("captured");
}

#[tokio::test]
async fn sqlite_keeps_everything_over_a_restart() {
    let setting = OnSqlite::new();
    let world = setting.open().await;
    let (id, other) = (world.authorized(100).await, world.authorized(100).await);
    let first = world.capture(id, "key", 100).await.expect("captured");
    let moved = world.service.transfer.execute(transfer(other, id, "key", 1)).await;
    assert_eq!(code(moved), "payment_not_authorized");
    let payment = world.payment(id).await;
    world.locks.close().await;
    world.store.close().await;

    let world = setting.open().await;
    assert_eq!(world.payment(id).await, payment);
    let again = world.capture(id, "key", 100).await.expect("replayed");
    assert!(again.replayed && again.capture == first.capture, "to the nanosecond");
    world.capture(other, "key", 100).await.expect("its fences go on too");
}

/// A capture that cannot be saved takes the change of its payment with it.
#[tokio::test]
async fn sqlite_saves_all_or_nothing() {
    let setting = OnSqlite::new();
    let world = setting.open().await;
    let (id, other) = (world.authorized(100).await, world.authorized(100).await);
    let capture = world.capture(other, "key", 100).await.expect("captured").capture;
    let before = world.payment(id).await;
    let mut payment = before.clone();
    payment.capture(world.time.now(), amount(100)).expect("legal");
    // The name of a capture that there is.
    let twin = Capture { payment_id: id, ..capture };
    let changes = Changes { payments: vec![payment], captures: vec![twin], transfers: vec![] };
    let error = world.store.commit(&Fences::of([]), changes).await.expect_err("no twins");
    assert_eq!((error.code(), error.is_temporary()), ("store_failed", false));
    assert_eq!(world.payment(id).await, before);
    world.capture(id, "key", 100).await.expect("nothing stands in the way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_may_be_opened_by_many_at_once() {
    for _ in 0..4 {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("payments.db");
        let opening: Vec<_> =
            (0..8).map(|_| tokio::spawn(SqliteStore::open(file.clone()))).collect();
        for opened in opening {
            opened.await.expect("no panic").expect("opened");
        }
    }
}

#[tokio::test]
async fn a_damaged_row_is_named_and_not_used() {
    let setting = OnSqlite::new();
    let world = setting.open().await;
    for (damage, said) in [
        ("UPDATE payments SET state = 'paid' WHERE id = ?1", "\"paid\""),
        ("UPDATE payments SET capture_expires_at = 'soon' WHERE id = ?1", "\"soon\""),
        ("UPDATE payments SET capture_expires_at = NULL WHERE id = ?1", "contradicts"),
        ("UPDATE payments SET currency = '€' WHERE id = ?1", "currency"),
    ] {
        let id = world.authorized(100).await;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(setting.file());
        let pool = sqlx::SqlitePool::connect_with(options).await.expect("connected");
        sqlx::query(damage).bind(id.to_string()).execute(&pool).await.expect("damaged");
        pool.close().await;
        let error = world.capture(id, "key", 100).await.expect_err("damaged");
        assert!(matches!(error, Error::Corrupt { .. }) && error.code() == "corrupt_record");
        assert!(error.to_string().contains(said), "{error}");
        assert!(world.store.captures_of(id).await.expect("read").is_empty());
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("payments.db");
    std::fs::write(&file, "this is no database, whatever its name says").expect("written");
    let error = SqliteStore::open(&file).await.expect_err("no database");
    assert_eq!((error.code(), error.is_temporary()), ("store_failed", false));
    let said = error.to_string();
    assert!(said.contains("not a database") && said.contains("payments.db"), "{said}");
    let error =
        SqliteStore::open(directory.path().join("no/such/file")).await.expect_err("nowhere");
    assert!(error.to_string().contains("no/such/file"), "{error}");
}
