//! From a key to its shard and from a token to its name: the same in every process, for ever.

use sha2::{Digest, Sha256};

pub(super) use crate::coordination::token_id::id;

/// How many rows hold the last fences of all keys.
const SHARDS: u8 = 64;

pub(super) fn shard(key: &str) -> i64 {
    i64::from(Sha256::digest(key.as_bytes())[31] % SHARDS)
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
