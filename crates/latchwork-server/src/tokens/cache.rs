//! What a server remembers of tokens, for a short while.

use std::collections::HashMap;
use std::sync::Arc;

use latchwork_lock::provider::Moment;
use uuid::Uuid;

use super::REMEMBERED;
use super::secret::SecretHash;
use super::token::Token;

/// Tokens by their hash, with when they were read.
#[derive(Default)]
pub(super) struct Cache {
    known: HashMap<SecretHash, (Moment, Arc<Token>)>,
    clearings: u64,
}

/// So many tokens are remembered at most.
const MAX: usize = 10_000;

impl Cache {
    pub(super) fn get(&self, hash: SecretHash, now: Moment) -> Option<Arc<Token>> {
        let (read, token) = self.known.get(&hash)?;
        (now.since(*read) < REMEMBERED).then(|| token.clone())
    }

    /// Remembers a token that was read, unless the memory was cleared since there were so many clearings.
    pub(super) fn put(
        &mut self,
        hash: SecretHash,
        token: Arc<Token>,
        read: Moment,
        clearings: u64,
    ) {
        if clearings != self.clearings {
            return;
        }
        if self.known.len() >= MAX {
            self.known.retain(|_, (at, _)| read.since(*at) < REMEMBERED);
        }
        if self.known.len() < MAX {
            self.known.insert(hash, (read, token));
        }
    }

    pub(super) fn forget(&mut self, id: Uuid) {
        self.clearings += 1;
        self.known.retain(|_, (_, token)| token.id != id);
    }

    pub(super) fn clear(&mut self) {
        self.clearings += 1;
        self.known.clear();
    }

    /// How often something was forgotten.
    pub(super) fn clearings(&self) -> u64 {
        self.clearings
    }
}
