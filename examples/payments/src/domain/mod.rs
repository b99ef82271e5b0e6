//! What a payment is: no clock, no storage, no lock.

mod amount;
mod capture;
mod currency;
mod error;
mod idempotency_key;
mod payment;
mod payment_id;
mod record_id;
mod state;
mod transfer;

pub use amount::Amount;
pub use capture::Capture;
pub use currency::Currency;
pub use error::{DomainError, InvalidValue};
pub use idempotency_key::{IdempotencyKey, MAX_IDEMPOTENCY_KEY_CHARS};
pub use payment::{Payment, PaymentData};
pub use payment_id::PaymentId;
pub use record_id::RecordId;
pub use state::{PaymentState, table};
pub use transfer::Transfer;
