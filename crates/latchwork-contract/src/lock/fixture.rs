//! What a case gets to work with.

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, LockProvider, Moment};
use latchwork_lock::{
    Capabilities, Clock, Guard, Key, Locks, Mode, PageRequest, Refresh, SystemClock,
};

use super::eventually::{SOON, eventually};
use super::{Client, Faults, Flaky, Skewed, TestBackend};

/// Everything that a case may ask of the backend under test. Clones are the same.
#[derive(Clone)]
pub struct Fixture {
    inner: Arc<Inner>,
}

struct Inner {
    backend: TestBackend,
    names: String,
    declared: Capabilities,
}

/// A refresh that always asks the backend.
pub(super) const FORCE: Refresh = Refresh { ttl: None, threshold: Some(Duration::ZERO) };

/// How late a busy machine may make an answer that was in time.
pub(super) const SLACK: Duration = Duration::from_secs(2);

impl Fixture {
    /// The fixture of one case.
    ///
    /// # Panics
    /// When the backend cannot be reached.
    pub async fn new(case: &str, backend: TestBackend) -> Self {
        let declared = backend.connect().await.expect("the backend is there").capabilities();
        // Unique, since a server may still have the keys of another run.
        let names = format!("{case}/{:08x}/", rand::random::<u32>());
        Fixture { inner: Arc::new(Inner { backend, names, declared }) }
    }

    /// A connection of its own: another process, as far as the backend can tell.
    pub async fn client(&self) -> Client {
        self.inner.backend.connect().await.expect("the backend is there")
    }

    /// Locks on a connection of their own.
    pub async fn open(&self) -> Locks {
        Locks::new(self.client().await)
    }

    /// Locks on a connection of their own whose calls can be made to fail.
    pub async fn open_flaky(&self) -> (Locks, Faults) {
        let flaky = Flaky::new(self.client().await);
        let faults = flaky.faults();
        (Locks::new(flaky), faults)
    }

    /// Locks of a client whose clock is wrong by an hour.
    pub async fn open_skewed(&self) -> Locks {
        Locks::new(Skewed::new(self.client().await, Duration::from_secs(3_600)))
    }

    /// A key that only this run of this case uses.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.inner.names)
    }

    /// What stands before all keys of this run of this case.
    pub fn names(&self) -> &str {
        &self.inner.names
    }

    /// What the provider declares.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.declared
    }

    /// The shortest sensible ttl here. For spans in which a busy machine may dawdle, take several.
    pub fn ttl(&self) -> Duration {
        self.inner.backend.ttl_unit()
    }

    /// How many rounds to do of so many.
    pub fn rounds(&self, usual: usize) -> usize {
        usual.div_ceil(self.inner.backend.times_slower()).max(2)
    }

    /// How many times longer a short wait is to be.
    pub fn slowness(&self) -> u32 {
        u32::try_from(self.inner.backend.times_slower()).unwrap_or(u32::MAX)
    }

    /// A ttl of which a busy machine may dawdle away a third, and what must be held still is.
    pub fn patient_ttl(&self) -> Duration {
        (self.ttl() * 6).max(Duration::from_secs(4))
    }

    /// The time by the clock of the backend's clients.
    pub fn now(&self) -> Moment {
        match self.inner.backend.manual_clock() {
            Some(clock) => clock.now(),
            None => SystemClock.now(),
        }
    }

    /// Lets this much time pass: moves the clock, or sleeps where the clock is not ours.
    pub async fn pass(&self, span: Duration) {
        match self.inner.backend.manual_clock() {
            Some(clock) => clock.advance(span),
            None => tokio::time::sleep(span).await,
        }
    }

    /// Waits for a future while time passes.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        future: impl Future<Output = T>,
    ) -> T {
        let Some(clock) = self.inner.backend.manual_clock() else {
            let limit = limit * self.slowness();
            let ended = tokio::time::timeout(limit, future).await;
            return ended.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"));
        };
        let mut future = std::pin::pin!(future);
        let end = clock.now().after(limit);
        let step = self.ttl() / 20;
        loop {
            // A real moment for each manual one, so that a task that was woken can run.
            let nap = Duration::from_millis(4);
            if let Ok(ended) = tokio::time::timeout(nap, future.as_mut()).await {
                return ended;
            }
            assert!(clock.now() < end, "not within {limit:?}: {what}");
            clock.advance(step);
        }
    }

    /// Waits for a task that needs no time to pass.
    ///
    /// # Panics
    /// When it does not end soon, or panics.
    pub async fn soon<T>(&self, what: &str, task: tokio::task::JoinHandle<T>) -> T {
        match tokio::time::timeout(SOON, task).await {
            Ok(Ok(out)) => out,
            Ok(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            Err(_) => panic!("not within {SOON:?}: {what}"),
        }
    }

    /// Waits until so many stand in the queue of a key.
    pub async fn queued(&self, locks: &Locks, key: &str, count: usize) {
        eventually(&format!("{count} waiters for {key}"), async || {
            locks.inspect(key).await.expect("inspect answers").waiters.len() == count
        })
        .await;
    }

    /// Asks for an exclusive lease in a task, and returns once it stands in the queue.
    pub async fn enqueue(
        &self,
        locks: &Locks,
        key: &str,
        mode: Mode,
    ) -> tokio::task::JoinHandle<Guard> {
        let before = locks.inspect(key).await.expect("inspect answers").waiters.len();
        let (own, name) = (locks.clone(), key.to_owned());
        let task = tokio::spawn(async move {
            let asked = own.lock(&name).mode(mode).wait(Duration::from_secs(30)).acquire();
            asked.await.expect("it is granted in the end")
        });
        self.queued(locks, key, before + 1).await;
        task
    }

    /// Waits until nobody holds the key, which is then free for this exclusive lease.
    pub async fn free(&self, locks: &Locks, key: &str) -> Guard {
        let mut guard = None;
        eventually(&format!("{key} is free"), async || {
            guard = locks.lock(key).try_acquire().await.expect("try_acquire answers");
            guard.is_some()
        })
        .await;
        guard.expect("the condition held")
    }

    /// Every key of this run that the backend lists, with its waiters and holders.
    pub async fn listed(&self, locks: &Locks) -> Vec<String> {
        let page = PageRequest { limit: 1_000, after: None };
        let page = locks.list(self.names(), page).await.expect("list answers");
        page.keys.into_iter().map(|found| found.key).collect()
    }

    /// How much the backend stores.
    ///
    /// # Panics
    /// When the test gives no way to count it.
    pub async fn stored(&self) -> u64 {
        self.inner.backend.count_stored().await.expect(
            "a provider that declares Capability::Bounded lets its storage be counted: \
             TestBackend::stored",
        )
    }

    /// A question at the port, for an exclusive lease without waiting.
    pub fn request(&self, name: &str, ttl: Duration) -> AcquireRequest {
        AcquireRequest::new(Key::new(&self.key(name)).expect("a legal key"), ttl, self.now())
    }
}

/// The code of an error, or what came instead of one.
///
/// # Panics
/// When it is no error.
#[track_caller]
pub(super) fn code<T>(result: latchwork_lock::Result<T>) -> &'static str {
    match result {
        Ok(_) => panic!("an error was expected, and it went well"),
        Err(error) => error.code(),
    }
}
