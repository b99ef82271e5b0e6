//! Of what.

use std::fmt;

use super::InvalidValue;

/// A currency by its three letters, as ISO 4217 writes them. Whether there is such a currency is
/// for the service that settles the payment to know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    /// Reads three letters, trimmed and in any case.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        match text.trim().as_bytes() {
            &[a, b, c] if [a, b, c].iter().all(u8::is_ascii_alphabetic) => {
                Ok(Currency([a, b, c].map(|letter| letter.to_ascii_uppercase())))
            }
            _ => Err(InvalidValue {
                what: "currency",
                reason: format!("{text:?} is not three letters; write it like EUR"),
                code: "invalid_currency",
            }),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| write!(f, "{}", char::from(*letter)))
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Currency({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_currency_is_three_letters() {
        for text in ["EUR", "eur", " Eur\n"] {
            assert_eq!(Currency::parse(text).expect(text).to_string(), "EUR");
        }
        for text in ["", "EU", "EURO", "E R", "E1R", "€UR", "€"] {
            let error = Currency::parse(text).expect_err(text);
            assert_eq!(error.code, "invalid_currency");
            assert!(error.to_string().contains("EUR"), "{error}");
        }
    }
}
