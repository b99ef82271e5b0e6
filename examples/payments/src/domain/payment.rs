//! The payment and its rules.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Amount, Currency, DomainError, InvalidValue, PaymentId, PaymentState, table};

/// A payment. Whatever it lets happen to itself is legal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment(PaymentData);

/// All that there is of a payment, to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentData {
    /// Its name.
    pub id: PaymentId,
    /// How much was asked for, and is authorized once it is.
    pub amount: Amount,
    /// Of what.
    pub currency: Currency,
    /// Where it stands.
    pub state: PaymentState,
    /// The first moment at which it is too late to capture; none before it is authorized.
    pub capture_expires_at: Option<DateTime<Utc>>,
    /// How much was captured, once it is.
    pub captured: Option<Amount>,
}

impl Payment {
    /// A new one, for which the bank is yet to be asked.
    pub fn pending(id: PaymentId, amount: Amount, currency: Currency) -> Self {
        Payment(PaymentData {
            id,
            amount,
            currency,
            state: PaymentState::Pending,
            capture_expires_at: None,
            captured: None,
        })
    }

    /// A payment that was stored.
    ///
    /// # Errors
    /// When what was stored contradicts itself.
    pub fn restore(data: PaymentData) -> Result<Self, InvalidValue> {
        use PaymentState::{Authorized, Captured, Failed, Pending};
        let window = data.capture_expires_at.is_some();
        let fits = match data.state {
            Pending => !window && data.captured.is_none(),
            Authorized => window && data.captured.is_none(),
            Captured => window && data.captured.is_some_and(|captured| captured <= data.amount),
            Failed => data.captured.is_none(),
        };
        if fits {
            return Ok(Payment(data));
        }
        Err(InvalidValue {
            what: "payment",
            reason: format!(
                "{} is stored as {}, and its window or captured amount contradicts that; \
                 restore its row",
                data.id, data.state
            ),
            code: "corrupt_record",
        })
    }

    /// All that there is of it.
    pub fn data(&self) -> &PaymentData {
        &self.0
    }

    /// Its name.
    pub fn id(&self) -> PaymentId {
        self.0.id
    }

    /// Where it stands.
    pub fn state(&self) -> PaymentState {
        self.0.state
    }

    /// The bank will pay, if it is asked to within the window.
    ///
    /// # Errors
    /// When the payment is not pending, or the window is none.
    pub fn authorize(&mut self, now: DateTime<Utc>, window: Duration) -> Result<(), DomainError> {
        let until = match chrono::Duration::from_std(window) {
            Ok(window) if !window.is_zero() => now.checked_add_signed(window),
            _ => None,
        };
        let Some(until) = until else {
            return Err(InvalidValue {
                what: "capture window",
                reason: format!("{window:?} is none; write a span above zero, such as seven days"),
                code: "invalid_capture_window",
            }
            .into());
        };
        self.becomes(PaymentState::Authorized)?;
        self.0.capture_expires_at = Some(until);
        Ok(())
    }

    /// The bank will not pay.
    ///
    /// # Errors
    /// When the payment is captured or failed.
    pub fn fail(&mut self) -> Result<(), DomainError> {
        self.becomes(PaymentState::Failed)
    }

    /// Whether it can be captured now.
    pub fn can_capture(&self, now: DateTime<Utc>) -> bool {
        self.state() == PaymentState::Authorized && self.in_window(now).is_ok()
    }

    /// Takes the money: all of it or a part, and only once.
    ///
    /// # Errors
    /// In this order: when the state does not allow it, when the window is closed, and when it is
    /// more than was authorized. Nothing has changed then.
    pub fn capture(&mut self, now: DateTime<Utc>, amount: Amount) -> Result<(), DomainError> {
        let id = self.id();
        if self.state() == PaymentState::Captured {
            return Err(DomainError::AlreadyCaptured { id });
        }
        self.may_become(PaymentState::Captured)?;
        self.in_window(now)?;
        if amount > self.0.amount {
            let authorized = self.0.amount;
            return Err(DomainError::AmountExceedsAuthorized { id, amount, authorized });
        }
        self.becomes(PaymentState::Captured)?;
        self.0.captured = Some(amount);
        Ok(())
    }

    /// Moves a part of what is authorized here to another payment.
    ///
    /// # Errors
    /// When one of the two is not authorized or its window is closed, when the currencies differ,
    /// and when nothing would stay. Nothing has changed then.
    pub fn transfer(
        &mut self,
        to: &mut Payment,
        now: DateTime<Utc>,
        amount: Amount,
    ) -> Result<(), DomainError> {
        let id = self.id();
        if id == to.id() {
            return Err(DomainError::TransferToItself { id });
        }
        for payment in [&*self, &*to] {
            if payment.state() != PaymentState::Authorized {
                let (id, state) = (payment.id(), payment.state());
                return Err(DomainError::NotAuthorized { id, state });
            }
            payment.in_window(now)?;
        }
        let (from, other) = (self.0.currency, to.0.currency);
        if from != other {
            return Err(DomainError::CurrencyMismatch { from, to: other });
        }
        let authorized = self.0.amount;
        let Some(left) = authorized.minus(amount) else {
            return Err(DomainError::TransferTooLarge { id, amount, authorized });
        };
        to.0.amount = to.0.amount.plus(amount)?;
        self.0.amount = left;
        Ok(())
    }

    fn in_window(&self, now: DateTime<Utc>) -> Result<(), DomainError> {
        match self.0.capture_expires_at {
            Some(closed_at) if now >= closed_at => {
                Err(DomainError::Expired { id: self.id(), closed_at, now })
            }
            _ => Ok(()),
        }
    }

    fn may_become(&self, state: PaymentState) -> Result<(), DomainError> {
        let illegal = |source| DomainError::IllegalMove { id: self.id(), source };
        table().check(&self.0.state, &state).map_err(illegal)
    }

    fn becomes(&mut self, state: PaymentState) -> Result<(), DomainError> {
        self.may_become(state)?;
        self.0.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn noon() -> DateTime<Utc> {
        "2026-01-01T12:00:00Z".parse().expect("a time")
    }

    fn amount(cents: i64) -> Amount {
        Amount::from_cents(cents).expect("above zero")
    }

    fn pending() -> Payment {
        let euro = Currency::parse("EUR").expect("a currency");
        Payment::pending(PaymentId::random(), amount(10_000), euro)
    }

    fn authorized() -> Payment {
        let mut payment = pending();
        payment.authorize(noon(), HOUR).expect("authorized");
        payment
    }

    /// The code of a refusal, which must have changed nothing.
    fn refused(
        payment: &mut Payment,
        change: impl FnOnce(&mut Payment) -> Result<(), DomainError>,
    ) -> &'static str {
        let before = payment.clone();
        let error = change(payment).expect_err("refused");
        assert_eq!(*payment, before, "{error}");
        error.code()
    }

    #[test]
    fn the_window_is_open_before_its_end_and_closed_at_it() {
        let end = noon() + HOUR;
        let nearly = end - chrono::Duration::nanoseconds(1);
        let mut payment = authorized();
        assert!(payment.can_capture(nearly) && !payment.can_capture(end));
        assert_eq!(refused(&mut payment, |p| p.capture(end, amount(1))), "payment_expired");
        payment.capture(nearly, amount(10_000)).expect("in time");
        assert_eq!(payment.data().captured, Some(amount(10_000)));
    }

    #[test]
    fn a_payment_is_captured_once_and_never_for_more() {
        let mut payment = authorized();
        let more = refused(&mut payment, |p| p.capture(noon(), amount(10_001)));
        assert_eq!(more, "amount_exceeds_authorized");
        payment.capture(noon(), amount(4_000)).expect("a part");
        let again = refused(&mut payment, |p| p.capture(noon(), amount(4_000)));
        assert_eq!(again, "payment_already_captured");
        let late = refused(&mut payment, |p| p.capture(noon() + HOUR, amount(1)));
        assert_eq!(late, "payment_already_captured", "the state is looked at before the window");
    }

    #[test]
    fn illegal_moves_say_what_is_legal() {
        let error = pending().capture(noon(), amount(1)).expect_err("pending");
        assert_eq!(error.code(), "illegal_transition");
        let said = "pending cannot become captured; from pending it can become authorized, failed";
        assert!(error.to_string().contains(said), "{error}");
        let mut failed = authorized();
        failed.fail().expect("the bank may change its mind");
        assert_eq!(refused(&mut failed, |p| p.capture(noon(), amount(1))), "illegal_transition");
        assert_eq!(refused(&mut failed, |p| p.authorize(noon(), HOUR)), "illegal_transition");
        assert_eq!(refused(&mut failed, Payment::fail), "illegal_transition");
    }

    #[test]
    fn a_window_must_be_one() {
        for window in [Duration::ZERO, Duration::MAX, Duration::from_secs(u64::MAX / 1_000)] {
            let code = refused(&mut pending(), |p| p.authorize(noon(), window));
            assert_eq!(code, "invalid_capture_window");
        }
    }

    #[test]
    fn a_transfer_moves_and_makes_nothing() {
        let (mut from, mut to) = (authorized(), authorized());
        from.transfer(&mut to, noon(), amount(9_999)).expect("something stays");
        assert_eq!((from.data().amount, to.data().amount), (amount(1), amount(19_999)));
        let code = refused(&mut from, |p| p.transfer(&mut to, noon(), amount(1)));
        assert_eq!(code, "transfer_too_large");
        let code = refused(&mut to, |p| p.transfer(&mut pending(), noon(), amount(1)));
        assert_eq!(code, "payment_not_authorized");
        let code = refused(&mut to, |p| p.transfer(&mut p.clone(), noon(), amount(1)));
        assert_eq!(code, "transfer_to_itself");
        let code = refused(&mut to, |p| p.transfer(&mut authorized(), noon() + HOUR, amount(1)));
        assert_eq!(code, "payment_expired");
        let yen = Currency::parse("JPY").expect("a currency");
        let mut other = Payment::pending(PaymentId::random(), amount(5), yen);
        other.authorize(noon(), HOUR).expect("authorized");
        let code = refused(&mut to, |p| p.transfer(&mut other, noon(), amount(1)));
        assert_eq!(code, "currency_mismatch");
    }

    #[test]
    fn what_contradicts_itself_is_not_restored() {
        let good = authorized().data().clone();
        assert!(Payment::restore(good.clone()).is_ok());
        for wrong in [
            PaymentData { capture_expires_at: None, ..good.clone() },
            PaymentData { captured: Some(amount(1)), ..good.clone() },
            PaymentData { state: PaymentState::Pending, ..good.clone() },
            PaymentData { state: PaymentState::Captured, ..good.clone() },
            PaymentData {
                state: PaymentState::Captured,
                captured: Some(amount(10_001)),
                ..good.clone()
            },
        ] {
            assert_eq!(Payment::restore(wrong).expect_err("wrong").code, "corrupt_record");
        }
    }
}
