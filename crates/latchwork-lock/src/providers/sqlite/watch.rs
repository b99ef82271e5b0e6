//! Who waits in this process and what for, and what is done for them at every tick.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::sqlite::{BUSY_TIMEOUT, is_busy};
use tokio::sync::Notify;

use super::record::{Record, lines, run};
use super::release::Later;
use super::schema::{HEARTBEAT, WAITED};
use super::store::View;
use super::watcher::{Failure, PAUSE, Watcher, version};
use crate::handed::Handed;
use crate::rules::Id;
use crate::{Grant, Key, Moment};

/// How often waiters are said to be alive, and for how long that is believed: longer than a
/// writer waits for another one, lest one outage empties the queue.
const BEAT: Duration = Duration::from_secs(1);
pub(super) const ALIVE: Duration = Duration::from_secs(8);

/// How long a lease lies ready for a waiter that does not look: less than the claim window.
const UNCLAIMED: Duration = Duration::from_millis(1_500);

/// Only the [thread](super::watcher) has it. Whoever is called leaves it, and signs in again if it
/// then still has to wait; so nobody is left in it for ever.
#[derive(Default)]
pub(super) struct Desk {
    keys: HashMap<Key, Waited>,
    /// Those who were handed a lease and may not have looked yet.
    handed: Vec<(Key, Arc<Seat>)>,
}

struct Waited {
    seats: Vec<Arc<Seat>>,
    due: Moment,
}

/// Where a waiter is called.
pub(super) struct Seat {
    pub(super) id: Id,
    pub(super) bell: Notify,
    pub(super) handed: Handed,
}

impl Seat {
    pub(super) fn new(id: Id) -> Arc<Self> {
        Arc::new(Seat { id, bell: Notify::new(), handed: Handed::default() })
    }
}

impl Desk {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.handed.is_empty()
    }

    pub(super) fn join(&mut self, key: &Key, seat: &Arc<Seat>) {
        let waited = self
            .keys
            .entry(key.clone())
            .or_insert_with(|| Waited { seats: Vec::new(), due: Moment::NEVER });
        waited.seats.retain(|seated| seated.id != seat.id);
        waited.seats.push(seat.clone());
    }

    /// Who waits here.
    pub(super) fn seated(&self) -> HashSet<Id> {
        self.keys.values().flat_map(|waited| &waited.seats).map(|seat| seat.id).collect()
    }

    /// Hands a lease to a waiter, who is called when the key is next seen. False when nobody of
    /// that name is here.
    pub(super) fn hand(&mut self, key: &Key, id: Id, grant: Grant, now: Moment) -> bool {
        let mut seats = self.keys.get(key).into_iter().flat_map(|waited| &waited.seats);
        let Some(seat) = seats.find(|seat| seat.id == id) else { return false };
        seat.handed.put(grant, now);
        self.handed.push((key.clone(), seat.clone()));
        true
    }

    /// The leases that nobody has looked for since long, taken back, and whose they were.
    fn unclaimed(&mut self, now: Moment) -> Vec<(Key, Arc<Seat>)> {
        // Whoever is done has left its seat to us alone.
        self.handed.retain(|(_, seat)| Arc::strong_count(seat) > 1);
        let old = |(_, seat): &mut (Key, Arc<Seat>)| seat.handed.take_back(now, UNCLAIMED);
        self.handed.extract_if(.., old).collect()
    }

    /// Calls those who are no longer in the queue: it is their turn, or they were dropped.
    pub(super) fn see(&mut self, key: &Key, view: &View) {
        let Some(waited) = self.keys.get_mut(key) else { return };
        waited.due = view.due;
        waited.seats.retain(|seat| {
            let queued = view.queue.contains(&seat.id);
            if !queued {
                seat.bell.notify_one();
            }
            queued
        });
        if waited.seats.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Keys of which something has ended by itself.
    pub(super) fn due(&self, now: Moment) -> Vec<Key> {
        self.keys.iter().filter(|(_, w)| w.due <= now).map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn keys(&self) -> HashSet<Key> {
        self.keys.keys().cloned().collect()
    }

    /// Calls everybody; they ask again.
    pub(super) fn call_all(&mut self) {
        for (_, waited) in self.keys.drain() {
            waited.seats.iter().for_each(|seat| seat.bell.notify_one());
        }
    }
}

impl Watcher {
    /// What is done for those who wait here, and what failed before.
    pub(super) fn tick(&mut self) {
        self.ticked = self.here.clock.now();
        if !self.later.is_empty() && self.ticked >= self.failed.after(PAUSE) {
            self.retry();
        }
        for (key, seat) in self.desk.unclaimed(self.ticked) {
            self.change(vec![Box::new(Later::new(key, seat.id))]);
            seat.handed.gone_back();
            seat.bell.notify_one();
        }
        if self.desk.is_empty() {
            return;
        }
        let beats = self.ticked >= self.beat.after(BEAT);
        if let Err(failure) = self.look(beats) {
            if is_busy(&failure) && self.ticked < self.beat.after(BUSY_TIMEOUT) {
                return; // the next tick is soon
            }
            // They ask, and are told what is wrong.
            tracing::debug!(%failure, "waiters could not be looked after");
            self.undo(failure);
            self.desk.call_all();
            return;
        }
        let due = self.desk.due(self.here.clock.now());
        self.tidy(due);
    }

    /// Whether another process changed something for our waiters.
    fn look(&mut self, beats: bool) -> Result<(), Failure> {
        let here = self.here.clone();
        let connection = self.connection()?;
        let version = version(connection)?;
        if beats {
            let until = here.now();
            let until = until.stamp(until.moment.after(ALIVE));
            run(connection, HEARTBEAT, (here.client, until.clock.0, until.at, until.ns))?;
            self.beat = here.clock.now();
        }
        let changed = version != std::mem::replace(&mut self.version, version);
        if changed || beats {
            self.read()?;
        }
        Ok(())
    }

    /// Calls those who are no longer in the file's queues: it is their turn, or this process was
    /// stopped for longer than it was believed.
    fn read(&mut self) -> Result<(), Failure> {
        let here = self.here.clone();
        let now = here.now();
        let lines = lines(self.connection()?, WAITED, (here.client,), now)?;
        let mut unseen = self.desk.keys();
        for (name, mut record) in Record::many(lines) {
            let Some(key) = Key::try_from(name).ok().and_then(|key| unseen.take(&key)) else {
                continue;
            };
            let is_due = record.prune(&here, now.moment);
            let mut view = View::of(&record.rules, &here);
            if is_due {
                view.due = Moment::default();
            }
            self.desk.see(&key, &view);
        }
        // Nobody of ours waits there any more.
        for key in unseen {
            self.desk.see(&key, &View { queue: Vec::new(), due: Moment::NEVER });
        }
        Ok(())
    }
}
