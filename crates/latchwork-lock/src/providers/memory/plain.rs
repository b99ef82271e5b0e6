//! A key that is asked for plainly: alone, and by nobody in particular.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use super::record::Seat;
use crate::rules::{CLAIM_WINDOW, Held, Id, Party, Rules};
use crate::{AcquireRequest, Fence, Grant, Mode, Moment};

/// One exclusive holder without a name, and behind it a line of the same kind.
///
/// Nearly every key is so for all its life, and who is next needs no other rule than to be next.
pub(super) struct Plain {
    pub(super) id: Id,
    pub(super) fence: Fence,
    pub(super) expires: Moment,
    pub(super) ttl: Duration,
    /// Made for the first that waits: until then the lease is as it began.
    pub(super) line: Option<Box<Line>>,
}

pub(super) struct Line {
    /// When the holder got its lease, and what is left to say of it.
    since: Moment,
    previous: Option<Fence>,
    claimed: bool,
    queue: VecDeque<Place>,
}

struct Place {
    id: Id,
    ttl: Duration,
    since: Moment,
    deadline: Moment,
    /// Always there but for the moment at which it is taken out.
    waker: Option<Waker>,
}

impl Plain {
    /// Whether a request can be one of these.
    #[inline]
    pub(super) fn suits(request: &AcquireRequest) -> bool {
        request.mode == Mode::Exclusive && request.owner.is_none() && request.note.is_none()
    }

    /// The first grant of a key that nobody had.
    pub(super) fn granted(request: &AcquireRequest, now: Moment, fence: Fence) -> Self {
        Plain {
            id: request.token.expose(),
            fence,
            expires: now.after(request.ttl),
            ttl: request.ttl,
            line: None,
        }
    }

    #[inline]
    pub(super) fn is_held_by(&self, id: Id) -> bool {
        self.id == id
    }

    /// Whether nobody waits, nor had to.
    #[inline]
    pub(super) fn is_lone(&self) -> bool {
        self.line.is_none()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.line.as_ref().is_some_and(|line| !line.queue.is_empty())
    }

    /// Stands in line; the token is one that nobody has used before.
    #[inline]
    pub(super) fn join(
        &mut self,
        request: &AcquireRequest,
        now: Moment,
        deadline: Moment,
        waker: &Waker,
    ) {
        self.line().queue.push_back(Place {
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
        let line = self.line();
        line.claimed = true;
        let previous_fence = line.previous;
        self.expires = begins.after(self.ttl);
        Some(Grant { fence, previous_fence, waited: true, trusted_from: Some(now) })
    }

    /// One that waits says how to wake it; false when it does not wait (any more).
    pub(super) fn still_waits(&mut self, id: Id, waker: &Waker) -> bool {
        let Some(line) = &mut self.line else { return false };
        let Some(place) = line.queue.iter_mut().find(|p| p.id == id) else { return false };
        match &mut place.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        true
    }

    /// Takes one that waits out of the line.
    pub(super) fn leave(&mut self, id: Id) {
        if let Some(line) = &mut self.line
            && let Some(at) = line.queue.iter().position(|p| p.id == id)
        {
            line.queue.remove(at);
        }
    }

    /// Ends the lease and hands the key to the next, as a reservation that waits to be claimed;
    /// none when there is no next.
    #[inline]
    pub(super) fn pass_on(&mut self, now: Moment, fence: impl FnOnce() -> Fence) -> Option<Waker> {
        let line = self.line.as_mut()?;
        let next = line.queue.pop_front()?;
        self.id = next.id;
        self.ttl = next.ttl;
        line.previous = Some(self.fence);
        line.claimed = false;
        line.since = now;
        self.fence = fence();
        self.expires = now.after(self.ttl.min(CLAIM_WINDOW));
        next.waker
    }

    /// Sends away those whose time to wait is over.
    pub(super) fn give_up(&mut self, now: Moment, mut gone: impl FnMut(Option<Waker>)) {
        let Some(line) = &mut self.line else { return };
        if line.queue.iter().any(|place| place.deadline <= now) {
            let all = std::mem::take(&mut line.queue).into_iter();
            let (over, rest) = all.partition::<VecDeque<_>, _>(|place| place.deadline <= now);
            line.queue = rest;
            over.into_iter().for_each(|place| gone(place.waker));
        }
    }

    /// When the next of those who wait has waited long enough, or the lease before them ends.
    pub(super) fn due(&self) -> Moment {
        match &self.line {
            Some(line) if !line.queue.is_empty() => {
                line.queue.iter().map(|p| p.deadline).fold(self.expires, Moment::min)
            }
            _ => Moment::NEVER,
        }
    }

    /// The holder, as the full rules have it.
    pub(super) fn held(&self) -> Held<Seat> {
        let line = self.line.as_ref();
        Held {
            party: Box::new(Party {
                id: self.id,
                mode: Mode::Exclusive,
                owner: None,
                note: None,
                ttl: self.ttl,
                since: self.since(),
                extra: Seat { waker: None, deadline: self.expires },
            }),
            fence: self.fence,
            previous: line.and_then(|line| line.previous),
            expires: self.expires,
            claimed: line.is_none_or(|line| line.claimed),
        }
    }

    /// All of it, as the full rules have it.
    pub(super) fn rules(&self) -> Box<Rules<Seat>> {
        let mut rules = Box::new(Rules::default());
        rules.last_fence = Some(self.fence);
        rules.holders.push(self.held());
        let queue = self.line.iter().flat_map(|line| &line.queue);
        rules.queue = queue.map(|place| Box::new(place.party())).collect();
        rules
    }

    #[inline]
    fn line(&mut self) -> &mut Line {
        let since = self.since();
        self.line.get_or_insert_with(|| {
            Box::new(Line { since, previous: None, claimed: true, queue: VecDeque::new() })
        })
    }

    #[inline]
    fn since(&self) -> Moment {
        match &self.line {
            Some(line) => line.since,
            None => self.expires.before(self.ttl),
        }
    }
}

impl Place {
    fn party(&self) -> Party<Seat> {
        Party {
            id: self.id,
            mode: Mode::Exclusive,
            owner: None,
            note: None,
            ttl: self.ttl,
            since: self.since,
            extra: Seat { waker: self.waker.clone(), deadline: self.deadline },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::party;
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
            retry_interval: Duration::ZERO,
            sent_at: Moment::default(),
        }
    }

    /// The same key twice: kept plainly, and by the full rules.
    struct Twice {
        plain: Plain,
        rules: Rules<Seat>,
        now: Moment,
        ids: Id,
        /// Of each keeping its own, and they must stay the same.
        fences: [u64; 2],
    }

    impl Twice {
        fn new(now: Moment, ids: Id, fence: u64) -> Self {
            let first = Fence::new(fence);
            let plain = Plain::granted(&request(ids, 5), now, first);
            let mut rules = Rules::default();
            let seat = Seat { waker: None, deadline: now };
            rules.ask(party(&request(ids, 5), now, seat), true, now, &mut || first);
            Twice { plain, rules, now, ids, fences: [fence; 2] }
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
            let holder = self.plain.id;
            let mut held = true;
            match *step {
                Step::Join { ttl, patience } if self.plain.expires > now => {
                    self.ids += 1;
                    let request = request(self.ids, ttl);
                    let deadline =
                        patience.map_or(Moment::NEVER, |span| now.after(Duration::from_secs(span)));
                    self.plain.join(&request, now, deadline, Waker::noop());
                    let seat = Seat { waker: Some(Waker::noop().clone()), deadline };
                    self.rules.ask(party(&request, now, seat), true, now, &mut next);
                }
                Step::Join { .. } => {} // a key whose time is over goes by the full rules
                Step::Leave(at) => {
                    if let Some(id) = self.rules.queue.get(at).map(|w| w.id) {
                        assert!(self.plain.still_waits(id, Waker::noop()));
                        self.plain.leave(id);
                        self.rules.leave(id);
                        assert!(!self.plain.still_waits(id, Waker::noop()));
                    }
                }
                Step::Release => {
                    held = self.plain.pass_on(now, fence).is_some();
                    self.rules.release(holder);
                    self.rules.admit(now, &mut next, |_| ());
                }
                Step::Claim => {
                    let claimed = self.plain.claim(now, now);
                    let theirs = self.rules.holder_mut(holder).filter(|held| held.expires > now);
                    assert_eq!(
                        claimed,
                        theirs.map(|held| {
                            held.claimed = true;
                            held.expires = now.after(held.party.ttl);
                            held.grant(true, Some(now))
                        })
                    );
                }
                Step::Tick => {
                    self.plain.give_up(now, |_| ());
                    if self.plain.expires <= now {
                        held = self.plain.pass_on(now, fence).is_some();
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
    fn shown(rules: &Rules<Seat>) -> impl PartialEq + std::fmt::Debug + use<> {
        let holder = |h: &Held<Seat>| {
            (h.party.id, h.party.since, h.party.ttl, h.fence, h.previous, h.expires, h.claimed)
        };
        let waiter = |w: &Party<Seat>| (w.id, w.since, w.ttl, w.extra.deadline);
        let holders: Vec<_> = rules.holders.iter().map(holder).collect();
        let waiters: Vec<_> = rules.queue.iter().map(|w| waiter(w)).collect();
        (holders, waiters, rules.last_fence)
    }

    proptest! {
        #[test]
        fn a_plain_key_does_what_the_full_rules_do(steps in prop::collection::vec(step(), 1..60)) {
            let mut twice = Twice::new(Moment::from_nanos(1), 1, 1);
            for step in &steps {
                if twice.take(step) {
                    prop_assert_eq!(shown(&twice.plain.rules()), shown(&twice.rules));
                } else {
                    prop_assert!(twice.rules.is_empty());
                    twice = Twice::new(twice.now, twice.ids + 1, twice.fences[0] + 1);
                }
                prop_assert_eq!(twice.fences[0], twice.fences[1]);
            }
        }
    }
}
