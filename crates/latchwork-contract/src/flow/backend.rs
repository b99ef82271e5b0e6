//! What a store's test file gives: a store of its own for one case.

use std::any::Any;
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_flow::{ContextStore, Contexts, Result};
use latchwork_lock::ManualClock;

/// A store for one case, and how to connect to it.
pub struct TestBackend {
    connect: Box<dyn Fn() -> BoxFuture<'static, Result<Contexts>> + Send + Sync>,
    unit: Duration,
    clock: Option<ManualClock>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl TestBackend {
    /// An empty store to which `connect` makes a new, independent connection each time.
    pub fn new<T, C>(connect: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        T: ContextStore,
        C: Future<Output = Result<T>> + Send + 'static,
    {
        let connect = move || -> BoxFuture<'static, Result<Contexts>> {
            let connecting = connect();
            Box::pin(async move { connecting.await.map(Contexts::new) })
        };
        let unit = Duration::from_millis(300);
        TestBackend { connect: Box::new(connect), unit, clock: None, kept: Vec::new() }
    }

    /// The shortest sensible run-lease, of which the cases make their spans; 300 ms unless told.
    #[must_use]
    pub fn unit(self, unit: Duration) -> Self {
        TestBackend { unit, ..self }
    }

    /// The store's clock, where the case may move it.
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

    pub(super) async fn connect(&self) -> Result<Contexts> {
        (self.connect)().await
    }

    pub(super) fn span_unit(&self) -> Duration {
        self.unit
    }

    pub(super) fn manual_clock(&self) -> Option<&ManualClock> {
        self.clock.as_ref()
    }
}
