//! The operations on the 512 shards of entries.
//!
//! Grants and releases read [`Clock::recent`], because reading the hardware clock would be a quarter
//! of their cost. Expiry is judged by that moment, which is too early, and a lease begins at that
//! moment plus the lag, which is late enough: no lease ends before its ttl. The client's trust begins
//! at the same reading, so it ends before the lease, however large the lag is.

mod acquire;
mod release;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::record::Entries;
use super::requester::WakeAt;
use super::shard::{Shard, Wakers, next_fence};
use super::timer::{Ticking, Timer};
use crate::reporter::Reporter;
use crate::rules::{Id, Rules};
use crate::sync::{Mutex, MutexGuard};
use crate::{Clock, Fence, Grant, Holder, Inspection, Key, Moment, process_label};

/// A power of two, above any sensible number of cores; the shard is the hash's upper bits, since
/// the table inside uses the lower ones.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 9;

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

/// How often a request was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PollKind {
    /// For the first time with its token.
    First,
    /// Perhaps again: an answer may have been lost (L17).
    Perhaps,
    /// It is queued, and checks whether it was granted.
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

    /// How many keys have an entry.
    pub(super) fn entries(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.iter_mut().count()).sum()
    }

    /// Leases begin a lag after the moment that was read, and are shown from then on.
    fn reporter(&self) -> Reporter {
        Reporter::new(&*self.clock).ahead(self.lag)
    }

    /// One change of an existing key, then grants it to the next waiter.
    fn change<T>(
        self: &Arc<Self>,
        key: &Key,
        change: impl FnOnce(&mut Rules<WakeAt>, &mut dyn FnMut() -> Moment) -> T,
    ) -> Option<T> {
        self.change_in(self.shard(key.process_hash()), key, change)
    }

    fn change_in<T>(
        self: &Arc<Self>,
        mut shard: MutexGuard<'_, Shard>,
        key: &Key,
        change: impl FnOnce(&mut Rules<WakeAt>, &mut dyn FnMut() -> Moment) -> T,
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
            rules.admit(begins, &mut fence, |held| wakers.add(held.requester.extra.waker.take()));
        }
        let look = rules.next_check();
        *due = (*due).min(look);
        if rules.is_empty() {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
        } else {
            drop(shard);
        }
        wakers.wake();
        self.timer.wake_at(self, look);
        Some(out)
    }
}

impl Ticking for Store {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn tick(&self, now: Moment) -> Moment {
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
}
