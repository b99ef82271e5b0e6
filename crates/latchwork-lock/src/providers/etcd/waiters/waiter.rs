//! One waiter of this process: whether it may claim, and the grant that was delivered to it.
//!
//! If the process that releases a key also has the next waiter, one transaction ends the one lease
//! and starts the other. The grant is delivered here, and if the waiter's task does not take it, the
//! process returns it as soon as an unclaimed turn would pass on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::providers::etcd::record::Requester;
use crate::{Fence, Grant, Moment};

/// How long the first waiter may sleep before its own process takes it out of the queue, or returns
/// the grant that was delivered to it. Together with the interval of that check it is not more than
/// the claim window.
const UNCLAIMED_LIMIT: Duration = Duration::from_millis(1_500);

/// A waiter of this process, as others see it.
pub(crate) struct LocalWaiter {
    pub(crate) requester: Arc<Requester>,
    /// False when nobody waits for the answer any more; set before the release that follows.
    wanted: Arc<AtomicBool>,
    pub(crate) woken: Notify,
    /// The revision at which it was in the queue: older knowledge says nothing about it.
    queued_at: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether its task sleeps until it is woken. Only then a grant may be delivered to it: an awake
    /// task may be requesting one by itself.
    asleep: bool,
    /// Since when it may claim and has not.
    turn_since: Option<Moment>,
    in_transit: bool,
    /// The grant that was delivered, and when.
    delivered: Option<(Grant, Moment)>,
    /// The grant that is being returned, since its task did not take it in time.
    returning: Option<Fence>,
}

/// What a waiter finds when it wakes up.
pub(crate) enum Delivery {
    Granted(Grant),
    /// Nothing: it may make a request.
    Nothing,
    /// A grant is on its way to it or back. It will be woken; a request would find that grant.
    InTransit,
}

impl LocalWaiter {
    pub(crate) fn new(requester: Arc<Requester>, wanted: Arc<AtomicBool>) -> Self {
        LocalWaiter {
            requester,
            wanted,
            woken: Notify::new(),
            queued_at: AtomicI64::new(0),
            state: Mutex::default(),
        }
    }

    /// Takes what was delivered. The waiter counts as awake from then on, unless a grant is on its
    /// way.
    pub(crate) fn take_delivery(&self) -> Delivery {
        let mut state = self.state.lock();
        if state.in_transit || state.returning.is_some() {
            return Delivery::InTransit;
        }
        (state.asleep, state.turn_since) = (false, None);
        state.delivered.take().map_or(Delivery::Nothing, |(grant, _)| Delivery::Granted(grant))
    }

    /// It does nothing until it is woken.
    pub(crate) fn fall_asleep(&self) {
        self.state.lock().asleep = true;
    }

    /// Sets whether it may claim.
    pub(crate) fn set_turn(&self, turn: bool, now: Moment) {
        let mut state = self.state.lock();
        state.turn_since = turn.then(|| state.turn_since.unwrap_or(now));
        drop(state);
        if turn {
            self.wake();
        }
    }

    /// Wakes it, unless the end of a transit will.
    pub(crate) fn wake(&self) {
        if !self.state.lock().in_transit {
            self.woken.notify_one();
        }
    }

    pub(crate) fn queued_at(&self) -> i64 {
        self.queued_at.load(Ordering::Acquire)
    }

    pub(crate) fn set_queued_at(&self, revision: i64) {
        self.queued_at.store(revision, Ordering::Release);
    }

    /// Whether its task has slept through its turn.
    pub(crate) fn missed_turn(&self, now: Moment) -> bool {
        let state = self.state.lock();
        let late = state.turn_since.is_some_and(|since| now.since(since) >= UNCLAIMED_LIMIT);
        late && state.asleep && !state.in_transit && state.delivered.is_none()
    }

    /// A grant that its task has not taken in time, and that is to be returned. Given again until
    /// [`returned`](Self::returned).
    pub(crate) fn reclaim_unclaimed(&self, now: Moment) -> Option<Fence> {
        let mut state = self.state.lock();
        let unclaimed = state.delivered.take_if(|(_, since)| now.since(*since) >= UNCLAIMED_LIMIT);
        if let Some((grant, _)) = unclaimed {
            state.returning = Some(grant.fence);
        }
        state.returning
    }

    /// The unclaimed grant was returned: the waiter may make a new request.
    pub(crate) fn returned(&self) {
        self.state.lock().returning = None;
        self.wake();
    }
}

/// A grant that is being requested for a waiter. If it is dropped, nothing was granted.
pub(crate) struct GrantInTransit {
    waiter: Arc<LocalWaiter>,
    /// The waiter's position in the queue.
    pub(crate) position: i64,
}

impl GrantInTransit {
    /// `None` if the waiter is awake: then it makes its own request.
    pub(crate) fn start(waiter: &Arc<LocalWaiter>, position: i64) -> Option<Self> {
        let mut state = waiter.state.lock();
        let ready = state.asleep
            && !state.in_transit
            && state.returning.is_none()
            && state.delivered.is_none();
        if !ready || !waiter.wanted.load(Ordering::Acquire) {
            return None;
        }
        state.in_transit = true;
        drop(state);
        Some(GrantInTransit { waiter: waiter.clone(), position })
    }

    pub(crate) fn requester(&self) -> &Arc<Requester> {
        &self.waiter.requester
    }

    /// False when nobody waits for the answer any more.
    pub(crate) fn wanted(&self) -> &Arc<AtomicBool> {
        &self.waiter.wanted
    }

    /// Delivers the grant. False when nobody waits for it any more: then it must be released, since
    /// the release that was queued may have been executed before the grant.
    pub(crate) fn deliver(self, grant: Grant, now: Moment) -> bool {
        self.waiter.state.lock().delivered = Some((grant, now));
        self.waiter.wanted.load(Ordering::Acquire)
    }
}

impl Drop for GrantInTransit {
    fn drop(&mut self) {
        self.waiter.state.lock().in_transit = false;
        self.waiter.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, Key, Mode};

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(millis))
    }

    fn waiter() -> (Arc<LocalWaiter>, Arc<AtomicBool>) {
        let key = Key::new("key").expect("legal");
        let ttl = Duration::from_secs(30);
        let requester =
            Requester { key, id: 1, mode: Mode::Exclusive, owner: None, note: None, ttl };
        let wanted = Arc::new(AtomicBool::new(true));
        (Arc::new(LocalWaiter::new(Arc::new(requester), wanted.clone())), wanted)
    }

    const GRANT: Grant = Grant::first(Fence::new(7));

    #[test]
    fn a_grant_is_delivered_only_to_a_sleeping_waiter_and_once() {
        let (waiter, _) = waiter();
        assert!(GrantInTransit::start(&waiter, 3).is_none(), "it is awake");
        waiter.fall_asleep();
        let transit = GrantInTransit::start(&waiter, 3).expect("it sleeps");
        assert!(GrantInTransit::start(&waiter, 3).is_none(), "one is in transit");
        assert!(matches!(waiter.take_delivery(), Delivery::InTransit), "it makes no request");
        assert!(transit.deliver(GRANT, at(10)));
        assert!(GrantInTransit::start(&waiter, 3).is_none(), "one was delivered");
        assert!(matches!(waiter.take_delivery(), Delivery::Granted(GRANT)));
        assert_eq!(waiter.reclaim_unclaimed(at(9_000)), None, "the waiter has taken it");
        assert!(matches!(waiter.take_delivery(), Delivery::Nothing));
    }

    #[test]
    fn a_dropped_transit_leaves_nothing() {
        let (waiter, _) = waiter();
        waiter.fall_asleep();
        drop(GrantInTransit::start(&waiter, 3));
        assert!(matches!(waiter.take_delivery(), Delivery::Nothing));
    }

    #[test]
    fn an_unclaimed_grant_is_returned() {
        let (waiter, _) = waiter();
        waiter.fall_asleep();
        let transit = GrantInTransit::start(&waiter, 3).expect("it sleeps");
        assert!(transit.deliver(GRANT, at(10)));
        assert_eq!(waiter.reclaim_unclaimed(at(1_000)), None, "too soon");
        assert_eq!(waiter.reclaim_unclaimed(at(1_600)), Some(GRANT.fence));
        assert_eq!(waiter.reclaim_unclaimed(at(1_601)), Some(GRANT.fence), "until it is returned");
        assert!(matches!(waiter.take_delivery(), Delivery::InTransit), "the grant is about to end");
        waiter.returned();
        assert_eq!(waiter.reclaim_unclaimed(at(9_000)), None);
        assert!(matches!(waiter.take_delivery(), Delivery::Nothing));
    }

    #[test]
    fn a_delivery_tells_that_nobody_wants_it() {
        let (waiter, wanted) = waiter();
        waiter.fall_asleep();
        let transit = GrantInTransit::start(&waiter, 3).expect("it sleeps");
        wanted.store(false, Ordering::Release);
        assert!(!transit.deliver(GRANT, at(10)));
        assert!(GrantInTransit::start(&waiter, 3).is_none());
    }

    #[test]
    fn only_a_sleeping_waiter_misses_its_turn() {
        let (waiter, _) = waiter();
        waiter.set_turn(true, at(0));
        assert!(!waiter.missed_turn(at(2_000)), "it is awake, and claims");
        waiter.fall_asleep();
        assert!(waiter.missed_turn(at(2_000)));
        waiter.set_turn(true, at(1_900));
        assert!(waiter.missed_turn(at(2_000)), "its turn began before");
        waiter.set_turn(false, at(2_000));
        assert!(!waiter.missed_turn(at(9_000)));
    }
}
