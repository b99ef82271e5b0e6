//! One error for all use cases, with a stable code.

use latchwork_lock::StaleFence;

use crate::domain::{DomainError, IdempotencyKey, InvalidValue, PaymentId};

/// The result of a use case.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a use case did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The payment's own rules refuse it.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// There is no such payment.
    #[error("there is no payment {id}: check the id, or create it first")]
    PaymentNotFound {
        /// Which one.
        id: PaymentId,
    },
    /// There is such a payment already.
    #[error("payment {id} is already there: take a new id for a new payment")]
    PaymentExists {
        /// Which one.
        id: PaymentId,
    },
    /// The key was used before, for another request.
    #[error(
        "the idempotency key {key} of payment {id} was used for {stored}, and this is {asked}: \
         take a new key for a new request"
    )]
    IdempotencyConflict {
        /// Of which payment.
        id: PaymentId,
        /// Which key.
        key: IdempotencyKey,
        /// What was asked for the first time.
        stored: String,
        /// What is asked for now.
        asked: String,
    },
    /// The lease ended while the request was at work, and somebody else has come since. Nothing
    /// was saved: ask again with the same idempotency key.
    #[error(transparent)]
    StaleFence(#[from] StaleFence),
    /// The lock was not got. The code is the lock's own.
    #[error(transparent)]
    Lock(#[from] latchwork_lock::Error),
    /// What is stored was not written by this program.
    #[error("what is stored cannot be read ({during}): {reason}")]
    Corrupt {
        /// What was tried.
        during: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The store did not do it.
    #[error("the store failed ({during}): {reason}")]
    Store {
        /// What was tried.
        during: &'static str,
        /// What is wrong.
        reason: String,
        /// Whether the same call may succeed later.
        temporary: bool,
        /// The driver's error.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// Every code of the service's own, with what it means. Besides them,
    /// [`code`](Self::code) gives those of [`latchwork_lock::Error`].
    pub const CODES: [(&'static str, &'static str); 19] = [
        ("invalid_payment_id", "the payment id is no UUID"),
        ("invalid_idempotency_key", "the key is not 1 to 64 of `A-Za-z0-9-_:./`"),
        ("invalid_amount", "the amount is not above zero, or too large"),
        ("invalid_currency", "the currency is not three letters"),
        ("invalid_capture_window", "the capture window is no span above zero"),
        ("payment_not_found", "there is no such payment"),
        ("payment_exists", "there is such a payment already"),
        ("payment_already_captured", "the payment was captured under another key"),
        ("payment_expired", "the capture window is closed"),
        ("illegal_transition", "the table of states does not allow this move"),
        ("amount_exceeds_authorized", "more was to be captured than is authorized"),
        ("payment_not_authorized", "only between authorized payments can be transferred"),
        ("transfer_to_itself", "a transfer names one payment twice"),
        ("transfer_too_large", "a transfer would leave nothing"),
        ("currency_mismatch", "the payments of a transfer are in two currencies"),
        ("idempotency_conflict", "the key was used for another request"),
        ("stale_fence", "the lease ended on the way; ask again with the same key"),
        ("corrupt_record", "what is stored contradicts itself"),
        ("store_failed", "the store did not do it"),
    ];

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Domain(error) => error.code(),
            Error::PaymentNotFound { .. } => "payment_not_found",
            Error::PaymentExists { .. } => "payment_exists",
            Error::IdempotencyConflict { .. } => "idempotency_conflict",
            Error::StaleFence(_) => StaleFence::CODE,
            Error::Lock(error) => error.code(),
            Error::Corrupt { .. } => "corrupt_record",
            Error::Store { .. } => "store_failed",
        }
    }

    /// Whether the same request, with the same idempotency key, may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::StaleFence(_) => true,
            Error::Lock(error) => error.is_temporary(),
            Error::Store { temporary, .. } => *temporary,
            _ => false,
        }
    }
}

impl From<InvalidValue> for Error {
    fn from(value: InvalidValue) -> Self {
        Error::Domain(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_readme_is_this_list() {
        let table: String = Error::CODES
            .iter()
            .map(|(code, meaning)| format!("| `{code}` | {meaning} |\n"))
            .collect();
        let page = include_str!("../../README.md");
        assert!(page.contains(&table), "README.md should have:\n{table}");
    }
}
