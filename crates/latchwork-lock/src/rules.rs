//! The rules of one key, free of storage, time and threads: which requests are granted, which wait,
//! and which is next. Every provider that decides in Rust (memory, file, SQLite, PostgreSQL,
//! MariaDB) decides here.
//!
//! `X` is what a provider remembers of a requester: a waker in memory, a process in a file, a client
//! in a database.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::{Fence, Grant, Mode, Moment, Owner};

/// How long a hand-off waits for its waiter to claim it (L5).
pub(crate) const CLAIM_WINDOW: Duration = Duration::from_secs(2);

/// What identifies a request: its token, or a hash of it where the record can be read by others.
pub(crate) type Id = u128;

/// A requester: the same data while it waits and while it holds.
#[derive(Clone, Debug)]
pub(crate) struct Requester<X> {
    pub(crate) id: Id,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<Owner>,
    pub(crate) note: Option<Arc<str>>,
    pub(crate) ttl: Duration,
    pub(crate) since: Moment,
    pub(crate) extra: X,
}

/// One grant.
#[derive(Clone, Debug)]
pub(crate) struct HolderState<X> {
    /// Boxed, because it moves between the queue and the holders.
    pub(crate) requester: Box<Requester<X>>,
    pub(crate) fence: Fence,
    pub(crate) previous: Option<Fence>,
    pub(crate) expires: Moment,
    /// False while a hand-off has not been claimed by its waiter.
    pub(crate) claimed: bool,
}

impl<X> HolderState<X> {
    pub(crate) fn grant(&self, waited: bool, trusted_from: Option<Moment>) -> Grant {
        Grant { fence: self.fence, previous_fence: self.previous, waited, trusted_from }
    }
}

/// The state of one key. Empty, it need not be kept.
#[derive(Debug)]
pub(crate) struct Rules<X> {
    pub(crate) holders: SmallVec<[HolderState<X>; 1]>,
    pub(crate) queue: VecDeque<Box<Requester<X>>>,
    pub(crate) last_fence: Option<Fence>,
}

impl<X> Default for Rules<X> {
    fn default() -> Self {
        Rules { holders: SmallVec::new(), queue: VecDeque::new(), last_fence: None }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It holds.
    Granted(Grant),
    /// It does not, and did not want to wait (or may not: an upgrade).
    Refused,
    /// It stands in the queue.
    Queued,
}

impl<X> Rules<X> {
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Decides about a request. The caller has ended what had expired at `now`, and goes on with
    /// [`admit`](Self::admit).
    pub(crate) fn request(
        &mut self,
        requester: impl Into<Box<Requester<X>>>,
        wait: bool,
        now: Moment,
        next_fence: &mut impl FnMut() -> Fence,
    ) -> Decision {
        let requester = requester.into();
        // The answer got lost, and the request is asked again (L17).
        if let Some(held) = self.holder_mut(requester.id) {
            if !held.claimed {
                held.claimed = true;
                held.expires = now.after(held.requester.ttl);
                return Decision::Granted(held.grant(true, Some(now)));
            }
            return Decision::Granted(held.grant(false, None));
        }
        if let Some(waiting) = self.queue.iter_mut().find(|w| w.id == requester.id) {
            if wait {
                waiting.extra = requester.extra;
                return Decision::Queued;
            }
            self.leave(requester.id);
            return Decision::Refused;
        }
        if let Some(owner) = &requester.owner
            && let Some(own) =
                self.holders.iter().position(|h| h.requester.owner.as_ref() == Some(owner))
        {
            let alone = self.holders.len() == 1;
            if requester.mode == Mode::Exclusive && !alone {
                return Decision::Refused; // an upgrade never waits (L7)
            }
            self.holders.swap_remove(own);
            return Decision::Granted(
                self.grant(requester, now, true, next_fence).grant(false, None),
            );
        }
        if self.queue.is_empty() && self.admits(requester.mode) {
            return Decision::Granted(
                self.grant(requester, now, true, next_fence).grant(false, None),
            );
        }
        if wait {
            self.queue.push_back(requester);
            return Decision::Queued;
        }
        Decision::Refused
    }

    /// The same where a waiter asks again whenever its place may have changed, and a last time when
    /// it would wait no longer. Also whether the ttl of what it is granted begins now.
    #[cfg(any(feature = "file", feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn request_in_turn(
        &mut self,
        requester: impl Into<Box<Requester<X>>>,
        wait: bool,
        has_waited: bool,
        now: Moment,
        next_fence: &mut impl FnMut() -> Fence,
    ) -> (Decision, bool) {
        let requester = requester.into();
        // A request that asks for the last time may be next.
        self.admit(now, next_fence, |_| {});
        let claimed = self.holder_mut(requester.id).map(|held| held.claimed);
        let known = claimed.is_some() || self.queue.iter().any(|w| w.id == requester.id);
        if has_waited && !wait && !known {
            // Its time was over, and others went on: to let it in now would be out of turn.
            return (Decision::Refused, false);
        }
        (self.request(requester, wait, now, next_fence), claimed != Some(true))
    }

    /// Hands the key to those whose turn it is, as reservations that wait to be claimed.
    pub(crate) fn admit(
        &mut self,
        now: Moment,
        next_fence: &mut impl FnMut() -> Fence,
        mut granted: impl FnMut(&mut HolderState<X>),
    ) {
        while let Some(next) = self.queue.front() {
            if !self.admits(next.mode) {
                return;
            }
            let Some(next) = self.queue.pop_front() else { return };
            granted(self.grant(next, now, false, next_fence));
        }
    }

    /// Whether somebody waits who can be let in.
    #[cfg(feature = "sqlite")]
    pub(crate) fn can_admit(&self) -> bool {
        self.queue.front().is_some_and(|next| self.admits(next.mode))
    }

    /// Ends the leases that ran out.
    pub(crate) fn expire(&mut self, now: Moment) -> bool {
        // By far the most common: one holder, still in time.
        if self.holders.iter().all(|h| h.expires > now) {
            return false;
        }
        self.holders.retain(|h| h.expires > now);
        true
    }

    /// Ends a grant.
    pub(crate) fn release(&mut self, id: Id) -> Option<HolderState<X>> {
        let at = self.holders.iter().position(|h| h.requester.id == id)?;
        Some(self.holders.remove(at))
    }

    /// Takes a request out of the queue.
    pub(crate) fn leave(&mut self, id: Id) -> Option<Box<Requester<X>>> {
        let at = self.queue.iter().position(|w| w.id == id)?;
        self.queue.remove(at)
    }

    /// Starts a new ttl.
    pub(crate) fn renew(&mut self, id: Id, ttl: Duration, now: Moment) -> bool {
        let Some(held) = self.holder_mut(id) else { return false };
        held.requester.ttl = ttl;
        held.expires = now.after(ttl);
        held.claimed = true;
        true
    }

    /// Lets a grant last at least this long from now on. A late twin of an earlier request must not
    /// shorten what was asked for since.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn extend(&mut self, id: Id, ttl: Duration, now: Moment) {
        if let Some(held) = self.holder_mut(id)
            && held.expires < now.after(ttl)
        {
            held.requester.ttl = ttl;
            held.expires = now.after(ttl);
            held.claimed = true;
        }
    }

    /// Replaces a grant's identity and raises its fence (L13).
    pub(crate) fn rotate(
        &mut self,
        old: Id,
        fresh: Id,
        ttl: Duration,
        now: Moment,
        next_fence: &mut impl FnMut() -> Fence,
    ) -> Option<Grant> {
        if let Some(held) = self.holder_mut(fresh) {
            return Some(held.grant(false, None));
        }
        let last = self.last_fence;
        let held = self.holder_mut(old)?;
        held.requester.id = fresh;
        held.requester.ttl = ttl;
        held.expires = now.after(ttl);
        held.previous = last;
        held.fence = next_fence();
        let grant = held.grant(false, None);
        self.last_fence = Some(grant.fence);
        Some(grant)
    }

    /// Ends one grant by its fence, or all (L12).
    pub(crate) fn break_lock(&mut self, fence: Option<Fence>) -> Vec<HolderState<X>> {
        let mut broken = Vec::new();
        let mut at = 0;
        while at < self.holders.len() {
            if fence.is_none_or(|f| f == self.holders[at].fence) {
                broken.push(self.holders.remove(at));
            } else {
                at += 1;
            }
        }
        broken
    }

    pub(crate) fn holder_mut(&mut self, id: Id) -> Option<&mut HolderState<X>> {
        self.holders.iter_mut().find(|h| h.requester.id == id)
    }

    /// When the next lease runs out.
    pub(crate) fn next_expiry(&self) -> Moment {
        self.holders.iter().map(|h| h.expires).min().unwrap_or(Moment::NEVER)
    }

    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => self.holders.iter().all(|h| h.requester.mode == Mode::Shared),
        }
    }

    fn grant(
        &mut self,
        mut requester: Box<Requester<X>>,
        now: Moment,
        claimed: bool,
        next_fence: &mut impl FnMut() -> Fence,
    ) -> &mut HolderState<X> {
        // Two requests of one owner may have waited together: one lease per owner and key.
        if requester.owner.is_some() {
            self.holders.retain(|h| h.requester.owner != requester.owner);
        }
        let fence = next_fence();
        let previous = self.last_fence.replace(fence);
        let lasts = if claimed { requester.ttl } else { requester.ttl.min(CLAIM_WINDOW) };
        requester.since = now;
        self.holders.push(HolderState {
            requester,
            fence,
            previous,
            expires: now.after(lasts),
            claimed,
        });
        let last = self.holders.len() - 1;
        &mut self.holders[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Ask { mode: Mode, owner: Option<u8>, wait: bool },
        Release(usize),
        Leave(usize),
        Renew(usize),
        Rotate(usize),
        Claim(usize),
        Break(Option<usize>),
        Pass(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
        prop_oneof![
            6 => (mode, prop::option::weighted(0.3, 0..3u8), any::<bool>())
                .prop_map(|(mode, owner, wait)| Step::Ask { mode, owner, wait }),
            4 => (0..4usize).prop_map(Step::Release),
            1 => (0..4usize).prop_map(Step::Leave),
            1 => (0..4usize).prop_map(Step::Renew),
            1 => (0..4usize).prop_map(Step::Rotate),
            3 => (0..4usize).prop_map(Step::Claim),
            1 => prop::option::of(0..4usize).prop_map(Step::Break),
            3 => (1..20u8).prop_map(Step::Pass),
        ]
    }

    /// One key, its clock, and everything that was ever granted.
    struct World {
        rules: Rules<()>,
        now: Moment,
        fences: u64,
        ids: Id,
        granted: Vec<Fence>,
    }

    impl World {
        fn holder(&self, at: usize) -> Option<Id> {
            self.rules.holders.get(at).map(|h| h.requester.id)
        }

        fn waiter(&self, at: usize) -> Option<Id> {
            self.rules.queue.get(at).map(|w| w.id)
        }

        fn take(&mut self, step: &Step) {
            let now = self.now;
            let fences = &mut self.fences;
            let mut next = || {
                *fences += 1;
                Fence::new(*fences)
            };
            match *step {
                Step::Ask { mode, owner, wait } => {
                    self.ids += 1;
                    let owner = owner.map(|o| Owner::new(&format!("o{o}")).expect("legal"));
                    let ttl = Duration::from_secs(10);
                    let requester = Requester {
                        id: self.ids,
                        mode,
                        owner,
                        note: None,
                        ttl,
                        since: now,
                        extra: (),
                    };
                    self.rules.expire(now);
                    let decision = self.rules.request(requester.clone(), wait, now, &mut next);
                    assert!(wait || decision != Decision::Queued);
                    // Asked again with the same token, the answer is the same.
                    let again = self.rules.request(requester, wait, now, &mut next);
                    match (decision, again) {
                        (Decision::Granted(a), Decision::Granted(b)) => {
                            assert_eq!(a.fence, b.fence)
                        }
                        (a, b) => assert_eq!(a, b),
                    }
                }
                Step::Release(at) => {
                    if let Some(id) = self.holder(at) {
                        assert!(self.rules.release(id).is_some());
                        assert!(self.rules.release(id).is_none(), "a lease ends once");
                    }
                }
                Step::Leave(at) => {
                    if let Some(id) = self.waiter(at) {
                        self.rules.leave(id);
                    }
                }
                Step::Renew(at) => {
                    if let Some(id) = self.holder(at) {
                        assert!(self.rules.renew(id, Duration::from_secs(10), now));
                    }
                }
                Step::Rotate(at) => {
                    if let Some(old) = self.rules.holders.get(at).map(|h| h.requester.id) {
                        self.ids += 1;
                        let ttl = Duration::from_secs(10);
                        let grant = self.rules.rotate(old, self.ids, ttl, now, &mut next);
                        assert!(grant.is_some());
                        assert!(self.rules.release(old).is_none(), "the old copy is dead");
                    }
                }
                Step::Claim(at) => {
                    if let Some(held) = self.rules.holders.get_mut(at) {
                        held.claimed = true;
                        held.expires = now.after(held.requester.ttl);
                    }
                }
                Step::Break(at) => {
                    let fence = at.and_then(|at| self.rules.holders.get(at)).map(|h| h.fence);
                    self.rules.break_lock(fence);
                }
                Step::Pass(seconds) => self.now = now.after(Duration::from_secs(seconds.into())),
            }
        }

        /// Ends what is over, hands on, and checks everything that must hold at any time.
        fn settle(&mut self) {
            let order: Vec<Id> = self.rules.queue.iter().map(|w| w.id).collect();
            let fences = &mut self.fences;
            let mut next = || {
                *fences += 1;
                Fence::new(*fences)
            };
            self.rules.expire(self.now);
            let mut admitted = Vec::new();
            self.rules.admit(self.now, &mut next, |held| admitted.push(held.requester.id));
            assert_eq!(admitted, order[..admitted.len()], "first come, first served");

            let rules = &self.rules;
            let writers =
                rules.holders.iter().filter(|h| h.requester.mode == Mode::Exclusive).count();
            assert!(writers == 0 || rules.holders.len() == 1, "exclusion: {rules:?}");
            if let Some(first) = rules.queue.front() {
                assert!(!rules.admits(first.mode), "nobody waits for a free key: {rules:?}");
            }
            for held in &rules.holders {
                assert!(held.expires > self.now);
                assert!(Some(held.fence) <= rules.last_fence);
                if held.requester.owner.is_some() {
                    let same =
                        rules.holders.iter().filter(|h| h.requester.owner == held.requester.owner);
                    assert_eq!(same.count(), 1, "one lease per owner");
                }
                if !self.granted.contains(&held.fence) {
                    let newest = self.granted.last().copied();
                    assert!(Some(held.fence) > newest, "fences grow");
                    self.granted.push(held.fence);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_sequence_of_events_keeps_the_rules(steps in prop::collection::vec(step(), 1..60)) {
            let mut world = World {
                rules: Rules::default(),
                now: Moment::from_nanos(1),
                fences: 0,
                ids: 0,
                granted: Vec::new(),
            };
            for step in &steps {
                world.take(step);
                world.settle();
            }
            // Left alone, every lease ends and everybody gets in.
            let mut rounds = 0;
            while !world.rules.is_empty() {
                world.take(&Step::Pass(10));
                world.settle();
                rounds += 1;
                prop_assert!(rounds <= 2 * steps.len() + 2, "somebody was forgotten");
            }
        }
    }
}
