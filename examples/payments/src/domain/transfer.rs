//! Authorized money was moved from one payment to another.

use chrono::{DateTime, Utc};

use super::{Amount, IdempotencyKey, PaymentId, RecordId};

/// The record of one transfer. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its name.
    pub id: RecordId,
    /// Which payment has less now.
    pub from: PaymentId,
    /// Which payment has more now.
    pub to: PaymentId,
    /// By which request; counted per payment that gives.
    pub idempotency_key: IdempotencyKey,
    /// How much.
    pub amount: Amount,
    /// When.
    pub transferred_at: DateTime<Utc>,
}
