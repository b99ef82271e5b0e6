//! Notices between processes: SQLite has none, but tells whether another connection has committed.

use std::time::Duration;

use super::store::SqliteStore;
use crate::notify::Notice;

/// How often it is asked. One statement on a connection of its own, and only from when somebody waits for the first time.
const TICK: Duration = Duration::from_millis(50);

impl SqliteStore {
    /// Calls back when another connection has committed something, for ever.
    pub(crate) async fn listen(&self, heard: impl Fn(Notice) + Send) {
        let Ok(mut connection) = self.sqlite.connect().await else {
            return; // the waiters look by themselves
        };
        let mut last = None;
        loop {
            let version: Option<i64> = sqlx::query_scalar("PRAGMA data_version")
                .fetch_optional(&mut connection)
                .await
                .ok()
                .flatten();
            if version.is_none() {
                return;
            }
            if last.is_some() && version != last {
                heard(Notice::anything());
            }
            last = version;
            tokio::time::sleep(TICK).await;
        }
    }
}
