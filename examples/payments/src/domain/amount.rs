//! How much: whole cents, above zero.

use std::fmt;

use super::InvalidValue;

/// An amount above zero, in whole cents of the payment's [`Currency`](super::Currency).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i64);

impl Amount {
    /// So many cents.
    ///
    /// # Errors
    /// When it is nothing or less.
    pub fn from_cents(cents: i64) -> Result<Self, InvalidValue> {
        if cents > 0 {
            return Ok(Amount(cents));
        }
        Err(invalid(format!("{cents} cents are not above zero")))
    }

    /// In cents.
    pub fn cents(self) -> i64 {
        self.0
    }

    /// Both together.
    ///
    /// # Errors
    /// When that is more than can be counted.
    pub fn plus(self, other: Amount) -> Result<Self, InvalidValue> {
        let sum = self.0.checked_add(other.0);
        sum.map(Amount).ok_or_else(|| invalid(format!("{self} and {other} are too much together")))
    }

    /// What is left, if anything is.
    pub fn minus(self, other: Amount) -> Option<Self> {
        Amount::from_cents(self.0 - other.0).ok()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:02}", self.0 / 100, self.0 % 100))
    }
}

fn invalid(reason: String) -> InvalidValue {
    InvalidValue { what: "amount", reason, code: "invalid_amount" }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_amount_is_above_zero() {
        for cents in [0, -1, i64::MIN] {
            let error = Amount::from_cents(cents).expect_err("not above zero");
            assert_eq!(error.code, "invalid_amount");
            assert!(error.to_string().contains(&cents.to_string()), "{error}");
        }
        for (cents, shown) in [(1, "0.01"), (100, "1.00"), (12_345, "123.45")] {
            assert_eq!(Amount::from_cents(cents).expect("above zero").to_string(), shown);
        }
        let most = Amount::from_cents(i64::MAX).expect("above zero");
        assert!(most.plus(most).expect_err("too much").to_string().contains("too much"));
    }

    proptest! {
        #[test]
        fn nothing_is_made_or_lost_between_two(a in 1..i64::MAX / 2, b in 1..i64::MAX / 2) {
            let (a, b) = (Amount::from_cents(a)?, Amount::from_cents(b)?);
            let sum = a.plus(b)?;
            prop_assert_eq!(sum.minus(b), Some(a));
            prop_assert_eq!(a.minus(sum), None);
            prop_assert_eq!(a.minus(a), None);
            let shown = sum.to_string().replace('.', "");
            prop_assert_eq!(shown.parse::<i64>()?, sum.cents());
        }
    }
}
