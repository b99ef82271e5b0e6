//! Cleaning up after the killed: rows of keys that nobody asks for again.

use std::time::Duration;

use rusqlite::Connection;

use super::jobs::{Job, Tidy};
use super::schema::OVER;
use super::writer::Writer;
use crate::Key;

/// How many changes are made, and how much time passes, between two looks for what was left behind.
const SWEEP: usize = 256;
const SWEEP_PAUSE: Duration = Duration::from_secs(30);

impl Writer {
    pub(super) fn sweep_if_due(&mut self) {
        if self.made >= SWEEP && self.here.clock.now() >= self.swept.after(SWEEP_PAUSE) {
            self.sweep();
        }
    }

    /// Removes what the killed have left.
    pub(super) fn sweep(&mut self) {
        (self.made, self.swept) = (0, self.here.clock.now());
        let over = self.here.now().wall();
        let Ok(connection) = self.connection() else { return };
        let keys = names(connection, over).unwrap_or_default();
        self.tidy(keys.into_iter().flat_map(Key::try_from).collect());
    }

    pub(super) fn tidy(&mut self, keys: Vec<Key>) {
        let jobs = keys.into_iter().map(|key| Box::new(Tidy(key)) as Box<dyn Job>);
        self.change(jobs.collect());
    }
}

fn names(on: &Connection, over: i64) -> rusqlite::Result<Vec<String>> {
    on.prepare_cached(OVER)?.query_map((over,), |row| row.get(0))?.collect()
}
