//! The claim of a turn (L5), on its way.

use std::sync::Arc;
use std::time::Duration;

use super::batch::{Answer, Job, Lane, Reply};
use super::release::Handing;
use super::scripts::Operation;
use super::store::{Store, claimed, member};
use super::watch::{Call, State};
use super::{tell, watcher};
use crate::rules::Id;
use crate::{Acquired, Confirmation, Fence, Grant, Moment, Result};

/// How long after a claim that failed it is made again.
const AGAIN: Duration = Duration::from_millis(100);

/// Asks the server for a turn of one of our waiters, who need not be awake for it.
pub(super) struct Claim {
    store: Arc<Store>,
    id: Id,
    call: Arc<Call>,
    asked_at: Moment,
    begun: Option<Begun>,
}

/// A lease that its waiter has before it is confirmed.
pub(super) struct Begun {
    pub(super) confirmation: Confirmation,
    pub(super) fence: Fence,
    /// Its ttl began after this moment.
    pub(super) queued_at: Moment,
    pub(super) until: Moment,
    /// Behind whom it has begun, whose release may have got lost, and the lane of that.
    pub(super) after: Option<(Id, Arc<Lane>)>,
}

impl Claim {
    pub(super) fn new(store: &Arc<Store>, id: Id, call: Arc<Call>, begun: Option<Begun>) -> Self {
        Claim { store: store.clone(), id, call, asked_at: store.clock.now(), begun }
    }

    pub(super) fn put(self) {
        let (store, key, id) = (self.store.clone(), self.call.key.clone(), self.id);
        let after = self.begun.as_ref().and_then(|begun| begun.after.clone());
        let claim =
            Job { member: member(Operation::Claim, &key, id), reply: Reply::Claim(Box::new(self)) };
        let Some((after, lane)) = after else { return store.lanes.put(claim) };
        let member = member(Operation::Release, &key, after);
        let (tell, _) = tell::channel(); // nobody listens: the claim tells
        let (during, asked_at) = ("releasing", store.clock.now());
        let handing = Handing { store: store.clone(), during, key, id: after, asked_at, tell };
        store.lanes.put_on(&lane, Job { member, reply: Reply::Handing(Box::new(handing)) });
        store.lanes.put_on(&lane, claim);
    }

    /// Passes the answer on to the waiter.
    pub(super) fn answered(self, answer: Result<Answer>) {
        let clock = &*self.store.clock;
        let failed = answer.is_err();
        let (claimed, left) = answer.map_or((None, None), |answer| claimed(&answer.value));
        if let Some(left) = left {
            self.store.desk.set_due(&self.call.key, clock.now().after(left));
        }
        match (&self.begun, claimed) {
            // What was claimed before, and not answered, began at any time since.
            (Some(begun), Some((grant, began))) if grant.fence == begun.fence => {
                begun.confirmation.confirm(if began { self.asked_at } else { begun.queued_at });
            }
            (Some(begun), None) if failed && clock.now() < begun.until => self.put_again(),
            (Some(begun), _) => {
                // First: nobody begins behind what is lost.
                self.store.desk.forget(&self.call.key, self.id);
                begun.confirmation.refuse();
                self.call.lose();
            }
            (None, Some((grant, true))) => {
                // The ttl began in the server, after this moment.
                let grant = Grant { trusted_from: Some(self.asked_at), ..grant };
                *self.call.state.lock() = State::Holds(Acquired::Granted(grant), clock.now());
                self.call.bell.notify_one();
            }
            (None, _) => self.call.ask_again(),
        }
    }

    fn put_again(self) {
        if let Ok(runtime) = watcher::runtime() {
            runtime.spawn(async move {
                tokio::time::sleep(AGAIN).await;
                let asked_at = self.store.clock.now();
                Claim { asked_at, ..self }.put();
            });
        }
    }
}
