//! A database under test.

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;

/// An empty database for one case.
pub struct TestBackend {
    pub(super) url: String,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl TestBackend {
    /// The database that an address names, which no other case uses.
    pub fn new(url: impl Into<String>) -> Self {
        TestBackend { url: url.into(), kept: Vec::new() }
    }

    /// Keeps something until the case is over, such as a temporary directory.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }
}

/// All cases over one database.
pub struct Suite {
    pub(super) name: &'static str,
    pub(super) source: Source,
}

/// Where the databases of a suite come from.
pub(super) enum Source {
    Factory(Factory),
    Missing(String),
}

/// Makes a database for each case.
pub(super) type Factory = Arc<dyn Fn() -> BoxFuture<'static, TestBackend> + Send + Sync>;

/// All cases over the databases that a factory makes, one for each case.
pub fn suite<F>(name: &'static str, factory: impl Fn() -> F + Send + Sync + 'static) -> Suite
where
    F: Future<Output = TestBackend> + Send + 'static,
{
    Suite { name, source: Source::Factory(Arc::new(move || Box::pin(factory()))) }
}

/// A database whose server is not there: one skipped test that says why, and a failure where the
/// environment variable `CI` is set.
pub fn missing(name: &'static str, reason: impl Into<String>) -> Suite {
    Suite { name, source: Source::Missing(reason.into()) }
}
