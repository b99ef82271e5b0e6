//! The money of a payment was taken.

use chrono::{DateTime, Utc};

use super::{Amount, IdempotencyKey, PaymentId, RecordId};

/// The record of one capture. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Its name.
    pub id: RecordId,
    /// Of which payment.
    pub payment_id: PaymentId,
    /// By which request.
    pub idempotency_key: IdempotencyKey,
    /// How much.
    pub amount: Amount,
    /// When.
    pub captured_at: DateTime<Utc>,
}
