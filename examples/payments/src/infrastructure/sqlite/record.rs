//! From rows to what they mean. A row may have been written by anybody, so each value is checked
//! as if it came from outside.

use chrono::{DateTime, SecondsFormat, Utc};

use super::error::corrupt;
use crate::application::Result;
use crate::domain::{
    Amount, Capture, Currency, IdempotencyKey, InvalidValue, Payment, PaymentData, PaymentId,
    PaymentState, RecordId, Transfer,
};

/// amount, currency, state, end of the window, captured amount
pub(super) type PaymentRow = (i64, String, String, Option<String>, Option<i64>);

/// key, id, amount, time
pub(super) type CaptureRow = (String, String, i64, String);

/// id, to, amount, time
pub(super) type TransferRow = (String, String, i64, String);

pub(super) fn payment(id: PaymentId, row: PaymentRow) -> Result<Payment> {
    const DURING: &str = "reading a payment";
    let wrong = corrupt::<InvalidValue>(DURING);
    let (amount, currency, state, window, captured) = row;
    let unknown = || corrupt(DURING)(format!("{id} has the state {state:?}, which there is not"));
    Payment::restore(PaymentData {
        id,
        amount: Amount::from_cents(amount).map_err(&wrong)?,
        currency: Currency::parse(&currency).map_err(&wrong)?,
        state: PaymentState::parse(&state).ok_or_else(unknown)?,
        capture_expires_at: window.map(|at| time(DURING, &at)).transpose()?,
        captured: captured.map(Amount::from_cents).transpose().map_err(&wrong)?,
    })
    .map_err(wrong)
}

pub(super) fn capture(payment_id: PaymentId, row: CaptureRow) -> Result<Capture> {
    const DURING: &str = "reading a capture";
    let wrong = corrupt::<InvalidValue>(DURING);
    let (key, id, amount, at) = row;
    Ok(Capture {
        id: RecordId::parse(&id).map_err(corrupt(DURING))?,
        payment_id,
        idempotency_key: IdempotencyKey::parse(&key).map_err(&wrong)?,
        amount: Amount::from_cents(amount).map_err(&wrong)?,
        captured_at: time(DURING, &at)?,
    })
}

pub(super) fn transfer(
    from: PaymentId,
    key: &IdempotencyKey,
    row: TransferRow,
) -> Result<Transfer> {
    const DURING: &str = "reading a transfer";
    let wrong = corrupt::<InvalidValue>(DURING);
    let (id, to, amount, at) = row;
    Ok(Transfer {
        id: RecordId::parse(&id).map_err(corrupt(DURING))?,
        from,
        to: PaymentId::parse(&to).map_err(&wrong)?,
        idempotency_key: key.clone(),
        amount: Amount::from_cents(amount).map_err(&wrong)?,
        transferred_at: time(DURING, &at)?,
    })
}

/// A time as it is stored.
pub(super) fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Nanos, true)
}

fn time(during: &'static str, text: &str) -> Result<DateTime<Utc>> {
    text.parse().map_err(|error| corrupt(during)(format!("{text:?} is no time ({error})")))
}
