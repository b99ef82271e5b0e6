//! Authorized money is moved from one payment to another.

use std::sync::Arc;

use latchwork_lock::{LockStrategy, Locks};

use super::ports::{Changes, Fences, Store, TimeProvider, lock_key};
use super::{Error, Result};
use crate::domain::{Amount, DomainError, IdempotencyKey, PaymentId, RecordId, Transfer};

/// Moves what is authorized between payments, such as when an order is split.
///
/// It needs two locks. They are taken in the order of their keys, whatever the direction of the
/// transfer, so that two transfers which cross never wait for each other in a circle.
#[derive(Clone)]
pub struct TransferAmount<S> {
    locks: Locks,
    time: Arc<dyn TimeProvider>,
    store: S,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferAmountRequest {
    /// Which payment gives.
    pub from: PaymentId,
    /// Which payment gets.
    pub to: PaymentId,
    /// By which the request is known when it comes again, among those of the payment that gives.
    pub idempotency_key: IdempotencyKey,
    /// How much: less than all.
    pub amount: Amount,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferAmountResponse {
    /// The transfer.
    pub transfer: Transfer,
    /// Whether it was made by an earlier request with the same key.
    pub replayed: bool,
}

impl TransferAmountRequest {
    /// The keys of both locks.
    ///
    /// # Errors
    /// When both are the same.
    pub(super) fn lock_keys(&self) -> Result<[String; 2]> {
        if self.from == self.to {
            return Err(DomainError::TransferToItself { id: self.from }.into());
        }
        Ok([lock_key(self.from), lock_key(self.to)])
    }
}

impl<S: Store> TransferAmount<S> {
    /// The use case over these ports.
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Self {
        TransferAmount { locks, time, store }
    }

    /// Transfers, or tells again that it was done.
    ///
    /// Cancel safe: all of it has happened or nothing; ask again with the same key to learn which.
    ///
    /// # Errors
    /// As for a capture, with those of [`Payment::transfer`](crate::domain::Payment::transfer).
    pub async fn execute(&self, request: TransferAmountRequest) -> Result<TransferAmountResponse> {
        // Sorted and all or none, by the lock layer.
        let locks = self.locks.lock_all(request.lock_keys()?).strategy(LockStrategy::Wait);
        let guards = locks.acquire().await?;
        let out = self.alone(Fences::of(guards.iter()), request).await;
        // Whatever it says of the leases, the fences have decided.
        let _ = guards.release().await;
        out
    }

    /// What happens while nobody else is at these payments.
    pub(super) async fn alone(
        &self,
        fences: Fences,
        request: TransferAmountRequest,
    ) -> Result<TransferAmountResponse> {
        let TransferAmountRequest { from, to, idempotency_key, amount } = request;
        self.store.advance(&fences).await?;
        let now = self.time.now();

        if let Some(transfer) = self.store.transfer_by_key(from, &idempotency_key).await? {
            return replay(transfer, to, amount);
        }
        let mut giver = self.existing(from).await?;
        let mut getter = self.existing(to).await?;
        giver.transfer(&mut getter, now, amount)?;

        let id = RecordId::random();
        let transfer = Transfer { id, from, to, idempotency_key, amount, transferred_at: now };
        let changes = Changes {
            payments: vec![giver, getter],
            transfers: vec![transfer.clone()],
            ..Changes::default()
        };
        self.store.commit(&fences, changes).await?;
        Ok(TransferAmountResponse { transfer, replayed: false })
    }

    async fn existing(&self, id: PaymentId) -> Result<crate::domain::Payment> {
        self.store.payment(id).await?.ok_or(Error::PaymentNotFound { id })
    }
}

fn replay(transfer: Transfer, to: PaymentId, amount: Amount) -> Result<TransferAmountResponse> {
    if transfer.to == to && transfer.amount == amount {
        return Ok(TransferAmountResponse { transfer, replayed: true });
    }
    Err(Error::IdempotencyConflict {
        id: transfer.from,
        key: transfer.idempotency_key,
        stored: format!("a transfer of {} to {}", transfer.amount, transfer.to),
        asked: format!("one of {amount} to {to}"),
    })
}
