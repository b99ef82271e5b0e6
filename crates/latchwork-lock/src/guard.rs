//! A held lease that releases when it ends.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::renewal::{Renewal, Watchdog};
use crate::{Held, Lease, Result};

/// A lease that is held, and released when the guard ends.
///
/// What can be asked of it is on [`Held`], which it dereferences to. The guard does not stop you
/// from working on after the lease was lost: ask [`is_held`](Held::is_held), wait for
/// [`lost`](Held::lost) beside the work, and send the [`fence`](Held::fence) with each write.
///
/// Dropping it cannot wait for the backend: it queues the release (L21).
/// [`release`](Self::release) waits, and tells whether the lease held to the end.
#[must_use = "a guard that is not kept is released at once"]
pub struct Guard {
    held: Arc<Held>,
}

impl Guard {
    /// The guard of a lease that was granted.
    pub(crate) fn new(held: Held) -> Self {
        Guard { held: Arc::new(held) }
    }

    /// The same, with renewal where it was requested.
    ///
    /// The guard comes first: if there is no runtime for the watchdog, its drop releases the lease.
    pub(crate) fn renewing(held: Held, renewal: Option<Renewal>) -> Result<Self> {
        let guard = Guard::new(held);
        if let Some(renewal) = renewal {
            guard.keep_watchdog(Watchdog::start(guard.share(), renewal)?);
        }
        Ok(guard)
    }

    /// A handle to the lease, for others to look at while the guard is kept here.
    pub fn share(&self) -> Arc<Held> {
        self.held.clone()
    }

    /// Releases the lease and waits for the backend's answer.
    ///
    /// Cancel safe: dropped midway, the release is queued as by a drop.
    ///
    /// # Errors
    /// [`LockExpired`](crate::ErrorKind::LockExpired) or [`LockLost`](crate::ErrorKind::LockLost) when it
    /// did not hold to the end, so that somebody else may have been in meanwhile.
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the backend did not answer; the release is
    /// then queued, and the ttl ends what cannot be told.
    pub async fn release(self) -> Result<()> {
        let provider = self.locks.provider();
        let released = match provider.release_now(self.proof()) {
            Some(answer) => answer,
            None => provider.release(self.proof()).await,
        }?;
        self.ended(released)
    }

    /// The same where the provider answers at once; else none, and nothing has happened.
    pub(crate) fn release_now(&self) -> Option<Result<()>> {
        let released = self.locks.provider().release_now(self.proof())?;
        Some(released.and_then(|released| self.ended(released)))
    }

    fn ended(&self, released: bool) -> Result<()> {
        self.mark_ended();
        if released {
            self.mark_released();
            return Ok(());
        }
        self.mark_lost();
        Err(self.gone(self.locks.clock().now()))
    }

    /// Ends the guard but not the lease, which can then be stored and
    /// [resumed](crate::Locks::resume) in another process.
    ///
    /// It is a question to the backend, because some of them tie a lease to its process and must
    /// let go of that first.
    ///
    /// Cancel safe: dropped midway, the guard is released as by a drop.
    ///
    /// # Errors
    /// As for [`release`](Self::release); the guard is released then.
    pub async fn into_lease(self) -> Result<Lease> {
        self.locks.require(crate::Capability::HandOver)?;
        if !self.locks.provider().hand_over(self.proof()).await? {
            self.mark_lost();
            return Err(self.gone(self.locks.clock().now()));
        }
        self.mark_ended();
        Ok(self.lease())
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.locks.provider().release_later(self.proof());
        }
        // Nobody else can get a handle from now on, so a lone one needs no signal.
        if Arc::strong_count(&self.held) > 1 {
            self.stop_watchdog();
            if !self.has_ended() && self.is_held() {
                self.mark_released();
            }
            self.mark_lost();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&**self).finish()
    }
}
