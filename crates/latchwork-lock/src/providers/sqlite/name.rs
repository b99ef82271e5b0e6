//! From a key to its shard and from a token to its name: the same in every process, for ever.

use sha2::{Digest, Sha256};

/// How many rows hold the last fences of all keys.
const SHARDS: u8 = 64;

pub(super) fn shard(key: &str) -> i64 {
    i64::from(Sha256::digest(key.as_bytes())[31] % SHARDS)
}

/// The identity of a token in a file that others may read: not the token.
pub(super) fn id(token: crate::Token) -> crate::rules::Id {
    let hash = Sha256::digest(token.expose().to_be_bytes());
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    /// Changing it would let fences of a key go back.
    #[test]
    fn the_shard_never_changes() {
        // printf %s lock/a | sha256sum: the last byte, modulo 64.
        assert_eq!(super::shard("lock/a"), 22);
    }
}
