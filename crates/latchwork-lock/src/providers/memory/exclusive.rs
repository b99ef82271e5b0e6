//! A key with exclusive requests only, none of which names an owner or has a note.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use super::requester::WakeAt;
use crate::rules::{CLAIM_WINDOW, HolderState, Id, Requester, Rules};
use crate::{AcquireRequest, Fence, Grant, Mode, Moment};

/// One exclusive holder without a name, and behind it a queue of the same kind.
///
/// Nearly every key is so for all its life, and who is next needs no other rule than to be next.
pub(super) struct ExclusiveKey {
    pub(super) id: Id,
    pub(super) fence: Fence,
    pub(super) expires: Moment,
    pub(super) ttl: Duration,
    /// None until the first waiter comes: until then the lease is as it began.
    pub(super) waiting: Option<Box<WaitQueue>>,
}

pub(super) struct WaitQueue {
    /// When the holder got its lease, and what is left to say of it.
    since: Moment,
    previous: Option<Fence>,
    claimed: bool,
    queue: VecDeque<QueuedWaiter>,
}

struct QueuedWaiter {
    id: Id,
    ttl: Duration,
    since: Moment,
    deadline: Moment,
    /// Always there until it is taken out.
    waker: Option<Waker>,
}

impl ExclusiveKey {
    /// Whether a request can be one of these.
    #[inline]
    pub(super) fn suits(request: &AcquireRequest) -> bool {
        request.mode == Mode::Exclusive && request.owner.is_none() && request.note.is_none()
    }

    /// The first grant of a key that nobody had.
    pub(super) fn granted(request: &AcquireRequest, now: Moment, fence: Fence) -> Self {
        ExclusiveKey {
            id: request.token.expose(),
            fence,
            expires: now.after(request.ttl),
            ttl: request.ttl,
            waiting: None,
        }
    }

    #[inline]
    pub(super) fn is_held_by(&self, id: Id) -> bool {
        self.id == id
    }

    /// Whether there are no waiters, and the holder did not wait.
    #[inline]
    pub(super) fn is_uncontended(&self) -> bool {
        self.waiting.is_none()
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.queue.is_empty())
    }

    /// Adds a waiter whose token was not used before.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        request: &AcquireRequest,
        now: Moment,
        deadline: Moment,
        waker: &Waker,
    ) {
        self.waiting().queue.push_back(QueuedWaiter {
            id: request.token.expose(),
            ttl: request.ttl,
            since: now,
            deadline,
            waker: Some(waker.clone()),
        });
    }

    /// The holder confirms its hand-off (L5), or asks once more what it was granted.
    #[inline]
    pub(super) fn claim(&mut self, now: Moment, begins: Moment) -> Option<Grant> {
        if self.expires <= now {
            return None;
        }
        let fence = self.fence;
        let waiting = self.waiting();
        waiting.claimed = true;
        let previous_fence = waiting.previous;
        self.expires = begins.after(self.ttl);
        Some(Grant { fence, previous_fence, waited: true, trusted_from: Some(now) })
    }

    /// Stores how to wake a waiter; false when it does not wait (any more).
    pub(super) fn update_waker(&mut self, id: Id, waker: &Waker) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        let Some(waiter) = waiting.queue.iter_mut().find(|p| p.id == id) else { return false };
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        true
    }

    /// Removes a waiter from the queue.
    pub(super) fn leave(&mut self, id: Id) {
        if let Some(waiting) = &mut self.waiting
            && let Some(at) = waiting.queue.iter().position(|p| p.id == id)
        {
            waiting.queue.remove(at);
        }
    }

    /// Ends the lease and hands the key to the next, as a reservation that waits to be claimed;
    /// none when there is no next.
    #[inline]
    pub(super) fn grant_next(
        &mut self,
        now: Moment,
        fence: impl FnOnce() -> Fence,
    ) -> Option<Waker> {
        let waiting = self.waiting.as_mut()?;
        let next = waiting.queue.pop_front()?;
        self.id = next.id;
        self.ttl = next.ttl;
        waiting.previous = Some(self.fence);
        waiting.claimed = false;
        waiting.since = now;
        self.fence = fence();
        self.expires = now.after(self.ttl.min(CLAIM_WINDOW));
        next.waker
    }

    /// Removes the waiters whose deadline has passed.
    pub(super) fn remove_timed_out(&mut self, now: Moment, mut gone: impl FnMut(Option<Waker>)) {
        let Some(waiting) = &mut self.waiting else { return };
        if waiting.queue.iter().any(|waiter| waiter.deadline <= now) {
            let all = std::mem::take(&mut waiting.queue).into_iter();
            let (over, rest) = all.partition::<VecDeque<_>, _>(|waiter| waiter.deadline <= now);
            waiting.queue = rest;
            over.into_iter().for_each(|waiter| gone(waiter.waker));
        }
    }

    /// When the next waiter times out, or the lease before them ends.
    pub(super) fn due(&self) -> Moment {
        match &self.waiting {
            Some(waiting) if !waiting.queue.is_empty() => {
                waiting.queue.iter().map(|p| p.deadline).fold(self.expires, Moment::min)
            }
            _ => Moment::NEVER,
        }
    }

    /// The holder, as the general rules have it.
    pub(super) fn held(&self) -> HolderState<WakeAt> {
        let waiting = self.waiting.as_ref();
        HolderState {
            requester: Box::new(Requester {
                id: self.id,
                mode: Mode::Exclusive,
                owner: None,
                note: None,
                ttl: self.ttl,
                since: self.since(),
                extra: WakeAt { waker: None, deadline: self.expires },
            }),
            fence: self.fence,
            previous: waiting.and_then(|waiting| waiting.previous),
            expires: self.expires,
            claimed: waiting.is_none_or(|waiting| waiting.claimed),
        }
    }

    /// All of it, as the general rules have it.
    pub(super) fn rules(&self) -> Box<Rules<WakeAt>> {
        let mut rules = Box::new(Rules::default());
        rules.last_fence = Some(self.fence);
        rules.holders.push(self.held());
        let queue = self.waiting.iter().flat_map(|waiting| &waiting.queue);
        rules.queue = queue.map(|waiter| Box::new(waiter.requester())).collect();
        rules
    }

    #[inline]
    fn waiting(&mut self) -> &mut WaitQueue {
        let since = self.since();
        self.waiting.get_or_insert_with(|| {
            Box::new(WaitQueue { since, previous: None, claimed: true, queue: VecDeque::new() })
        })
    }

    #[inline]
    fn since(&self) -> Moment {
        match &self.waiting {
            Some(waiting) => waiting.since,
            None => self.expires.before(self.ttl),
        }
    }
}

impl QueuedWaiter {
    fn requester(&self) -> Requester<WakeAt> {
        Requester {
            id: self.id,
            mode: Mode::Exclusive,
            owner: None,
            note: None,
            ttl: self.ttl,
            since: self.since,
            extra: WakeAt { waker: self.waker.clone(), deadline: self.deadline },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::requester::requester;
    use super::*;
    use crate::{Key, Token, Wait};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Join { ttl: u64, patience: Option<u64> },
        Leave(usize),
        Release,
        Claim,
        Tick,
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..9_u64, prop::option::of(1..9_u64))
                .prop_map(|(ttl, patience)| Step::Join { ttl, patience }),
            1 => (0..4_usize).prop_map(Step::Leave),
            3 => Just(Step::Release),
            3 => Just(Step::Claim),
            2 => Just(Step::Tick),
            2 => (1..4_u64).prop_map(Step::Pass),
        ]
    }

    fn request(id: Id, ttl: u64) -> AcquireRequest {
        AcquireRequest {
            key: Key::new("key").expect("legal"),
            mode: Mode::Exclusive,
            token: Token::from_exposed(id),
            owner: None,
            note: None,
            ttl: Duration::from_secs(ttl),
            wait: Wait::Forever,
            keep: Duration::ZERO,
            retry_interval: Duration::ZERO,
            sent_at: Moment::default(),
        }
    }

    /// The same key twice: as an exclusive key, and by the general rules.
    struct Twice {
        exclusive: ExclusiveKey,
        rules: Rules<WakeAt>,
        now: Moment,
        ids: Id,
        /// Of each keeping its own, and they must stay the same.
        fences: [u64; 2],
    }

    impl Twice {
        fn new(now: Moment, ids: Id, fence: u64) -> Self {
            let first = Fence::new(fence);
            let exclusive = ExclusiveKey::granted(&request(ids, 5), now, first);
            let mut rules = Rules::default();
            let seat = WakeAt { waker: None, deadline: now };
            rules.request(requester(&request(ids, 5), now, seat), true, now, &mut || first);
            Twice { exclusive, rules, now, ids, fences: [fence; 2] }
        }

        /// False when nobody holds it any more.
        fn take(&mut self, step: &Step) -> bool {
            let now = self.now;
            let [ours, theirs] = &mut self.fences;
            let mut next = || {
                *theirs += 1;
                Fence::new(*theirs)
            };
            let fence = || {
                *ours += 1;
                Fence::new(*ours)
            };
            let holder = self.exclusive.id;
            let mut held = true;
            match *step {
                Step::Join { ttl, patience } if self.exclusive.expires > now => {
                    self.ids += 1;
                    let request = request(self.ids, ttl);
                    let deadline =
                        patience.map_or(Moment::NEVER, |span| now.after(Duration::from_secs(span)));
                    self.exclusive.enqueue(&request, now, deadline, Waker::noop());
                    let seat = WakeAt { waker: Some(Waker::noop().clone()), deadline };
                    self.rules.request(requester(&request, now, seat), true, now, &mut next);
                }
                Step::Join { .. } => {} // a key whose time is over goes by the general rules
                Step::Leave(at) => {
                    if let Some(id) = self.rules.queue.get(at).map(|w| w.id) {
                        assert!(self.exclusive.update_waker(id, Waker::noop()));
                        self.exclusive.leave(id);
                        self.rules.leave(id);
                        assert!(!self.exclusive.update_waker(id, Waker::noop()));
                    }
                }
                Step::Release => {
                    held = self.exclusive.grant_next(now, fence).is_some();
                    self.rules.release(holder);
                    self.rules.admit(now, &mut next, |_| ());
                }
                Step::Claim => {
                    let claimed = self.exclusive.claim(now, now);
                    let theirs = self.rules.holder_mut(holder).filter(|held| held.expires > now);
                    assert_eq!(
                        claimed,
                        theirs.map(|held| {
                            held.claimed = true;
                            held.expires = now.after(held.requester.ttl);
                            held.grant(true, Some(now))
                        })
                    );
                }
                Step::Tick => {
                    self.exclusive.remove_timed_out(now, |_| ());
                    if self.exclusive.expires <= now {
                        held = self.exclusive.grant_next(now, fence).is_some();
                    }
                    self.rules.expire(now);
                    self.rules.queue.retain(|w| w.extra.deadline > now);
                    self.rules.admit(now, &mut next, |_| ());
                }
                Step::Pass(seconds) => self.now = now.after(Duration::from_secs(seconds)),
            }
            held
        }
    }

    /// All that can be seen of a key.
    fn shown(rules: &Rules<WakeAt>) -> impl PartialEq + std::fmt::Debug + use<> {
        let holder = |h: &HolderState<WakeAt>| {
            (
                h.requester.id,
                h.requester.since,
                h.requester.ttl,
                h.fence,
                h.previous,
                h.expires,
                h.claimed,
            )
        };
        let waiter = |w: &Requester<WakeAt>| (w.id, w.since, w.ttl, w.extra.deadline);
        let holders: Vec<_> = rules.holders.iter().map(holder).collect();
        let waiters: Vec<_> = rules.queue.iter().map(|w| waiter(w)).collect();
        (holders, waiters, rules.last_fence)
    }

    proptest! {
        #[test]
        fn it_does_what_the_general_rules_do(steps in prop::collection::vec(step(), 1..60)) {
            let mut twice = Twice::new(Moment::from_nanos(1), 1, 1);
            for step in &steps {
                if twice.take(step) {
                    prop_assert_eq!(shown(&twice.exclusive.rules()), shown(&twice.rules));
                } else {
                    prop_assert!(twice.rules.is_empty());
                    twice = Twice::new(twice.now, twice.ids + 1, twice.fences[0] + 1);
                }
                prop_assert_eq!(twice.fences[0], twice.fences[1]);
            }
        }
    }
}
