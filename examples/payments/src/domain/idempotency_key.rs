//! By which a request is known when it comes again.

use std::fmt;

use super::InvalidValue;

/// How long a key may be.
pub const MAX_IDEMPOTENCY_KEY_CHARS: usize = 64;

/// The caller's name for one request: who asks again with the same one gets the same answer.
///
/// 1 to 64 of the characters `A-Z a-z 0-9 - _ : . /`; blanks around it do not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    /// Reads a key.
    ///
    /// # Errors
    /// When it is empty, too long, or has other characters.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let key = text.trim();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_:./".contains(c);
        if key.is_empty() {
            return Err(invalid("it is empty".to_owned()));
        }
        if let Some((place, wrong)) = key.chars().enumerate().find(|(_, c)| !allowed(*c)) {
            let place = place + 1;
            return Err(invalid(format!("it has {wrong:?} at place {place}")));
        }
        if key.len() > MAX_IDEMPOTENCY_KEY_CHARS {
            return Err(invalid(format!("it has {} characters", key.len())));
        }
        Ok(IdempotencyKey(key.into()))
    }

    /// The key, trimmed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

fn invalid(wrong: String) -> InvalidValue {
    InvalidValue {
        what: "idempotency key",
        reason: format!(
            "{wrong}; write 1 to {MAX_IDEMPOTENCY_KEY_CHARS} letters, digits and - _ : . /"
        ),
        code: "invalid_idempotency_key",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_that_are_good() {
        let longest = "k".repeat(64);
        let padded = format!("  {longest}\t");
        for (text, key) in [
            ("a", "a"),
            ("-_:./", "-_:./"),
            ("order:7/capture.1_A-z", "order:7/capture.1_A-z"),
            (" \n key \t", "key"),
            (&*longest, &*longest),
            (&*padded, &*longest),
        ] {
            assert_eq!(IdempotencyKey::parse(text).expect(text).as_str(), key);
        }
    }

    #[test]
    fn keys_that_are_not_say_what_is_wrong() {
        let long = "k".repeat(65);
        for (text, said) in [
            ("", "it is empty"),
            (" \t\n", "it is empty"),
            ("a b", "' ' at place 2"),
            ("schlüssel", "'ü' at place 5"),
            ("a\0", "'\\0' at place 2"),
            ("k#1", "'#' at place 2"),
            (&*long, "65 characters"),
        ] {
            let error = IdempotencyKey::parse(text).expect_err(text);
            assert_eq!(error.code, "invalid_idempotency_key");
            assert!(error.to_string().contains(said), "{text:?}: {error}");
            assert!(error.to_string().contains("1 to 64 letters, digits"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_key_or_is_not(text in "[ \t]{0,2}[ -~ü]{0,70}[ \t]{0,2}") {
            let bytes = text.trim().as_bytes();
            let good = (1..=64).contains(&bytes.len())
                && bytes.iter().all(|b| matches!(b, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b':' | b'.' | b'/'));
            match IdempotencyKey::parse(&text) {
                Ok(key) => {
                    prop_assert!(good);
                    prop_assert_eq!(key.as_str(), text.trim());
                    prop_assert_eq!(IdempotencyKey::parse(key.as_str())?, key);
                }
                Err(_) => prop_assert!(!good),
            }
        }

        #[test]
        fn every_key_of_the_grammar_is_one(text in "[A-Za-z0-9_:./-]{1,64}") {
            let key = IdempotencyKey::parse(&text)?;
            prop_assert_eq!(key.as_str(), text);
        }
    }
}
