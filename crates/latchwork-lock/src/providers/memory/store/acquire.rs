//! Requests for a lease.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{PollKind, Store};
use crate::providers::memory::exclusive::ExclusiveKey;
use crate::providers::memory::record::State;
use crate::providers::memory::requester::{WakeAt, requester};
use crate::providers::memory::shard::{Shard, Wakers, next_fence};
use crate::rules::{Decision, Id};
use crate::sync::MutexGuard;
use crate::{AcquireRequest, Acquired, Grant, Key, Moment, Result, Wait, process_label};

/// As [`LockProvider::poll_acquire`](crate::LockProvider::poll_acquire) has it.
pub(in crate::providers::memory) type Answer = Option<Poll<Result<Acquired>>>;

impl Store {
    /// Asks for a lease.
    #[inline]
    pub(in crate::providers::memory) fn poll(
        self: &Arc<Self>,
        request: &AcquireRequest,
        asked: PollKind,
        waker: &Waker,
    ) -> Answer {
        if asked == PollKind::Again {
            return self.poll_again(request, waker);
        }
        self.request(request, asked, waker, request.sent_at)
    }

    fn poll_again(self: &Arc<Self>, request: &AcquireRequest, waker: &Waker) -> Answer {
        let looked = self.check_grant(&request.key, request.token.expose(), waker);
        if looked.is_some() {
            return looked;
        }
        // Its time is over, or it did not claim in time and the key went on to the next.
        let now = self.clock.recent();
        let mut answer = self.request(request, PollKind::Perhaps, waker, now);
        if let Some(Poll::Ready(Ok(Acquired::Granted(grant)))) = &mut answer {
            grant.waited = true;
            grant.trusted_from.get_or_insert(now);
        }
        answer
    }

    #[inline]
    fn request(
        self: &Arc<Self>,
        request: &AcquireRequest,
        asked: PollKind,
        waker: &Waker,
        now: Moment,
    ) -> Answer {
        let mut shard = self.shard(request.key.process_hash());
        match shard.take_free(request, now, self.lag, self.epoch_micros) {
            Some(fence) => Some(Poll::Ready(Ok(Acquired::Granted(Grant::first(fence))))),
            None => self.request_taken(shard, request, asked, waker, now),
        }
    }

    #[inline(never)]
    fn request_taken(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        request: &AcquireRequest,
        asked: PollKind,
        waker: &Waker,
        now: Moment,
    ) -> Answer {
        let Shard { entries, last_fence, due, .. } = &mut *shard;
        let begins = now.after(self.lag);
        let Some(entry) = entries.find(&request.key) else {
            unreachable!("the key was taken, and the shard is locked");
        };
        let deadline = match request.wait {
            Wait::No => Moment::default(),
            Wait::For(span) => request.sent_at.after(self.lag).after(span),
            Wait::Forever => Moment::NEVER,
        };
        let wait = now < deadline;
        if let State::Exclusive(exclusive) = &mut entry.state
            && exclusive.expires > now
            && asked == PollKind::First
        {
            if !wait {
                let holder = self.reporter().holder(&exclusive.held(), process_label());
                return Some(Poll::Ready(Ok(Acquired::Taken(Some(Box::new(holder))))));
            }
            if ExclusiveKey::suits(request) {
                exclusive.enqueue(request, begins, deadline, waker);
                let look = exclusive.expires.min(deadline);
                *due = (*due).min(look);
                drop(shard);
                self.timer.wake_at(self, look);
                return Some(Poll::Pending);
            }
        }
        let mut fence = || next_fence(last_fence, self.epoch_micros, now);
        let mut wakers = Wakers::default();
        let rules = entry.rules();
        if rules.expire(now) {
            rules.admit(begins, &mut fence, |held| wakers.add(held.requester.extra.waker.take()));
        }
        let seat = WakeAt { waker: wait.then(|| waker.clone()), deadline };
        let decision = rules.request(requester(request, begins, seat), wait, begins, &mut fence);
        // A take-over may have made a writer a reader, and room for others.
        if !rules.queue.is_empty() {
            rules.admit(begins, &mut fence, |held| wakers.add(held.requester.extra.waker.take()));
        }
        let mut look = rules.next_check();
        let answer = match decision {
            Decision::Granted(grant) => {
                let trusted_from = grant.trusted_from.map(|_| now);
                Some(Poll::Ready(Ok(Acquired::Granted(Grant { trusted_from, ..grant }))))
            }
            Decision::Queued => {
                look = look.min(deadline);
                Some(Poll::Pending)
            }
            Decision::Refused => {
                let report = self.reporter();
                let holder = rules.holders.first();
                let holder = holder.map(|h| Box::new(report.holder(h, process_label())));
                Some(Poll::Ready(Ok(Acquired::Taken(holder))))
            }
        };
        *due = (*due).min(look);
        drop(shard);
        wakers.wake();
        self.timer.wake_at(self, look);
        answer
    }

    /// A waiter looks whether it was granted the key, and claims it if so. None when it neither
    /// holds nor waits (any more).
    fn check_grant(&self, key: &Key, id: Id, waker: &Waker) -> Answer {
        let mut shard = self.shard(key.process_hash());
        let entry = shard.entries.find(key)?;
        let rules = match &mut entry.state {
            State::Exclusive(exclusive) if exclusive.is_held_by(id) => {
                let now = self.clock.recent();
                let grant = exclusive.claim(now, now.after(self.lag))?;
                return Some(Poll::Ready(Ok(Acquired::Granted(grant))));
            }
            State::Exclusive(exclusive) => {
                return exclusive.update_waker(id, waker).then_some(Poll::Pending);
            }
            State::General(rules) => rules,
        };
        if let Some(held) = rules.holder_mut(id) {
            let now = self.clock.recent();
            if held.expires <= now {
                return None;
            }
            held.claimed = true;
            held.expires = now.after(self.lag).after(held.requester.ttl);
            return Some(Poll::Ready(Ok(Acquired::Granted(held.grant(true, Some(now))))));
        }
        let waiting = rules.queue.iter_mut().find(|w| w.id == id)?;
        let seat = &mut waiting.extra.waker;
        if !seat.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *seat = Some(waker.clone());
        }
        Some(Poll::Pending)
    }
}
