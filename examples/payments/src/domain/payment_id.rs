//! Which payment.

use std::fmt;

use uuid::Uuid;

use super::InvalidValue;

/// A payment's name: a UUID.
///
/// However it was written, it is shown in the one canonical form, so that the same payment always
/// gives the same lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PaymentId(Uuid);

impl PaymentId {
    /// A new one.
    pub fn random() -> Self {
        PaymentId(uuid::Builder::from_random_bytes(rand::random()).into_uuid())
    }

    /// Reads a UUID in any of its usual forms, trimmed and in any case.
    ///
    /// # Errors
    /// When it is none, or the nil one, which names nothing.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let wrong = |reason: String| InvalidValue {
            what: "payment id",
            reason: format!("{reason}; write a UUID like 1b4e28ba-2fa1-4d2e-883f-0016d3cca427"),
            code: "invalid_payment_id",
        };
        let uuid = Uuid::try_parse(text.trim())
            .map_err(|error| wrong(format!("{} ({error})", shown(text))))?;
        if uuid.is_nil() {
            return Err(wrong("the nil UUID names no payment".to_owned()));
        }
        Ok(PaymentId(uuid))
    }
}

/// The beginning of what was given, which may be anything.
fn shown(text: &str) -> String {
    const MOST: usize = 48;
    let short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() {
        format!("{short:?}… is none")
    } else {
        format!("{short:?} is none")
    }
}

impl fmt::Display for PaymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for PaymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PaymentId({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_that_are_none_say_so() {
        let long = "x".repeat(10_000);
        for text in [
            "",
            " ",
            "payment-1",
            "1b4e28ba-2fa1-4d2e-883f-0016d3cca42",
            "1b4e28ba-2fa1-4d2e-883f-0016d3cca4277",
            "1b4e28ba-2fa1-4d2e-883f-0016d3cca42g",
            "1b4e 28ba-2fa1-4d2e-883f-0016d3cca427",
            "00000000-0000-0000-0000-000000000000",
            &long,
        ] {
            let error = PaymentId::parse(text).expect_err(text);
            assert_eq!(error.code, "invalid_payment_id");
            let said = error.to_string();
            assert!(said.contains("write a UUID like") && said.len() < 400, "{said}");
        }
    }

    #[test]
    fn new_ids_differ_and_are_read_back() {
        let (one, two) = (PaymentId::random(), PaymentId::random());
        assert_ne!(one, two);
        assert_eq!(PaymentId::parse(&one.to_string()), Ok(one));
    }

    proptest! {
        #[test]
        fn every_form_of_an_id_is_the_same_id(bits in 1..=u128::MAX) {
            let uuid = Uuid::from_u128(bits);
            let canonical = PaymentId(uuid).to_string();
            prop_assert_eq!(canonical.len(), 36);
            prop_assert_eq!(canonical.to_lowercase(), canonical.clone());
            for form in [
                canonical.clone(),
                canonical.to_uppercase(),
                uuid.simple().to_string(),
                uuid.braced().to_string(),
                uuid.urn().to_string(),
                format!(" {canonical}\n"),
            ] {
                prop_assert_eq!(PaymentId::parse(&form)?.to_string(), canonical.clone());
            }
        }
    }
}
