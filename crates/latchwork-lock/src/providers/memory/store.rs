//! Where the truth lives: 512 shards of entries that exist only while somebody holds or waits.
//!
//! The way from one holder to the next goes by [`Clock::recent`], since a look at the hardware is
//! a quarter of the whole way. What has run out is judged by that moment, which is too early, and
//! what begins by that moment and the lag, which is late enough: so no lease ends before its ttl.
//! The client's trust begins at the very same reading, so it ends first however large the lag was.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::plain::Plain;
use super::record::{Entries, Entry, Seat, State, party};
use super::sync::{Mutex, MutexGuard};
use super::wait::Timer;
use crate::rules::{Id, Reporter, Rules, Verdict};
use crate::{
    AcquireRequest, Acquired, Clock, Fence, Grant, Holder, Inspection, Key, Moment, Result, Wait,
    process_label,
};

/// A power of two, above any sensible number of cores; the shard is the hash's upper bits, since
/// the table inside uses the lower ones.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 9;

/// Tasks to wake once the shard is unlocked: mostly one.
#[derive(Default)]
struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn add(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else {
            self.more.extend(waker);
        }
    }

    fn wake(self) {
        for waker in self.first.into_iter().chain(self.more) {
            waker.wake();
        }
    }
}

pub(super) struct Store {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timer: Timer,
    /// How far the clock's recent moment may be behind.
    lag: Duration,
    /// Wall clock in microseconds at the clock's own zero: fences begin there, so that they grow
    /// over a restart of the process too.
    epoch_micros: u64,
}

struct Shard {
    entries: Entries,
    last_fence: u64,
    /// No waiter's deadline and no waited-for lease ends before this.
    due: Moment,
    /// Leases that left their guard: nobody's drop will clean up after them. Apart, since most
    /// shards have none, and without it a shard is three cache lines.
    handed_over: Option<Box<HandedOver>>,
}

/// By their expiry.
#[derive(Default)]
struct HandedOver(BinaryHeap<Reverse<(Moment, Key)>>);

/// As [`LockProvider::poll_acquire`](crate::LockProvider::poll_acquire) has it.
pub(super) type Answer = Option<Poll<Result<Acquired>>>;

/// Which question of a request this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The first with its token.
    First,
    /// Perhaps not the first: an answer may have got lost (L17).
    Perhaps,
    /// It waits, and looks whether its turn has come.
    Again,
}

impl Store {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let since_zero = Duration::from_nanos(clock.now().as_nanos());
        let wall = clock.wall().timestamp_micros().max(0).unsigned_abs();
        let micros = u64::try_from(since_zero.as_micros()).unwrap_or(u64::MAX);
        let shard = || {
            CachePadded::new(Mutex::new(Shard {
                entries: Entries::default(),
                last_fence: 0,
                due: Moment::NEVER,
                handed_over: None,
            }))
        };
        Store {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            timer: Timer::default(),
            lag: clock.lag(),
            clock,
            epoch_micros: wall.saturating_sub(micros),
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards[(hash >> (64 - SHARD_BITS)) as usize].lock()
    }

    /// Asks for a lease.
    #[inline]
    pub(super) fn poll(
        self: &Arc<Self>,
        request: &AcquireRequest,
        asked: Asked,
        waker: &Waker,
    ) -> Answer {
        if asked == Asked::Again {
            return self.poll_again(request, waker);
        }
        self.ask(request, asked, waker, request.sent_at)
    }

    fn poll_again(self: &Arc<Self>, request: &AcquireRequest, waker: &Waker) -> Answer {
        let looked = self.look(&request.key, request.token.expose(), waker);
        if looked.is_some() {
            return looked;
        }
        // Its time is over, or it did not claim in time and the key went on to the next.
        let now = self.clock.recent();
        let mut answer = self.ask(request, Asked::Perhaps, waker, now);
        if let Some(Poll::Ready(Ok(Acquired::Granted(grant)))) = &mut answer {
            grant.waited = true;
            grant.trusted_from.get_or_insert(now);
        }
        answer
    }

    #[inline]
    fn ask(
        self: &Arc<Self>,
        request: &AcquireRequest,
        asked: Asked,
        waker: &Waker,
        now: Moment,
    ) -> Answer {
        let mut shard = self.shard(request.key.process_hash());
        match shard.take_free(request, now, self.lag, self.epoch_micros) {
            Some(fence) => Some(Poll::Ready(Ok(Acquired::Granted(Grant::first(fence))))),
            None => self.ask_for_taken(shard, request, asked, waker, now),
        }
    }

    #[inline(never)]
    fn ask_for_taken(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        request: &AcquireRequest,
        asked: Asked,
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
        if let State::Plain(plain) = &mut entry.state
            && plain.expires > now
            && asked == Asked::First
        {
            if !wait {
                let holder = self.reporter().holder(&plain.held(), process_label());
                return Some(Poll::Ready(Ok(Acquired::Taken(Some(Box::new(holder))))));
            }
            if Plain::suits(request) {
                plain.join(request, begins, deadline, waker);
                let look = plain.expires.min(deadline);
                *due = (*due).min(look);
                drop(shard);
                self.timer.ring_at(self, look);
                return Some(Poll::Pending);
            }
        }
        let mut fence = || next_fence(last_fence, self.epoch_micros, now);
        let mut wakers = Wakers::default();
        let rules = entry.rules();
        if rules.expire(now) {
            rules.admit(begins, &mut fence, |held| wakers.add(held.party.extra.waker.take()));
        }
        let seat = Seat { waker: wait.then(|| waker.clone()), deadline };
        let verdict = rules.ask(party(request, begins, seat), wait, begins, &mut fence);
        // A take-over may have made a writer a reader, and room for others.
        if !rules.queue.is_empty() {
            rules.admit(begins, &mut fence, |held| wakers.add(held.party.extra.waker.take()));
        }
        let mut look = rules.look_again();
        let answer = match verdict {
            Verdict::Granted(grant) => {
                let trusted_from = grant.trusted_from.map(|_| now);
                Some(Poll::Ready(Ok(Acquired::Granted(Grant { trusted_from, ..grant }))))
            }
            Verdict::Queued => {
                look = look.min(deadline);
                Some(Poll::Pending)
            }
            Verdict::Refused => {
                let report = self.reporter();
                let holder = rules.holders.first();
                let holder = holder.map(|h| Box::new(report.holder(h, process_label())));
                Some(Poll::Ready(Ok(Acquired::Taken(holder))))
            }
        };
        *due = (*due).min(look);
        drop(shard);
        wakers.wake();
        self.timer.ring_at(self, look);
        answer
    }

    /// A waiter looks whether it was granted the key, and claims it if so. None when it neither
    /// holds nor waits (any more).
    fn look(&self, key: &Key, id: Id, waker: &Waker) -> Answer {
        let mut shard = self.shard(key.process_hash());
        let entry = shard.entries.find(key)?;
        let rules = match &mut entry.state {
            State::Plain(plain) if plain.is_held_by(id) => {
                let now = self.clock.recent();
                let grant = plain.claim(now, now.after(self.lag))?;
                return Some(Poll::Ready(Ok(Acquired::Granted(grant))));
            }
            State::Plain(plain) => return plain.still_waits(id, waker).then_some(Poll::Pending),
            State::Full(rules) => rules,
        };
        if let Some(held) = rules.holder_mut(id) {
            let now = self.clock.recent();
            if held.expires <= now {
                return None;
            }
            held.claimed = true;
            held.expires = now.after(self.lag).after(held.party.ttl);
            return Some(Poll::Ready(Ok(Acquired::Granted(held.grant(true, Some(now))))));
        }
        let waiting = rules.queue.iter_mut().find(|w| w.id == id)?;
        let seat = &mut waiting.extra.waker;
        if !seat.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *seat = Some(waker.clone());
        }
        Some(Poll::Pending)
    }

    /// Ends a lease, or leaves the queue. True when it was held and had not run out.
    pub(super) fn release(self: &Arc<Self>, key: &Key, id: Id) -> bool {
        let shard = self.shard(key.process_hash());
        let shard = match self.end_plain(shard, key, id) {
            Ok(until) => return until.is_some_and(|until| until > self.clock.recent()),
            Err(shard) => shard,
        };
        self.change_in(shard, key, |rules, now| match rules.release(id) {
            Some(held) => held.expires > now(),
            None => {
                rules.leave(id);
                false
            }
        })
        .unwrap_or(false)
    }

    /// Ends a plain lease and hands the key on, or leaves the line: answers when the lease would
    /// have ended, and nothing where none was held. Of a key under the full rules, the shard
    /// comes back as it was.
    fn end_plain<'a>(
        self: &'a Arc<Self>,
        mut shard: MutexGuard<'a, Shard>,
        key: &Key,
        id: Id,
    ) -> Result<Option<Moment>, MutexGuard<'a, Shard>> {
        let Shard { entries, last_fence, due, .. } = &mut *shard;
        let plain = match entries.find(key).map(|entry| &mut entry.state) {
            None => return Ok(None),
            Some(State::Full(_)) => return Err(shard),
            Some(State::Plain(plain)) => plain,
        };
        let until = plain.is_held_by(id).then_some(plain.expires);
        if until.is_some() && plain.is_lone() {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
            return Ok(until);
        }
        let now = self.clock.recent();
        if until.is_none() {
            plain.leave(id);
            if plain.expires > now || !plain.is_waited_for() {
                return Ok(None);
            }
        }
        let begins = now.after(self.lag);
        let next = plain.pass_on(begins, || next_fence(last_fence, self.epoch_micros, now));
        let Some(next) = next else {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
            return Ok(until);
        };
        // Not before the longest wait of a hand-off is over; of deadlines the timer knows.
        let look = if plain.is_waited_for() { plain.expires } else { Moment::NEVER };
        *due = (*due).min(look);
        drop(shard);
        self.timer.ring_at(self, look);
        next.wake();
        Ok(until)
    }

    pub(super) fn renew(self: &Arc<Self>, key: &Key, id: Id, ttl: Duration) -> bool {
        // The client counts from a reading of its own before it asked: only a later one is safe.
        let now = self.clock.now();
        self.change(key, |rules, _| {
            rules.expire(now);
            rules.renew(id, ttl, now)
        })
        .unwrap_or(false)
    }

    pub(super) fn rotate(&self, key: &Key, old: Id, fresh: Id, ttl: Duration) -> Option<Grant> {
        let hash = key.process_hash();
        let now = self.clock.now();
        let mut shard = self.shard(hash);
        let Shard { entries, last_fence, .. } = &mut *shard;
        let entry = entries.find(key)?;
        let rules = entry.rules();
        if rules.holder_mut(old).is_some_and(|h| h.expires <= now) {
            return None;
        }
        let mut fence = || next_fence(last_fence, self.epoch_micros, now);
        rules.rotate(old, fresh, ttl, now, &mut fence)
    }

    /// Remembers to clean up after a lease that no guard watches any more.
    pub(super) fn hand_over(&self, key: &Key, id: Id) -> bool {
        let hash = key.process_hash();
        let now = self.clock.now();
        let mut shard = self.shard(hash);
        let Some(entry) = shard.entries.find(key) else {
            return false;
        };
        let expires = match entry.rules().holder_mut(id) {
            Some(held) if held.expires > now => held.expires,
            _ => return false,
        };
        shard.handed_over.get_or_insert_default().0.push(Reverse((expires, key.clone())));
        true
    }

    pub(super) fn break_lock(self: &Arc<Self>, key: &Key, fence: Option<Fence>) -> Vec<Holder> {
        let report = self.reporter();
        let broken = self.change(key, |rules, now| {
            rules.expire(now());
            rules.break_lock(fence)
        });
        let broken = broken.unwrap_or_default();
        broken.iter().map(|h| report.holder(h, process_label())).collect()
    }

    pub(super) fn inspect(&self, key: &Key) -> Inspection {
        let report = self.reporter();
        let hash = key.process_hash();
        let mut shard = self.shard(hash);
        match shard.entries.find(key) {
            Some(entry) => entry.inspect(&report),
            None => Inspection { key: key.as_str().to_owned(), ..Inspection::default() },
        }
    }

    /// Everything with this beginning that is held or waited for, unsorted.
    pub(super) fn list(&self, prefix: &str) -> Vec<Inspection> {
        let report = self.reporter();
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            found.extend(
                shard
                    .entries
                    .iter_mut()
                    .filter(|e| e.key.as_str().starts_with(prefix))
                    .map(|e| e.inspect(&report))
                    .filter(|i| i.is_held() || !i.waiters.is_empty()),
            );
        }
        found
    }

    /// Frees everything; who waits is granted what it waits for.
    pub(super) fn clear(self: &Arc<Self>) {
        for shard in &self.shards {
            let keys: Vec<Key> = shard.lock().entries.iter_mut().map(|e| e.key.clone()).collect();
            for key in keys {
                self.break_lock(&key, None);
            }
        }
    }

    /// Ends what is due: leases that somebody waits behind, and waits that took too long.
    /// Answers when to look again.
    pub(super) fn tick(&self, now: Moment) -> Moment {
        let mut next = Moment::NEVER;
        for shard in &self.shards {
            let mut wakers = Wakers::default();
            let mut shard = shard.lock();
            if shard.due <= now {
                shard.tick(now, self.epoch_micros, &mut wakers);
            }
            next = next.min(shard.due);
            drop(shard);
            wakers.wake();
        }
        next
    }

    /// Leases begin a lag after the moment that was read, and are shown from then on.
    fn reporter(&self) -> Reporter {
        Reporter::new(&*self.clock).ahead(self.lag)
    }

    /// One change of an existing key, then hands it on to whoever is next.
    fn change<T>(
        self: &Arc<Self>,
        key: &Key,
        change: impl FnOnce(&mut Rules<Seat>, &mut dyn FnMut() -> Moment) -> T,
    ) -> Option<T> {
        self.change_in(self.shard(key.process_hash()), key, change)
    }

    fn change_in<T>(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        key: &Key,
        change: impl FnOnce(&mut Rules<Seat>, &mut dyn FnMut() -> Moment) -> T,
    ) -> Option<T> {
        let mut wakers = Wakers::default();
        let Shard { entries, last_fence, due, .. } = &mut *shard;
        let entry = entries.find(key)?;
        let mut read = None;
        let mut now = || *read.get_or_insert_with(|| self.clock.recent());
        let rules = entry.rules();
        let out = change(rules, &mut now);
        if !rules.queue.is_empty() {
            let now = now();
            let mut fence = || next_fence(last_fence, self.epoch_micros, now);
            rules.expire(now);
            let begins = now.after(self.lag);
            rules.admit(begins, &mut fence, |held| wakers.add(held.party.extra.waker.take()));
        }
        let look = rules.look_again();
        *due = (*due).min(look);
        if rules.is_empty() {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
        } else {
            drop(shard);
        }
        wakers.wake();
        self.timer.ring_at(self, look);
        Some(out)
    }
}

impl Shard {
    /// Takes a key that nobody has.
    fn take_free(
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

    fn tick(&mut self, now: Moment, epoch_micros: u64, wakers: &mut Wakers) {
        let Shard { entries, last_fence, due, .. } = self;
        *due = Moment::NEVER;
        entries.retain(|entry| {
            let mut fence = || next_fence(last_fence, epoch_micros, now);
            let rules = match &mut entry.state {
                State::Plain(plain) => {
                    if plain.is_waited_for() {
                        plain.give_up(now, |waker| wakers.add(waker));
                        if plain.expires <= now {
                            let next = plain.pass_on(now, fence);
                            if next.is_none() {
                                return false;
                            }
                            wakers.add(next);
                        }
                        *due = (*due).min(plain.due());
                    }
                    return true;
                }
                State::Full(rules) => rules,
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
            rules.admit(now, &mut fence, |held| wakers.add(held.party.extra.waker.take()));
            let deadlines = rules.queue.iter().map(|w| w.extra.deadline);
            *due = deadlines.fold(*due, Moment::min).min(rules.look_again());
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
fn next_fence(last: &mut u64, epoch_micros: u64, now: Moment) -> Fence {
    let micros = epoch_micros + now.as_nanos() / 1_000;
    *last = (*last + 1).max(micros);
    Fence::new(*last)
}
