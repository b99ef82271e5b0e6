//! How the waiters of this process learn of changes that other processes made: by reading at every
//! tick whether the file has changed.

use std::collections::HashSet;
use std::time::Duration;

use latchwork_sql::sqlite::{BUSY_TIMEOUT, is_busy};

use super::error::Failure;
use super::jobs::{DeferredRelease, Job, LeaveQueue};
use super::record::{ALIVE, Record, run, stored_rows};
use super::schema::{HEARTBEAT, WAITED};
use super::store::View;
use super::writer::{PAUSE, Writer, version};
use crate::{Key, Moment};

/// The interval of heartbeats.
const BEAT: Duration = Duration::from_secs(1);

/// How long a grant stays in the slot of a waiter that does not take it: less than the claim window.
const UNCLAIMED: Duration = Duration::from_millis(1_500);

impl Writer {
    /// Retries what failed, and looks after the waiters of this process.
    pub(super) fn tick(&mut self) {
        self.ticked = self.here.clock.now();
        if !self.later.is_empty() && self.ticked >= self.failed.after(PAUSE) {
            self.retry();
        }
        for (key, id) in self.waiters.reclaim_unclaimed(self.ticked, UNCLAIMED) {
            self.change(vec![Box::new(DeferredRelease::new(key, id))]);
            self.waiters.mark_reclaimed(id);
        }
        self.leave_unkept();
        let waiters = self.waiters.clone();
        self.waited.retain(|key, _| waiters.has_waiters(key));
        if self.waited.is_empty() {
            return;
        }
        let beats = self.ticked >= self.beat.after(BEAT);
        if let Err(failure) = self.heartbeat_and_read(beats) {
            if is_busy(&failure) && self.ticked < self.beat.after(BUSY_TIMEOUT) {
                return; // the next tick is soon
            }
            // They send a request each, and are told what is wrong.
            tracing::debug!(%failure, "cannot read the queue positions of lock waiters");
            self.undo(failure);
            self.waiters.wake_all();
            return;
        }
        let now = self.here.clock.now();
        let due = self.waited.iter().filter(|(_, it)| it.due <= now).map(|(key, _)| key.clone());
        let due = due.collect();
        self.tidy(due);
    }

    /// Takes those out of the queue who have not come back for their place in time.
    fn leave_unkept(&mut self) {
        let (now, client) = (self.ticked, self.here.client);
        let over = self.kept.extract_if(|_, (_, until)| *until <= now);
        let over: Vec<Box<dyn Job>> = over
            .map(|(id, (key, _))| Box::new(LeaveQueue { key, id, client }) as Box<dyn Job>)
            .collect();
        self.change(over);
    }

    /// Stores a heartbeat, and reads the queues if another process has changed the file.
    fn heartbeat_and_read(&mut self, beats: bool) -> Result<(), Failure> {
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

    /// Wakes the waiters that are no longer queued: they were granted their key, or this process was
    /// stopped for longer than it was believed to be alive.
    fn read(&mut self) -> Result<(), Failure> {
        let here = self.here.clone();
        let now = here.now();
        let stored_rows = stored_rows(self.connection()?, WAITED, (here.client,), now)?;
        let mut unseen: HashSet<Key> = self.waited.keys().cloned().collect();
        for (name, mut record) in Record::many(stored_rows) {
            let Some(key) = Key::try_from(name).ok().and_then(|key| unseen.take(&key)) else {
                continue;
            };
            let is_due = record.prune(&here, now.moment);
            let mut view = View::of(&record.rules, &here);
            if is_due {
                view.due = Moment::default();
            }
            self.see(&key, &view);
        }
        // None of ours is queued there any more.
        for key in unseen {
            self.see(&key, &View { queue: Vec::new(), due: Moment::NEVER });
        }
        Ok(())
    }
}
