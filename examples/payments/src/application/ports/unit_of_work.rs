//! Saving things, all or none, and only for who still holds the lock.

use std::future::Future;

use super::Fences;
use crate::application::Result;
use crate::domain::{Capture, Payment, Transfer};

/// What a use case wants saved.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Payments as they are now.
    pub payments: Vec<Payment>,
    /// New captures.
    pub captures: Vec<Capture>,
    /// New transfers.
    pub transfers: Vec<Transfer>,
}

/// Saves in transactions that a fence guards.
///
/// Its implementations trust the lock: they do not look whether anybody changed something since it
/// was read, only whether who writes may still do so.
pub trait UnitOfWork: Send + Sync {
    /// Says on entering who writes from now on, so that a holder from before can no longer.
    ///
    /// Without it, a late writer could still slip in between what the new holder reads and what
    /// it writes.
    ///
    /// Cancel safe: it has happened or it has not, and either is fine.
    ///
    /// # Errors
    /// [`StaleFence`](crate::application::Error::StaleFence) when somebody newer was here.
    fn advance(&self, fences: &Fences) -> impl Future<Output = Result<()>> + Send;

    /// Saves everything in one transaction, and checks the fences in the same.
    ///
    /// Dropped midway, all of it is saved or nothing; who asks again with the same idempotency key
    /// learns which.
    ///
    /// # Errors
    /// [`StaleFence`](crate::application::Error::StaleFence) when somebody newer was here. Nothing
    /// was saved then.
    fn commit(&self, fences: &Fences, changes: Changes) -> impl Future<Output = Result<()>> + Send;
}
