//! A payment is asked for.

use latchwork_lock::{LockStrategy, Locks, OnLoss};

use super::ports::{Changes, Fences, Store, lock_key};
use super::{Error, Result};
use crate::domain::{Amount, Currency, Payment, PaymentId};

/// Creates pending payments.
#[derive(Clone, Debug)]
pub struct CreatePayment<S> {
    locks: Locks,
    store: S,
}

impl<S: Store> CreatePayment<S> {
    /// The use case over these ports.
    pub fn new(locks: Locks, store: S) -> Self {
        CreatePayment { locks, store }
    }

    /// Creates one under an id of the caller's, so that asking twice makes one payment.
    ///
    /// Cancel safe: it has happened or it has not.
    ///
    /// # Errors
    /// [`PaymentExists`](Error::PaymentExists), and those of the lock and the store.
    pub async fn execute(
        &self,
        id: PaymentId,
        amount: Amount,
        currency: Currency,
    ) -> Result<Payment> {
        let lock = self.locks.lock(lock_key(id)).strategy(LockStrategy::Wait);
        let payment = Payment::pending(id, amount, currency);
        lock.on_loss(OnLoss::Finish).run(|held| self.alone(Fences::of([&*held]), payment)).await?
    }

    async fn alone(&self, fences: Fences, payment: Payment) -> Result<Payment> {
        self.store.advance(&fences).await?;
        if self.store.payment(payment.id()).await?.is_some() {
            return Err(Error::PaymentExists { id: payment.id() });
        }
        let changes = Changes { payments: vec![payment.clone()], ..Changes::default() };
        self.store.commit(&fences, changes).await?;
        Ok(payment)
    }
}
