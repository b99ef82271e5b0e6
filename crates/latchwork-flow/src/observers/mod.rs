//! Those who watch (F10).
//!
//! An observer is told at the spot, between two steps and often under the lock: it should be quick.
//! What takes time belongs behind a [`ChannelObserver`], whose other end may be as slow as it likes.
//! An observer that panics is told about in the log, and harms nobody.

mod channel;
#[cfg(feature = "metrics")]
mod metrics;
mod tracing;

pub use channel::ChannelObserver;
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
pub use tracing::TracingObserver;

use crate::{Event, State};

/// Watches transitions. Any closure of the right shape is one.
pub trait Observer<S: State>: Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, event: &Event<'_, S>);
}

impl<S, F> Observer<S> for F
where
    S: State,
    F: Fn(&Event<'_, S>) + Send + Sync + 'static,
{
    fn observe(&self, event: &Event<'_, S>) {
        self(event);
    }
}
