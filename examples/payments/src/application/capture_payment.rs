//! The money of a payment is taken, once.

use std::sync::Arc;

use latchwork_lock::{LockStrategy, Locks, OnLoss};

use super::ports::{Changes, Fences, Store, TimeProvider, lock_key};
use super::{Error, Result};
use crate::domain::{Amount, Capture, IdempotencyKey, PaymentId, RecordId};

/// Captures authorized payments.
///
/// Two requests for one payment are never at work at the same time, and a request that comes again
/// gets the answer that it got before.
#[derive(Clone)]
pub struct CapturePayment<S> {
    locks: Locks,
    time: Arc<dyn TimeProvider>,
    store: S,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturePaymentRequest {
    /// Which payment.
    pub payment_id: PaymentId,
    /// By which the request is known when it comes again.
    pub idempotency_key: IdempotencyKey,
    /// How much: all that is authorized, or less.
    pub amount: Amount,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturePaymentResponse {
    /// The capture.
    pub capture: Capture,
    /// Whether it was made by an earlier request with the same key.
    pub replayed: bool,
}

impl<S: Store> CapturePayment<S> {
    /// The use case over these ports.
    pub fn new(locks: Locks, time: Arc<dyn TimeProvider>, store: S) -> Self {
        CapturePayment { locks, time, store }
    }

    /// Captures a payment, or tells again that it was. It waits for its turn as long as the locks'
    /// defaults say.
    ///
    /// Cancel safe: all of it has happened or nothing; ask again with the same key to learn which.
    ///
    /// # Errors
    /// In this order: those of the lock, [`IdempotencyConflict`](Error::IdempotencyConflict),
    /// [`PaymentNotFound`](Error::PaymentNotFound), those of [`Payment::capture`]; and
    /// [`StaleFence`](Error::StaleFence) when the lease ended on the way.
    ///
    /// [`Payment::capture`]: crate::domain::Payment::capture
    pub async fn execute(&self, request: CapturePaymentRequest) -> Result<CapturePaymentResponse> {
        let lock = self.locks.lock(lock_key(request.payment_id)).strategy(LockStrategy::Wait);
        // A lease that ends on the way must not hide whether the money was taken: the fence decides.
        let lock = lock.on_loss(OnLoss::Finish);
        lock.run(|held| self.alone(Fences::of([&*held]), request)).await?
    }

    /// What happens while nobody else is at this payment.
    pub(super) async fn alone(
        &self,
        fences: Fences,
        request: CapturePaymentRequest,
    ) -> Result<CapturePaymentResponse> {
        let CapturePaymentRequest { payment_id, idempotency_key, amount } = request;
        self.store.advance(&fences).await?;
        let now = self.time.now();

        if let Some(capture) = self.store.capture_by_key(payment_id, &idempotency_key).await? {
            return replay(capture, amount);
        }
        let payment = self.store.payment(payment_id).await?;
        let mut payment = payment.ok_or(Error::PaymentNotFound { id: payment_id })?;
        payment.capture(now, amount)?;

        let id = RecordId::random();
        let capture = Capture { id, payment_id, idempotency_key, amount, captured_at: now };
        let changes = Changes {
            payments: vec![payment],
            captures: vec![capture.clone()],
            ..Changes::default()
        };
        self.store.commit(&fences, changes).await?;
        Ok(CapturePaymentResponse { capture, replayed: false })
    }
}

fn replay(capture: Capture, amount: Amount) -> Result<CapturePaymentResponse> {
    if capture.amount == amount {
        return Ok(CapturePaymentResponse { capture, replayed: true });
    }
    Err(Error::IdempotencyConflict {
        id: capture.payment_id,
        key: capture.idempotency_key,
        stored: format!("a capture of {}", capture.amount),
        asked: format!("one of {amount}"),
    })
}
