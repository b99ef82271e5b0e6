//! The bank has spoken.

use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{LockStrategy, Locks, OnLoss};

use super::ports::{Changes, Fences, Store, TimeProvider, lock_key};
use super::{Error, Result};
use crate::domain::{Payment, PaymentId};

/// Records what the bank said about pending payments.
#[derive(Clone)]
pub struct AuthorizePayment<S> {
    locks: Locks,
    time: Arc<dyn TimeProvider>,
    store: S,
}

/// What the bank said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It will pay.
    Approved {
        /// How long from now on.
        capture_window: Duration,
    },
    /// It will not.
    Declined,
}

impl<S: Store> AuthorizePayment<S> {
    /// The use case over these ports.
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Self {
        AuthorizePayment { locks, time, store }
    }

    /// Moves a payment to authorized or failed.
    ///
    /// Cancel safe: it has happened or it has not.
    ///
    /// # Errors
    /// [`PaymentNotFound`](Error::PaymentNotFound), those of the payment's rules, and those of the
    /// lock and the store.
    pub async fn execute(&self, id: PaymentId, decision: Decision) -> Result<Payment> {
        let lock = self.locks.lock(lock_key(id)).strategy(LockStrategy::Wait);
        let lock = lock.on_loss(OnLoss::Finish);
        lock.run(|held| self.alone(Fences::of([&*held]), id, decision)).await?
    }

    async fn alone(&self, fences: Fences, id: PaymentId, decision: Decision) -> Result<Payment> {
        self.store.advance(&fences).await?;
        let now = self.time.now();
        let payment = self.store.payment(id).await?;
        let mut payment = payment.ok_or(Error::PaymentNotFound { id })?;
        match decision {
            Decision::Approved { capture_window } => payment.authorize(now, capture_window)?,
            Decision::Declined => payment.fail()?,
        }
        let changes = Changes { payments: vec![payment.clone()], ..Changes::default() };
        self.store.commit(&fences, changes).await?;
        Ok(payment)
    }
}
