//! The claim of a turn (L5), on its way.

use std::sync::Arc;

use super::batch::{Answer, Reply};
use super::scripts::Operation;
use super::store::{Store, claimed};
use super::watch::Call;
use crate::rules::Id;
use crate::{Grant, Moment, Result};

/// Claims a reservation for one of our waiters, who need not be awake for it.
pub(super) struct Claim {
    store: Arc<Store>,
    call: Arc<Call>,
    asked_at: Moment,
}

impl Claim {
    /// Sends it. Its waiter is told of the answer.
    pub(super) fn put(store: &Arc<Store>, id: Id, call: Arc<Call>) {
        let (key, asked_at) = (call.key.clone(), store.clock.now());
        let claim = Claim { store: store.clone(), call, asked_at };
        store.put(Operation::Claim, &key, id, Reply::Claim(Box::new(claim)));
    }

    /// Passes the answer on to the waiter.
    pub(super) fn answered(self, answer: Result<Answer>) {
        let (claimed, left) = answer.map_or((None, None), |answer| claimed(&answer.value));
        let clock = &*self.store.clock;
        if let Some(left) = left {
            self.store.desk.set_due(&self.call.key, clock.now().after(left));
        }
        match claimed {
            // The ttl began in the server, after this moment.
            Some((grant, true)) => {
                self.call.hold(Grant { trusted_from: Some(self.asked_at), ..grant }, clock.now());
            }
            // It failed, came too late, or was claimed before and not answered.
            _ => self.call.ask_again(),
        }
    }
}
