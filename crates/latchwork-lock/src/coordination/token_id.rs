//! The identity of a token in a store that others may read.

use sha2::{Digest, Sha256};

use crate::Token;
use crate::rules::Id;

/// A hash of the token, so that a reader of the store cannot act as its holder. The same in every process
/// and version.
pub(crate) fn id(token: Token) -> Id {
    let hash = Sha256::digest(token.expose().to_be_bytes());
    hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changing it would end every lease that is held during an upgrade.
    #[test]
    fn the_id_of_a_token_never_changes() {
        // head -c 16 /dev/zero | sha256sum: the first sixteen bytes.
        assert_eq!(id(Token::from_exposed(0)), 0x374708fff7719dd5979ec875d56cd228);
    }
}
