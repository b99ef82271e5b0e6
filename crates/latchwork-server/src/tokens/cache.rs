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
pub(super) struct Cache(HashMap<SecretHash, (Moment, Arc<Token>)>);

/// So many tokens are remembered at most.
const MAX: usize = 10_000;

impl Cache {
    pub(super) fn get(&self, hash: SecretHash, now: Moment) -> Option<Arc<Token>> {
        let (read, token) = self.0.get(&hash)?;
        (now.since(*read) < REMEMBERED).then(|| token.clone())
    }

    pub(super) fn put(&mut self, hash: SecretHash, token: Arc<Token>, read: Moment) {
        if self.0.len() >= MAX {
            self.0.retain(|_, (at, _)| read.since(*at) < REMEMBERED);
        }
        if self.0.len() < MAX {
            self.0.insert(hash, (read, token));
        }
    }

    pub(super) fn forget(&mut self, id: Uuid) {
        self.0.retain(|_, (_, token)| token.id != id);
    }
}
