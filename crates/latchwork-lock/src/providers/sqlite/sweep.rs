//! Cleaning up after the killed: rows of keys that nobody asks for again.

use std::time::Duration;

use super::release::Tidy;
use super::schema::OVER;
use super::store::Job;
use super::watcher::Watcher;
use crate::Key;

/// How many changes are made, and how much time passes, between two looks for what was left behind.
const SWEEP: usize = 256;
const SWEEP_PAUSE: Duration = Duration::from_secs(30);

impl Watcher {
    pub(super) async fn sweep_if_due(&mut self) {
        if self.made >= SWEEP && self.here.clock.now() >= self.swept.after(SWEEP_PAUSE) {
            self.sweep().await;
        }
    }

    /// Removes what the killed have left.
    pub(super) async fn sweep(&mut self) {
        (self.made, self.swept) = (0, self.here.clock.now());
        let over = self.here.now().wall;
        let Ok(connection) = self.connection().await else { return };
        let keys: Result<Vec<String>, _> =
            sqlx::query_scalar(OVER).bind(over).fetch_all(connection).await;
        let keys = keys.unwrap_or_default().into_iter().flat_map(Key::try_from).collect();
        self.tidy(keys).await;
    }

    pub(super) async fn tidy(&mut self, keys: Vec<Key>) {
        let jobs = keys.into_iter().map(|key| Box::new(Tidy(key)) as Box<dyn Job>);
        self.change(jobs.collect()).await;
    }
}
