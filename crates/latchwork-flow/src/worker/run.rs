//! The right to save a context, and what came of it so far.

use latchwork_lock::provider::Token;

use crate::TransitionId;
use crate::store::{Proof, RunClaim};

/// One process's stay at a stored context.
pub(super) struct Run {
    pub(super) claim: RunClaim,
    /// Which attempt at the next action this is, from 1.
    pub(super) attempt: u32,
    /// The next action as it was last saved.
    pub(super) saved_next: usize,
}

impl Run {
    pub(super) fn new(claim: RunClaim, attempt: u32, next: usize) -> Self {
        Run { claim, attempt: attempt.max(1), saved_next: next }
    }

    pub(super) fn token(&self) -> Token {
        self.claim.token
    }

    pub(super) fn proof(&self, id: TransitionId) -> Proof {
        Proof { id, token: self.claim.token }
    }

    /// Notes that the context was saved when this was its next action.
    pub(super) fn saved(&mut self, next: usize) {
        if self.saved_next != next {
            (self.saved_next, self.attempt) = (next, 1);
        }
    }
}
