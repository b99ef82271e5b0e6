//! What a payment refuses, and why.

use chrono::{DateTime, SecondsFormat, Utc};

use super::{Amount, Currency, PaymentId, PaymentState};

/// A value that is none of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what}: {reason}")]
#[non_exhaustive]
pub struct InvalidValue {
    /// Of which kind it should have been.
    pub what: &'static str,
    /// What is wrong with it, and what would be right.
    pub reason: String,
    /// The stable code.
    pub code: &'static str,
}

/// What the rules of a payment refuse.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// A value is none of its kind.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The payment was captured before, under another idempotency key.
    #[error("payment {id} is already captured; a payment is captured once")]
    AlreadyCaptured {
        /// Which one.
        id: PaymentId,
    },
    /// The time to use what was authorized is over.
    #[error(
        "payment {id} expired: its window closed at {}, and it is {}; have it authorized anew",
        time(closed_at),
        time(now)
    )]
    Expired {
        /// Which one.
        id: PaymentId,
        /// The first moment at which it was too late.
        closed_at: DateTime<Utc>,
        /// When it was tried.
        now: DateTime<Utc>,
    },
    /// The table of states does not allow this move.
    #[error("{source} ({id})")]
    IllegalMove {
        /// Which one.
        id: PaymentId,
        /// What the table says: from, to, and what is allowed.
        source: latchwork_flow::Error,
    },
    /// More was to be captured than was authorized.
    #[error("payment {id}: {amount} cannot be captured, since {authorized} is authorized")]
    AmountExceedsAuthorized {
        /// Which one.
        id: PaymentId,
        /// What was asked for.
        amount: Amount,
        /// The most that can be.
        authorized: Amount,
    },
    /// Only what is authorized and not yet captured can be transferred.
    #[error("payment {id} is {state}; only between authorized payments can be transferred")]
    NotAuthorized {
        /// Which one.
        id: PaymentId,
        /// What it is instead.
        state: PaymentState,
    },
    /// A transfer names one payment twice.
    #[error("payment {id} cannot be transferred to itself; name two payments")]
    TransferToItself {
        /// Which one.
        id: PaymentId,
    },
    /// A transfer would leave nothing.
    #[error(
        "payment {id}: {amount} cannot be transferred, since it has {authorized} \
         and something must stay"
    )]
    TransferTooLarge {
        /// From which one.
        id: PaymentId,
        /// What was asked for.
        amount: Amount,
        /// What it has.
        authorized: Amount,
    },
    /// The payments of a transfer are in two currencies.
    #[error("{from} cannot be transferred to a payment in {to}: nothing is exchanged here")]
    CurrencyMismatch {
        /// The currency of the one.
        from: Currency,
        /// The currency of the other.
        to: Currency,
    },
}

impl DomainError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            DomainError::Invalid(value) => value.code,
            DomainError::AlreadyCaptured { .. } => "payment_already_captured",
            DomainError::Expired { .. } => "payment_expired",
            DomainError::IllegalMove { source, .. } => source.code(),
            DomainError::AmountExceedsAuthorized { .. } => "amount_exceeds_authorized",
            DomainError::NotAuthorized { .. } => "payment_not_authorized",
            DomainError::TransferToItself { .. } => "transfer_to_itself",
            DomainError::TransferTooLarge { .. } => "transfer_too_large",
            DomainError::CurrencyMismatch { .. } => "currency_mismatch",
        }
    }
}

fn time(at: &DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}
