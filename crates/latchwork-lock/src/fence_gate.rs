//! The other half of a fence: who refuses a write that comes too late (L20).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Fence;

/// Refuses a write that carries an older fence than one already seen for its key.
///
/// This is what makes a lease safe against a holder that was stopped past its end and goes on
/// without knowing. Put it where the write is: this one guards state in memory; those for
/// databases are one statement in the write's own transaction. For exclusive leases only: fences
/// of concurrent shared leases say nothing about each other.
///
/// ```
/// use latchwork_lock::{Fence, FenceGate};
///
/// let gate = FenceGate::new();
/// gate.advance("order:1", Fence::new(7)).unwrap();       // on acquiring: the refusal is certain from here
/// assert!(gate.check("order:1", Fence::new(7)).is_ok());
/// assert!(gate.check("order:1", Fence::new(6)).is_err()); // a holder from before
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    seen: Mutex<HashMap<String, Fence>>,
}

/// A write came with a fence older than one already seen: it must not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a write to {key:?} with fence {fence} is refused: fence {newest} was seen, \
     so the lease that it was made under has ended"
)]
#[non_exhaustive]
pub struct StaleFence {
    /// What was to be written.
    pub key: String,
    /// The fence that came with the write.
    pub fence: Fence,
    /// The newest fence seen.
    pub newest: Fence,
}

impl StaleFence {
    /// The stable code, its meaning, and that trying again will not help.
    pub(crate) const ROW: (&'static str, &'static str, bool) =
        ("stale_fence", "a write came with a fence older than one already seen", false);

    /// The stable code.
    pub const CODE: &'static str = Self::ROW.0;
}

impl FenceGate {
    /// A gate that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a fence pass that is not older than the newest seen, and remembers it.
    ///
    /// # Errors
    /// [`StaleFence`] for an older one.
    pub fn check(&self, key: &str, fence: Fence) -> Result<(), StaleFence> {
        self.write(key, fence, || ())
    }

    /// The same, said on acquiring, so that older holders are refused from now on and not only
    /// from the first write on.
    ///
    /// # Errors
    /// [`StaleFence`] when somebody newer was here already: the lease is not the last one.
    pub fn advance(&self, key: &str, fence: Fence) -> Result<(), StaleFence> {
        self.check(key, fence)
    }

    /// Checks the fence and writes as one step: no newer holder comes in between.
    ///
    /// # Errors
    /// [`StaleFence`] for an older one; nothing was written then.
    pub fn write<T>(
        &self,
        key: &str,
        fence: Fence,
        write: impl FnOnce() -> T,
    ) -> Result<T, StaleFence> {
        let mut seen = self.seen.lock();
        match seen.get_mut(key) {
            Some(newest) if *newest > fence => {
                return Err(StaleFence { key: key.to_owned(), fence, newest: *newest });
            }
            Some(newest) => *newest = fence,
            None => {
                seen.insert(key.to_owned(), fence);
            }
        }
        Ok(write())
    }

    /// Forgets a key whose resource is gone for good.
    pub fn forget(&self, key: &str) {
        self.seen.lock().remove(key);
    }
}
