//! What a provider's test file gives: a backend of its own for one case.

use std::any::Any;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use latchwork_lock::provider::LockProvider;
use latchwork_lock::{ManualClock, Result};

use super::Client;

/// A backend for one case, and how to connect to it.
pub struct TestBackend {
    connect: Box<dyn Fn() -> BoxFuture<'static, Result<Client>> + Send + Sync>,
    unit: Duration,
    slowness: usize,
    clock: Option<ManualClock>,
    stored: Option<Count>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

type Count = Box<dyn Fn() -> BoxFuture<'static, u64> + Send + Sync>;

impl TestBackend {
    /// A backend to which `connect` makes a new, independent connection each time.
    pub fn new<P, C>(connect: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        P: LockProvider,
        C: Future<Output = Result<P>> + Send + 'static,
    {
        let connect = move || -> BoxFuture<'static, Result<Client>> {
            let connecting = connect();
            Box::pin(async move { connecting.await.map(Client::new) })
        };
        TestBackend {
            connect: Box::new(connect),
            unit: Duration::from_millis(300),
            slowness: 1,
            clock: None,
            stored: None,
            kept: Vec::new(),
        }
    }

    /// Counts what the backend stores of holders and waiters, for all keys together: rows, entries,
    /// files, but no record that only keeps a key's fence. A provider that promises to be
    /// [bounded](latchwork_lock::Capability::Bounded) must give it: nothing is left of keys that nobody
    /// uses, and a listing does not show what it leaves out.
    #[must_use]
    pub fn stored<C>(self, count: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        C: Future<Output = u64> + Send + 'static,
    {
        TestBackend { stored: Some(Box::new(move || count().boxed())), ..self }
    }

    /// The shortest sensible ttl, of which the cases make their spans; 300 ms unless told. A
    /// backend that counts in seconds needs more.
    #[must_use]
    pub fn unit(self, unit: Duration) -> Self {
        TestBackend { unit, ..self }
    }

    /// How many times fewer rounds the cases do that lock again and again, and how many times more patient
    /// their short waits are: for a backend on which a lock takes tens of milliseconds. One unless told.
    #[must_use]
    pub fn slowness(self, slowness: usize) -> Self {
        TestBackend { slowness: slowness.max(1), ..self }
    }

    /// The clock of the backend *and* of its clients, where the case may move it.
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        TestBackend { clock: Some(clock), ..self }
    }

    /// Keeps something until the case is over, such as a temporary directory.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    pub(super) async fn connect(&self) -> Result<Client> {
        (self.connect)().await
    }

    pub(super) async fn count_stored(&self) -> Option<u64> {
        match &self.stored {
            Some(count) => Some(count().await),
            None => None,
        }
    }

    pub(super) fn ttl_unit(&self) -> Duration {
        self.unit
    }

    pub(super) fn times_slower(&self) -> usize {
        self.slowness
    }

    pub(super) fn manual_clock(&self) -> Option<&ManualClock> {
        self.clock.as_ref()
    }
}
