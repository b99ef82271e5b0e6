//! What one waiter of this process is told: that its turn has come, or that it holds the key already.
//!
//! Where the one who releases and the next in line are of one process, one transaction ends the one
//! lease and begins the other ([`hand_on`](super::hand_on)). It is put here, and if its waiter does
//! not look for it, the process gives it back as soon as an unclaimed turn would pass on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::store::Party;
use crate::{Fence, Grant, Moment};

/// How long the first in line may sleep before its own process takes it out of the queue, or gives
/// back what was handed to it. With the tick of the one who looks, it is not more than the claim
/// window.
const WINDOW: Duration = Duration::from_millis(1_500);

/// A waiter, as those see it who call it.
pub(super) struct Call {
    pub(super) party: Arc<Party>,
    /// False when nobody waits for the answer any more; said before the release that follows is sent.
    wanted: Arc<AtomicBool>,
    pub(super) bell: Notify,
    /// The revision at which it stood in line: what is known from before says nothing about it.
    stands_since: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether it sleeps until it is called. Only then a lease may be handed to it: it does not ask
    /// for the same meanwhile.
    sleeps: bool,
    /// Since when it may claim and has not.
    turn: Option<Moment>,
    /// Whether a lease is under way to it.
    coming: bool,
    /// The lease that lies ready for it, and since when.
    grant: Option<(Grant, Moment)>,
    /// The lease that is being given back, since it came too late.
    going_back: Option<Fence>,
}

/// What a waiter finds when it looks.
pub(super) enum Found {
    Lease(Grant),
    /// Nothing: it may go and ask.
    Nothing,
    /// A lease is on its way to it or back: to ask now would find it, and it will be called.
    Soon,
}

impl Call {
    pub(super) fn new(party: Arc<Party>, wanted: Arc<AtomicBool>) -> Self {
        Call {
            party,
            wanted,
            bell: Notify::new(),
            stands_since: AtomicI64::new(0),
            state: Mutex::default(),
        }
    }

    /// The waiter looks; from then on it is awake.
    pub(super) fn look(&self) -> Found {
        let mut state = self.state.lock();
        if state.coming || state.going_back.is_some() {
            return Found::Soon;
        }
        (state.sleeps, state.turn) = (false, None);
        state.grant.take().map_or(Found::Nothing, |(grant, _)| Found::Lease(grant))
    }

    /// It will look again when it is called.
    pub(super) fn sleeps(&self) {
        self.state.lock().sleeps = true;
    }

    /// Whether it may claim.
    pub(super) fn set_turn(&self, turn: bool, now: Moment) {
        let mut state = self.state.lock();
        state.turn = turn.then(|| state.turn.unwrap_or(now));
        drop(state);
        if turn {
            self.ring();
        }
    }

    /// Calls it, unless it will be called anyway.
    pub(super) fn ring(&self) {
        if !self.state.lock().coming {
            self.bell.notify_one();
        }
    }

    pub(super) fn stands_since(&self) -> i64 {
        self.stands_since.load(Ordering::Acquire)
    }

    pub(super) fn set_stands_since(&self, revision: i64) {
        self.stands_since.store(revision, Ordering::Release);
    }

    /// Whether it sleeps through its turn.
    pub(super) fn oversleeps(&self, now: Moment) -> bool {
        let state = self.state.lock();
        let late = state.turn.is_some_and(|since| now.since(since) >= WINDOW);
        late && state.sleeps && !state.coming && state.grant.is_none()
    }

    /// A lease that has lain here for too long, and is to be given back; told again until it is.
    pub(super) fn take_back(&self, now: Moment) -> Option<Fence> {
        let mut state = self.state.lock();
        if let Some((grant, _)) = state.grant.take_if(|(_, since)| now.since(*since) >= WINDOW) {
            state.going_back = Some(grant.fence);
        }
        state.going_back
    }

    /// Such a lease has been given back: the waiter may ask anew.
    pub(super) fn gone_back(&self) {
        self.state.lock().going_back = None;
        self.ring();
    }
}

/// A waiter to whom a lease is under way. Dropped, none is.
pub(super) struct Coming {
    call: Arc<Call>,
    /// Its place in the queue.
    pub(super) created: i64,
}

impl Coming {
    /// None for one that is awake: it asks for itself.
    pub(super) fn to(call: &Arc<Call>, created: i64) -> Option<Self> {
        let mut state = call.state.lock();
        let ready =
            state.sleeps && !state.coming && state.going_back.is_none() && state.grant.is_none();
        if !ready || !call.wanted.load(Ordering::Acquire) {
            return None;
        }
        state.coming = true;
        drop(state);
        Some(Coming { call: call.clone(), created })
    }

    pub(super) fn party(&self) -> &Arc<Party> {
        &self.call.party
    }

    /// See [`Call`].
    pub(super) fn wanted(&self) -> &Arc<AtomicBool> {
        &self.call.wanted
    }

    /// The lease has begun. False when nobody wants it any more: then it must be released, since the
    /// release that was queued may have been there before it.
    pub(super) fn arrived(self, grant: Grant, now: Moment) -> bool {
        self.call.state.lock().grant = Some((grant, now));
        self.call.wanted.load(Ordering::Acquire)
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.call.state.lock().coming = false;
        self.call.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, Key, Mode};

    fn at(millis: u64) -> Moment {
        Moment::default().after(Duration::from_millis(millis))
    }

    fn call() -> (Arc<Call>, Arc<AtomicBool>) {
        let key = Key::new("key").expect("legal");
        let ttl = Duration::from_secs(30);
        let party = Party { key, id: 1, mode: Mode::Exclusive, owner: None, note: None, ttl };
        let wanted = Arc::new(AtomicBool::new(true));
        (Arc::new(Call::new(Arc::new(party), wanted.clone())), wanted)
    }

    const GRANT: Grant = Grant::first(Fence::new(7));

    #[test]
    fn a_lease_comes_only_to_who_sleeps_and_once() {
        let (call, _) = call();
        assert!(Coming::to(&call, 3).is_none(), "it is awake");
        call.sleeps();
        let coming = Coming::to(&call, 3).expect("it sleeps");
        assert!(Coming::to(&call, 3).is_none(), "one is under way");
        assert!(matches!(call.look(), Found::Soon), "it does not ask meanwhile");
        assert!(coming.arrived(GRANT, at(10)));
        assert!(Coming::to(&call, 3).is_none(), "one lies there");
        assert!(matches!(call.look(), Found::Lease(GRANT)));
        assert_eq!(call.take_back(at(9_000)), None, "it is the waiter's");
        assert!(matches!(call.look(), Found::Nothing));
    }

    #[test]
    fn what_did_not_come_leaves_nothing() {
        let (call, _) = call();
        call.sleeps();
        drop(Coming::to(&call, 3));
        assert!(matches!(call.look(), Found::Nothing));
    }

    #[test]
    fn what_nobody_looks_for_goes_back() {
        let (call, _) = call();
        call.sleeps();
        assert!(Coming::to(&call, 3).expect("it sleeps").arrived(GRANT, at(10)));
        assert_eq!(call.take_back(at(1_000)), None, "too soon");
        assert_eq!(call.take_back(at(1_600)), Some(GRANT.fence));
        assert_eq!(call.take_back(at(1_601)), Some(GRANT.fence), "until it has gone");
        assert!(matches!(call.look(), Found::Soon), "it would find what is about to end");
        call.gone_back();
        assert_eq!(call.take_back(at(9_000)), None);
        assert!(matches!(call.look(), Found::Nothing));
    }

    #[test]
    fn what_nobody_wants_is_said() {
        let (call, wanted) = call();
        call.sleeps();
        let coming = Coming::to(&call, 3).expect("it sleeps");
        wanted.store(false, Ordering::Release);
        assert!(!coming.arrived(GRANT, at(10)));
        assert!(Coming::to(&call, 3).is_none());
    }

    #[test]
    fn a_turn_is_slept_through_only_asleep() {
        let (call, _) = call();
        call.set_turn(true, at(0));
        assert!(!call.oversleeps(at(2_000)), "it claims");
        call.sleeps();
        assert!(call.oversleeps(at(2_000)));
        call.set_turn(true, at(1_900));
        assert!(call.oversleeps(at(2_000)), "it began before");
        call.set_turn(false, at(2_000));
        assert!(!call.oversleeps(at(9_000)));
    }
}
