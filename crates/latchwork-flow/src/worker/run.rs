//! The right to save a context, and what came of it so far.

use std::sync::Arc;

use crate::heartbeat::{Calls, Heartbeats, RunHeartbeat};
use crate::store::{Proof, RunClaim};

/// One process's stay at a stored context. Dropped, its heartbeats end.
pub(super) struct Run {
    pub(super) claim: RunClaim,
    pub(super) proof: Proof,
    pub(super) heartbeat: Arc<RunHeartbeat>,
    /// Which attempt at the next action this is, from 1.
    pub(super) attempt: u32,
    /// The next action as it was last saved.
    pub(super) saved_next: usize,
    /// Whether it was an attempt even if it is given back.
    pub(super) counts: bool,
}

impl Run {
    pub(super) fn new(
        heartbeats: &Heartbeats,
        calls: &Calls,
        proof: Proof,
        claim: RunClaim,
        attempt: u32,
    ) -> Self {
        let heartbeat = heartbeats.keep(proof, claim.ttl, calls.clone());
        Run { claim, proof, heartbeat, attempt: attempt.max(1), saved_next: 0, counts: false }
    }

    /// Notes that the context was saved when this was its next action.
    pub(super) fn saved(&mut self, next: usize) {
        if self.saved_next != next {
            (self.saved_next, self.attempt) = (next, 1);
        }
    }
}
