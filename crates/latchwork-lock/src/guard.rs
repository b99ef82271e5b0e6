//! A held lease that releases when it ends.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::held_box::HeldBox;
use crate::renewal::{Renewal, Watchdog};
use crate::{Held, Lease, LeaseWatch, Result};

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
    held: Cell,
}

/// Behind a pointer, because a guard is moved about more often than it is looked at; a counted
/// one only when a watchdog or a closure needs it too.
enum Cell {
    Own(HeldBox),
    Shared(Arc<Held>),
}

impl Guard {
    /// The guard of a lease that was granted.
    #[inline]
    pub(crate) fn new(held: HeldBox) -> Self {
        Guard { held: Cell::Own(held) }
    }

    /// The same, with renewal where it was asked for.
    #[inline]
    pub(crate) fn renewing(held: HeldBox, renewal: Option<Renewal>) -> Result<Self> {
        match renewal {
            None => Ok(Guard::new(held)),
            renewal => Guard::shared(held, renewal).map(|(guard, _)| guard),
        }
    }

    /// The same, with a handle for others to look at.
    pub(crate) fn shared(held: HeldBox, renewal: Option<Renewal>) -> Result<(Self, Arc<Held>)> {
        let held: Arc<Held> = Arc::new(held.into_inner());
        // The guard comes first: if there is nobody to run the watchdog, it gives the lease back.
        let guard = Guard { held: Cell::Shared(held.clone()) };
        if let Some(renewal) = renewal {
            held.keep_watchdog(Watchdog::start(held.clone(), renewal)?);
        }
        Ok((guard, held))
    }

    /// What can be asked of the lease, for others to look at while the guard is kept here.
    pub fn share(&mut self) -> Arc<Held> {
        if let Cell::Own(held) = &mut self.held {
            self.held = Cell::Shared(Arc::new(held.take()));
        }
        match &self.held {
            Cell::Shared(held) => held.clone(),
            Cell::Own(_) => unreachable!("it was replaced just now"),
        }
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
        Err(self.gone(self.locks.clock().now()))
    }

    /// A look at the lease for others, who may keep it.
    pub fn watch(&self) -> LeaseWatch {
        match &self.held {
            Cell::Shared(held) => LeaseWatch::shared(held.clone()),
            Cell::Own(held) => {
                LeaseWatch::until(held.locks.clock(), held.trusted_until(), held.fence())
            }
        }
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
            return Err(self.gone(self.locks.clock().now()));
        }
        self.mark_ended();
        Ok(self.lease())
    }
}

impl Deref for Guard {
    type Target = Held;

    #[inline]
    fn deref(&self) -> &Held {
        match &self.held {
            Cell::Own(held) => held,
            Cell::Shared(held) => held,
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if !self.has_ended() {
            self.locks.provider().release_later(self.proof());
        }
        if let Cell::Shared(held) = &self.held {
            held.stop_watchdog();
            // For those who still look.
            if !held.has_ended() && held.is_held() {
                held.mark_released();
            }
            held.mark_lost();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&**self).finish()
    }
}
