//! The text of a token: `lw_<role>_<random><checksum>`.
//!
//! The random part has 32 letters and digits, some 190 bits. The checksum is the CRC-32 of everything
//! before it, in six digits of base 62: so a token that was cut or mistyped is told from an unknown one
//! without a look into the store, and scanners for leaked secrets can tell it from other text.

use std::fmt;

use crc::{CRC_32_ISO_HDLC, Crc};
use rand::RngExt as _;
use rand::distr::Alphanumeric;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

use crate::role::Role;

/// How many random characters a token has.
const RANDOM: usize = 32;

/// How many characters the checksum has.
const CHECKSUM: usize = 6;

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A token's text. Shown once, when it is made; only its hash is stored.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new one.
    pub(super) fn generate(role: Role) -> Self {
        let random = rand::rng().sample_iter(Alphanumeric).take(RANDOM).map(char::from);
        let mut text = format!("lw_{role}_{}", random.collect::<String>());
        text.push_str(&checksum(&text));
        Secret(text)
    }

    /// The text, to be given to its user.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is stored of it.
    pub(super) fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(&self.0).into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It does not look like one.
    Shape,
    /// It looks like one, and its checksum is wrong.
    Checksum,
}

/// Reads what a caller sent. That the role in it is the token's is not checked: the store knows it.
pub(super) fn parse(text: &str) -> Result<SecretHash, Malformed> {
    let shape = || {
        let (role, rest) = text.strip_prefix("lw_")?.split_once('_')?;
        role.parse::<Role>().ok()?;
        let legal = rest.len() == RANDOM + CHECKSUM
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        legal.then(|| text.split_at(text.len() - CHECKSUM))
    };
    let (before, found) = shape().ok_or(Malformed::Shape)?;
    if checksum(before) != found {
        return Err(Malformed::Checksum);
    }
    Ok(SecretHash(Sha256::digest(text).into()))
}

fn checksum(text: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut rest = CRC.checksum(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

/// The SHA-256 of a token. A fast hash is enough: the token is random, so nobody can guess it from a
/// list of likely ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    /// What rows are looked up by: a part that says nothing of the rest, which is compared in constant
    /// time.
    pub(crate) fn lookup(&self) -> String {
        hex::encode(&self.0[..8])
    }

    /// As it is stored.
    pub(crate) fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Whether a stored hash is this one, in a time that does not depend on where they differ.
    pub(crate) fn is(&self, stored: &str) -> bool {
        self.to_hex().as_bytes().ct_eq(stored.as_bytes()).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_reads_back_and_every_typo_is_told() {
        for role in Role::ALL {
            let secret = Secret::generate(role);
            let text = secret.expose();
            let hash = parse(text).expect("it reads back");
            assert!(hash.is(&secret.hash().to_hex()) && !hash.is("") && !hash.is("00"));
            assert_eq!(text.len(), "lw__".len() + role.as_str().len() + RANDOM + CHECKSUM);
            let from = text.len() - RANDOM - CHECKSUM;
            for at in from..text.len() {
                let mut typo = text.as_bytes().to_vec();
                typo[at] = if typo[at] == b'x' { b'y' } else { b'x' };
                let typo = String::from_utf8(typo).expect("ASCII");
                assert_eq!(parse(&typo), Err(Malformed::Checksum), "{typo}");
            }
        }
        let other = Secret::generate(Role::Admin);
        assert_ne!(other.expose(), Secret::generate(Role::Admin).expose());
        assert!(!format!("{other:?} {:?}", other.hash()).contains(&other.expose()[9..]));
    }

    #[test]
    fn what_is_no_token_is_told_as_such() {
        let good = Secret::generate(Role::Agent);
        let good = good.expose();
        let cut = &good[..good.len() - 1];
        let spaced = format!(" {good}");
        let role = good.replace("lw_agent_", "lw_root_");
        for wrong in ["", "lw_", "lw_agent_", "x", cut, &spaced, &role, "lw_agent_ä", "Bearer x"] {
            assert_eq!(parse(wrong), Err(Malformed::Shape), "{wrong}");
        }
        // A role cannot be exchanged: the checksum is over all of it.
        let promoted = good.replace("lw_agent_", "lw_admin_");
        assert_eq!(parse(&promoted), Err(Malformed::Checksum));
    }

    proptest! {
        #[test]
        fn only_what_was_made_is_a_token(
            text in prop_oneof!["\\PC{0,60}", "lw_(agent|admin|reader)_[A-Za-z0-9]{30,45}"],
        ) {
            if let Ok(hash) = parse(&text) {
                prop_assert!(text.starts_with("lw_") && hash.is(&hash.to_hex()));
                prop_assert_eq!(checksum(&text[..text.len() - CHECKSUM]), &text[text.len() - CHECKSUM..]);
            }
        }

        #[test]
        fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), instead in "[ -~]") {
            let secret = Secret::generate(Role::Operator);
            let (text, at) = (secret.expose(), at.index(secret.expose().len()));
            let changed = format!("{}{instead}{}", &text[..at], &text[at + 1..]);
            prop_assert_eq!(parse(&changed).is_ok(), changed == text);
        }
    }
}
