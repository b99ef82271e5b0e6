//! Worlds to test in.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{
    InMemoryLockProvider, Locks, ManualClock, NoOpLockProvider, SqliteLockProvider, SystemClock,
};
use latchwork_payments::application::ports::{Changes, Fences, Store, TimeProvider};
use latchwork_payments::application::{
    CapturePaymentRequest, CapturePaymentResponse, Decision, Result, Service,
    TransferAmountRequest, blocking,
};
use latchwork_payments::domain::{Amount, Currency, IdempotencyKey, Payment, PaymentId};
use latchwork_payments::infrastructure::{MemoryStore, SqliteStore};
use tempfile::TempDir;

/// How long an authorized payment can be captured.
pub(crate) const WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// A service with its ports.
pub(crate) struct World<S> {
    pub(crate) locks: Locks,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) store: S,
    pub(crate) service: Service<S>,
}

impl<S: Store> World<S> {
    pub(crate) fn new(locks: Locks, time: impl TimeProvider, store: S) -> Self {
        let time: Arc<dyn TimeProvider> = Arc::new(time);
        let service = Service::new(locks.clone(), time.clone(), store.clone());
        World { locks, time, store, service }
    }

    /// The use case for threads.
    pub(crate) fn blocking(&self) -> blocking::CapturePayment<S> {
        let (locks, store) = (self.locks.clone().into(), self.store.clone());
        blocking::CapturePayment::new(locks, self.time.clone(), store).expect("a runtime")
    }

    pub(crate) async fn pending(&self, cents: i64) -> PaymentId {
        let id = PaymentId::random();
        let create = self.service.create.execute(id, amount(cents), currency("EUR"));
        create.await.expect("created");
        id
    }

    pub(crate) async fn authorized(&self, cents: i64) -> PaymentId {
        let id = self.pending(cents).await;
        let approved = Decision::Approved { capture_window: WINDOW };
        self.service.authorize.execute(id, approved).await.expect("authorized");
        id
    }

    pub(crate) async fn capture(
        &self,
        id: PaymentId,
        key: &str,
        cents: i64,
    ) -> Result<CapturePaymentResponse> {
        self.service.capture.execute(request(id, key, cents)).await
    }

    pub(crate) async fn payment(&self, id: PaymentId) -> Payment {
        self.store.payment(id).await.expect("read").expect("there")
    }
}

/// A lock provider and a store that belong together. Each opening is a connection of its own where
/// the backend has connections, as another process would have it.
pub(crate) trait Setting: Send + Sync + 'static {
    type Store: Store;

    fn open(&self) -> impl Future<Output = World<Self::Store>> + Send;
}

/// Locks and payments in memory.
pub(crate) struct InMemory {
    locks: Locks,
    store: MemoryStore,
}

impl InMemory {
    pub(crate) fn new() -> Self {
        InMemory { locks: Locks::new(InMemoryLockProvider::new()), store: MemoryStore::new() }
    }
}

impl Setting for InMemory {
    type Store = MemoryStore;

    async fn open(&self) -> World<MemoryStore> {
        World::new(self.locks.clone(), SystemClock, self.store.clone())
    }
}

/// Locks in files, payments in SQLite.
#[cfg(target_os = "linux")]
pub(crate) struct OnFiles(TempDir);

#[cfg(target_os = "linux")]
impl OnFiles {
    pub(crate) fn new() -> Self {
        OnFiles(tempfile::tempdir().expect("a directory"))
    }
}

#[cfg(target_os = "linux")]
impl Setting for OnFiles {
    type Store = SqliteStore;

    async fn open(&self) -> World<SqliteStore> {
        let locks = self.0.path().join("locks");
        let locks = latchwork_lock::FileLockProvider::open(locks).expect("a directory");
        let store = SqliteStore::open(self.0.path().join("payments.db")).await.expect("a file");
        World::new(Locks::new(locks), SystemClock, store)
    }
}

/// Locks and payments in one SQLite file.
pub(crate) struct OnSqlite(TempDir);

impl OnSqlite {
    pub(crate) fn new() -> Self {
        OnSqlite(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("payments.db")
    }
}

impl Setting for OnSqlite {
    type Store = SqliteStore;

    async fn open(&self) -> World<SqliteStore> {
        let locks = SqliteLockProvider::open_file(self.file()).await.expect("a file");
        let store = SqliteStore::open(self.file()).await.expect("a file");
        World::new(Locks::new(locks), SystemClock, store)
    }
}

/// For tests with one thread: no lock at all, and a clock that is moved by hand.
pub(crate) fn unlocked<S: Store>(store: S) -> (World<S>, ManualClock) {
    let clock = ManualClock::new();
    (World::new(Locks::new(NoOpLockProvider::new()), clock.clone(), store), clock)
}

/// Puts an authorized payment into a store without a lock or a fence.
pub(crate) async fn put_authorized(store: &impl Store, now: &impl TimeProvider) -> PaymentId {
    let mut payment = Payment::pending(PaymentId::random(), amount(10_000), currency("EUR"));
    payment.authorize(now.now(), WINDOW).expect("authorized");
    let (id, changes) = (payment.id(), Changes { payments: vec![payment], ..Changes::default() });
    store.commit(&Fences::of([]), changes).await.expect("saved");
    id
}

pub(crate) fn amount(cents: i64) -> Amount {
    Amount::from_cents(cents).expect("above zero")
}

pub(crate) fn currency(text: &str) -> Currency {
    Currency::parse(text).expect("a currency")
}

pub(crate) fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text).expect("a key")
}

pub(crate) fn request(payment_id: PaymentId, text: &str, cents: i64) -> CapturePaymentRequest {
    CapturePaymentRequest { payment_id, idempotency_key: key(text), amount: amount(cents) }
}

pub(crate) fn transfer(
    from: PaymentId,
    to: PaymentId,
    text: &str,
    cents: i64,
) -> TransferAmountRequest {
    TransferAmountRequest { from, to, idempotency_key: key(text), amount: amount(cents) }
}

/// The code of a refusal.
pub(crate) fn code<T: std::fmt::Debug>(answer: Result<T>) -> &'static str {
    answer.expect_err("refused").code()
}

/// A runtime for tests on threads. Its own threads drive it while the test waits elsewhere.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

/// What must end, and not only when a lease of 30 s runs out.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(25);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Waits until so many wait for a key.
pub(crate) async fn waiters(locks: &Locks, key: &str, count: usize) {
    let queued = async {
        while locks.inspect(key).await.expect("inspected").waiters.len() != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon("the queue", queued).await;
}
