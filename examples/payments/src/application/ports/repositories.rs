//! Looking things up.

use std::future::Future;

use crate::application::Result;
use crate::domain::{Capture, IdempotencyKey, Payment, PaymentId, Transfer};

/// The payments.
pub trait PaymentRepository: Send + Sync {
    /// One of them, if it is there.
    fn payment(&self, id: PaymentId) -> impl Future<Output = Result<Option<Payment>>> + Send;
}

/// The captures.
pub trait CaptureRepository: Send + Sync {
    /// The capture that a request has made, if it has.
    fn capture_by_key(
        &self,
        payment: PaymentId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Capture>>> + Send;

    /// All captures of a payment; there should be one at most.
    fn captures_of(&self, payment: PaymentId) -> impl Future<Output = Result<Vec<Capture>>> + Send;
}

/// The transfers.
pub trait TransferRepository: Send + Sync {
    /// The transfer that a request has made from a payment, if it has.
    fn transfer_by_key(
        &self,
        from: PaymentId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Transfer>>> + Send;
}
