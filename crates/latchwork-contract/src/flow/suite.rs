//! A store under test.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::TestBackend;

/// All cases over one store.
pub struct Suite {
    pub(super) name: &'static str,
    pub(super) source: Source,
}

/// Where the stores of a suite come from.
pub(super) enum Source {
    Factory(Factory),
    Missing(String),
}

/// Makes a store for each case.
pub(super) type Factory = Arc<dyn Fn() -> BoxFuture<'static, TestBackend> + Send + Sync>;

/// All cases over the stores that a factory makes, one for each case.
pub fn suite<F>(name: &'static str, factory: impl Fn() -> F + Send + Sync + 'static) -> Suite
where
    F: Future<Output = TestBackend> + Send + 'static,
{
    Suite { name, source: Source::Factory(Arc::new(move || Box::pin(factory()))) }
}

/// A store whose server is not there: one skipped test that says why, and a failure where the
/// environment variable `CI` is set.
pub fn missing(name: &'static str, reason: impl Into<String>) -> Suite {
    Suite { name, source: Source::Missing(reason.into()) }
}
