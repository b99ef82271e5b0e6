//! The end of a lease.

use std::sync::Arc;

use super::Store;
use crate::providers::memory::record::State;
use crate::providers::memory::shard::{Shard, next_fence};
use crate::rules::Id;
use crate::sync::MutexGuard;
use crate::{Key, Moment};

impl Store {
    /// Ends a lease, or leaves the queue. True when it was held and had not run out.
    pub(in crate::providers::memory) fn release(self: &Arc<Self>, key: &Key, id: Id) -> bool {
        let shard = self.shard(key.process_hash());
        let shard = match self.release_exclusive(shard, key, id) {
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

    /// Ends a exclusive lease and hands the key on, or leaves the line: answers when the lease would
    /// have ended, and nothing where none was held. Of a key under the full rules, the shard
    /// comes back as it was.
    fn release_exclusive<'a>(
        self: &'a Arc<Self>,
        mut shard: MutexGuard<'a, Shard>,
        key: &Key,
        id: Id,
    ) -> Result<Option<Moment>, MutexGuard<'a, Shard>> {
        let Shard { entries, last_fence, due, .. } = &mut *shard;
        let exclusive = match entries.find(key).map(|entry| &mut entry.state) {
            None => return Ok(None),
            Some(State::General(_)) => return Err(shard),
            Some(State::Exclusive(exclusive)) => exclusive,
        };
        let until = exclusive.is_held_by(id).then_some(exclusive.expires);
        if until.is_some() && exclusive.is_uncontended() {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
            return Ok(until);
        }
        let now = self.clock.recent();
        if until.is_none() {
            exclusive.leave(id);
            if exclusive.expires > now || !exclusive.has_waiters() {
                return Ok(None);
            }
        }
        let begins = now.after(self.lag);
        let next = exclusive.grant_next(begins, || next_fence(last_fence, self.epoch_micros, now));
        let Some(next) = next else {
            let gone = entries.remove(key);
            drop(shard);
            drop(gone);
            return Ok(until);
        };
        // Not before the longest wait of a hand-off is over; of deadlines the timer knows.
        let look = if exclusive.has_waiters() { exclusive.expires } else { Moment::NEVER };
        *due = (*due).min(look);
        drop(shard);
        self.timer.wake_at(self, look);
        next.wake();
        Ok(until)
    }
}
