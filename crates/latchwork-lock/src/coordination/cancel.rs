//! Tells a job that its caller has gone.
//!
//! A job on a thread of its own cannot be stopped from outside: it runs to its end although the
//! future that waits for it was dropped. A job that would grant something asks here first.

use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, Ordering};

/// Held by the caller. Dropped or [cancelled](Self::cancel), the job is told.
pub struct CancelOnDrop(Arc<AtomicBool>);

/// The job's side.
#[derive(Clone)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelOnDrop {
    /// A caller that waits.
    #[expect(clippy::new_without_default, reason = "to be made on purpose")]
    pub fn new() -> Self {
        CancelOnDrop(Arc::new(AtomicBool::new(false)))
    }

    /// For the job.
    pub fn flag(&self) -> CancelFlag {
        CancelFlag(self.0.clone())
    }

    /// The same as a drop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl CancelFlag {
    /// Whether the caller has gone.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel();
    }
}
