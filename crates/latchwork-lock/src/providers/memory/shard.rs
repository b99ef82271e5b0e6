//! The keys of one shard, and what is due for them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;
use std::time::Duration;

use super::record::{Entries, Entry, State};
use crate::{AcquireRequest, Fence, Key, Moment};

pub(super) struct Shard {
    pub(super) entries: Entries,
    pub(super) last_fence: u64,
    /// No waiter's deadline and no waited-for lease ends before this.
    pub(super) due: Moment,
    /// Leases that left their guard: nobody's drop will clean up after them. Apart, since most
    /// shards have none, and without it a shard is three cache lines.
    pub(super) handed_over: Option<Box<HandedOver>>,
}

/// By their expiry.
#[derive(Default)]
pub(super) struct HandedOver(pub(super) BinaryHeap<Reverse<(Moment, Key)>>);

impl Shard {
    /// Takes a key that nobody has.
    pub(super) fn take_free(
        &mut self,
        request: &AcquireRequest,
        now: Moment,
        lag: Duration,
        epoch: u64,
    ) -> Option<Fence> {
        if self.handed_over.is_some() {
            self.forget_handed_over(now);
        }
        if self.entries.find(&request.key).is_some() {
            return None;
        }
        let fence = next_fence(&mut self.last_fence, epoch, now);
        let state = State::granted(request, now.after(lag), fence);
        self.entries.insert(Entry { key: request.key.clone(), state });
        Some(fence)
    }

    pub(super) fn tick(&mut self, now: Moment, epoch_micros: u64, wakers: &mut Wakers) {
        let Shard { entries, last_fence, due, .. } = self;
        *due = Moment::NEVER;
        entries.retain(|entry| {
            let mut fence = || next_fence(last_fence, epoch_micros, now);
            let rules = match &mut entry.state {
                State::Exclusive(exclusive) => {
                    if exclusive.has_waiters() {
                        exclusive.remove_timed_out(now, |waker| wakers.add(waker));
                        if exclusive.expires <= now {
                            let next = exclusive.grant_next(now, fence);
                            if next.is_none() {
                                return false;
                            }
                            wakers.add(next);
                        }
                        *due = (*due).min(exclusive.due());
                    }
                    return true;
                }
                State::General(rules) => rules,
            };
            if rules.queue.is_empty() {
                return true;
            }
            rules.expire(now);
            rules.queue.retain_mut(|w| {
                let stays = w.extra.deadline > now;
                if !stays {
                    wakers.add(w.extra.waker.take());
                }
                stays
            });
            rules.admit(now, &mut fence, |held| wakers.add(held.requester.extra.waker.take()));
            let deadlines = rules.queue.iter().map(|w| w.extra.deadline);
            *due = deadlines.fold(*due, Moment::min).min(rules.next_check());
            !rules.is_empty()
        });
    }

    /// Drops leases that left their guard and ran out. Usually there are none.
    fn forget_handed_over(&mut self, now: Moment) {
        let Shard { entries, handed_over: Some(apart), .. } = self else { return };
        let HandedOver(handed_over) = &mut **apart;
        while handed_over.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, key))) = handed_over.pop() else { return };
            let Some(entry) = entries.find(&key) else { continue };
            let rules = entry.rules();
            if !rules.queue.is_empty() {
                continue; // its waiters will see to it
            }
            rules.expire(now);
            if rules.is_empty() {
                entries.remove(&key);
            } else {
                // Resumed or renewed meanwhile: look again when that ends.
                let at = rules.next_expiry();
                handed_over.push(Reverse((at, key)));
            }
        }
        if handed_over.is_empty() {
            self.handed_over = None;
        }
    }
}

/// The larger of the last fence and one, and the wall clock in microseconds: it grows within the
/// process by the first, over a restart by the second.
pub(super) fn next_fence(last: &mut u64, epoch_micros: u64, now: Moment) -> Fence {
    let micros = epoch_micros + now.as_nanos() / 1_000;
    *last = (*last + 1).max(micros);
    Fence::new(*last)
}

/// Tasks to wake once the shard is unlocked: mostly one.
#[derive(Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(super) fn add(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else {
            self.more.extend(waker);
        }
    }

    pub(super) fn wake(self) {
        for waker in self.first.into_iter().chain(self.more) {
            waker.wake();
        }
    }
}
