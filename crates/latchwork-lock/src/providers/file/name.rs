//! From a key to its file and its shard: the same in every process, for ever.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

pub(super) use crate::coordination::token_id::id;

/// How many files are locked: enough that unrelated keys seldom wait for each other's edits.
pub(super) const SHARDS: usize = 64;

/// What may stand in a file's name as it is. No slash, no percent sign, and no tilde: that marks a
/// name that was cut.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'_')
    .remove(b'@')
    .remove(b'=')
    .remove(b'+')
    .remove(b',')
    .remove(b':')
    .remove(b'-');

/// The longest encoded name that is not cut; file systems end at 255 bytes.
const LONGEST: usize = 180;

/// Where a key lives.
pub(super) struct KeyLocation {
    /// The file's name in `keys/`.
    pub(super) file: String,
    /// The number of its shard.
    pub(super) shard: usize,
}

impl KeyLocation {
    /// The shard's name in `shards/`.
    pub(super) fn shard_file(&self) -> String {
        format!("{:02x}", self.shard)
    }
}

pub(super) fn locate(key: &str) -> KeyLocation {
    let hash = Sha256::digest(key.as_bytes());
    let mut file = utf8_percent_encode(key, PLAIN).to_string();
    // Neither hidden nor a directory's own name.
    if file.starts_with('.') {
        file.replace_range(..1, "%2E");
    }
    if file.len() > LONGEST {
        file.truncate(LONGEST); // of ASCII, so it cuts no character
        file.push('~');
        file.push_str(&hex::encode(&hash[..16]));
    }
    file.push_str(".json");
    KeyLocation { file, shard: usize::from(hash[31]) % SHARDS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_safe_and_distinct() {
        let file = |key: &str| locate(key).file;
        assert_eq!(file("lock/order:1"), "lock%2Forder:1.json");
        assert_eq!(file("."), "%2E.json");
        assert_eq!(file(".."), "%2E..json");
        assert_eq!(file("a~b"), "a%7Eb.json");
        let (x, y) = ("ü".repeat(250), format!("{}x", "ü".repeat(249)));
        assert_ne!(file(&x), file(&y));
        for key in [&x, &y, ".hidden", "../../etc/passwd", "%2E", "a b"] {
            let name = file(key);
            assert!(name.len() <= 255 && !name.contains('/') && !name.starts_with('.'), "{name}");
        }
        assert_ne!(file("%2E"), file("."));
    }

    /// Changing it would let two versions of the program hold one key.
    #[test]
    fn the_place_never_changes() {
        // printf %s lock/a | sha256sum: the last byte, modulo 64.
        assert_eq!(locate("lock/a").shard, 22);
    }
}
