//! Names of what is locked, checked before any round trip (L18).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use arrayvec::ArrayString;
use foldhash::fast::RandomState;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The longest key that a caller may name, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// The longest prefix that [`Locks`](crate::Locks) may put before its keys, in bytes.
pub const MAX_PREFIX_BYTES: usize = 128;

/// Canonical name of what is locked: the same resource always gives the same key.
///
/// As a provider sees it, a key carries the prefix of its
/// [`Locks`](crate::Locks). Cloning is cheap.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key {
    hash: u64,
    text: Text,
}

/// Keys of common length are copied, which is much cheaper than an allocation and a counter that
/// two cores fight for.
#[derive(Clone)]
enum Text {
    Short(ArrayString<SHORT>),
    Long(Arc<str>),
}

/// Holds the default prefix, a word, and a UUID.
const SHORT: usize = 55;

impl Key {
    /// Checks a name and makes a key of it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) when the name is empty, longer than
    /// [`MAX_KEY_BYTES`], or has control characters.
    pub fn new(name: &str) -> Result<Self> {
        Self::with_prefix("", name)
    }

    /// Checks a name that comes in parts and makes a key of it, without a text in between.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of_parts(parts: &[&str]) -> Result<Self> {
        let text = Text::concat(parts);
        check(text.as_str())?;
        Ok(Key::from_text(text))
    }

    /// Checks `name` and puts `prefix`, which was checked before, in front of it.
    pub(crate) fn with_prefix(prefix: &str, name: &str) -> Result<Self> {
        check(name)?;
        Ok(Key::from_text(Text::concat(&[prefix, name])))
    }

    fn from_text(text: Text) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        Key { hash: HASHER.hash_one(text.as_str()), text }
    }

    /// The whole name.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// A hash of the name that is the same within this process only, computed once.
    #[inline]
    pub fn process_hash(&self) -> u64 {
        self.hash
    }
}

impl Text {
    /// One text of several parts, without a string in between.
    fn concat(parts: &[&str]) -> Self {
        let mut short = ArrayString::new();
        if parts.iter().all(|part| short.try_push_str(part).is_ok()) {
            return Text::Short(short);
        }
        Text::Long(parts.concat().into())
    }

    #[inline]
    fn as_str(&self) -> &str {
        match self {
            Text::Short(text) => text,
            Text::Long(text) => text,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.hash == other.hash && self.as_str() == other.as_str()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        // A stored key may carry a prefix on top of a key of the full length.
        if name.len() > MAX_PREFIX_BYTES + MAX_KEY_BYTES || name.is_empty() || has_control(&name) {
            return Err(Error::invalid_key(&name, "it is not a stored key"));
        }
        Ok(Key::from_text(Text::concat(&[&name])))
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.as_str().to_owned()
    }
}

#[inline]
pub(crate) fn check(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid_key(name, "it is empty"));
    }
    if name.len() > MAX_KEY_BYTES {
        return Err(Error::invalid_key(
            name,
            format!("it has {} bytes, and {MAX_KEY_BYTES} are allowed", name.len()),
        ));
    }
    if has_control(name) {
        return Err(Error::invalid_key(name, "it has control characters"));
    }
    Ok(())
}

/// Checks a prefix: it may be empty, else the rules of a key hold.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err(Error::invalid_argument(
            "prefix",
            format!("it has {} bytes, and {MAX_PREFIX_BYTES} are allowed", prefix.len()),
        ));
    }
    if has_control(prefix) {
        return Err(Error::invalid_argument("prefix", "it has control characters"));
    }
    Ok(())
}

#[inline]
pub(crate) fn has_control(text: &str) -> bool {
    !is_printable_ascii(text.as_bytes()) && text.chars().any(char::is_control)
}

/// Eight bytes at a time, the last of them looked at twice where the length is no multiple: names
/// are short, and byte by byte this was a tenth of the instructions of a lock in memory.
#[inline]
fn is_printable_ascii(bytes: &[u8]) -> bool {
    let found = match (bytes.last_chunk::<8>(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(last), _, _) => {
            let (words, _) = bytes.as_chunks::<8>();
            let all = words.iter().fold(0, |found, word| found | unprintable(*word));
            all | unprintable(*last)
        }
        (None, Some([a, b, c, d]), Some([e, f, g, h])) => {
            unprintable([*a, *b, *c, *d, *e, *f, *g, *h])
        }
        _ => return bytes.iter().all(|byte| (0x20..0x7f).contains(byte)),
    };
    found == 0
}

/// Not zero when one of the bytes is no printable ASCII character: it has its high bit, gets it by
/// one more (0x7f), or by what it lacks to a space. What is carried from byte to byte comes from
/// one that was found already.
#[inline]
fn unprintable(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let word = u64::from_le_bytes(word);
    let found = word | word.wrapping_add(ONES) | word.wrapping_sub(0x20 * ONES);
    found & (0x80 * ONES)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l18_keys_are_checked() {
        for bad in ["", "a\nb", "a\u{0}b", "tab\t", "\u{7f}", "c1\u{85}"] {
            let error = Key::new(bad).expect_err(bad);
            assert_eq!(error.code(), "invalid_key", "{bad:?}");
        }
        assert!(Key::new(&"x".repeat(512)).is_ok());
        let error = Key::new(&"x".repeat(513)).expect_err("too long");
        assert!(error.to_string().contains("513"), "{error}");
        assert!(error.to_string().len() < 200, "the message must not repeat it all");
    }

    #[test]
    fn a_control_character_is_found_wherever_it_stands() {
        for length in 1..40 {
            let plain = "~ ".repeat(20)[..length].to_owned();
            assert!(!has_control(&plain), "{plain:?}");
            for at in 0..length {
                for byte in 0..=0x7f_u8 {
                    let mut bytes = plain.clone().into_bytes();
                    bytes[at] = byte;
                    let text = String::from_utf8(bytes).expect("ascii");
                    assert_eq!(has_control(&text), byte.is_ascii_control(), "{text:?}");
                }
                for (foreign, control) in [("\u{80}", true), ("\u{9f}", true), ("\u{a0}", false)] {
                    let text = format!("{}{foreign}{}", &plain[..at], &plain[at..]);
                    assert_eq!(has_control(&text), control, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn parts_are_one_name() {
        for parts in [&["a", "b:", "c"][..], &["", "größe"], &["x".repeat(55).as_str(), "y"]] {
            let (key, whole) = (Key::of_parts(parts), Key::new(&parts.concat()));
            let (key, whole) = (key.expect("legal"), whole.expect("legal"));
            assert_eq!((&key, key.process_hash()), (&whole, whole.process_hash()));
        }
        for parts in [
            &[][..],
            &["", ""],
            &["a", "b\n"],
            &["x".repeat(500).as_str(), "x".repeat(13).as_str()],
        ] {
            assert_eq!(Key::of_parts(parts).expect_err("illegal").code(), "invalid_key");
        }
    }

    #[test]
    fn a_prefix_stands_in_front() {
        let key = Key::with_prefix("lock/", "größe 1/2").expect("legal");
        assert_eq!(key.as_str(), "lock/größe 1/2");
    }
}
