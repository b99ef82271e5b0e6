//! A provider under test.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::TestBackend;

/// All cases over one provider.
pub struct Suite {
    pub(super) name: &'static str,
    pub(super) provider: &'static str,
    pub(super) manual: bool,
    pub(super) source: Source,
}

/// Where the backends of a suite come from.
pub(super) enum Source {
    Factory(Factory),
    Missing(String),
}

/// Makes a backend for each case.
pub(super) type Factory = Arc<dyn Fn() -> BoxFuture<'static, TestBackend> + Send + Sync>;

/// All cases over the backends that a factory makes, one for each case.
pub fn suite<F>(name: &'static str, factory: impl Fn() -> F + Send + Sync + 'static) -> Suite
where
    F: Future<Output = TestBackend> + Send + 'static,
{
    let factory: Factory = Arc::new(move || Box::pin(factory()));
    Suite { name, provider: name, manual: false, source: Source::Factory(factory) }
}

/// A provider whose server is not there: one skipped test that says why, and a failure where the
/// environment variable `CI` is set, since there nobody reads what was skipped.
pub fn missing(name: &'static str, reason: impl Into<String>) -> Suite {
    Suite { name, provider: name, manual: false, source: Source::Missing(reason.into()) }
}

impl Suite {
    /// Names the provider of the matrix, where the suite has another name.
    #[must_use]
    pub fn of(self, provider: &'static str) -> Self {
        Suite { provider, ..self }
    }

    /// Says that the backends have a clock that is moved by hand: cases that need real time are
    /// left out.
    #[must_use]
    pub fn on_a_manual_clock(self) -> Self {
        Suite { manual: true, ..self }
    }
}
