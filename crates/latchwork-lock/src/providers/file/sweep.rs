//! What killed processes left behind, of keys that nobody may ask for again (L16).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use super::store::Store;

/// A directory is swept this often at most, whoever opens it.
const INTERVAL: Duration = Duration::from_secs(600);

/// For processes that open once and stay: a look at the clock every so many questions.
const QUESTIONS: u32 = 1024;

/// Counts a question, and now and then looks whether to sweep.
pub(super) fn count(store: &Arc<Store>) {
    if store.asked.fetch_add(1, Ordering::Relaxed) % QUESTIONS == QUESTIONS - 1 {
        start_if_due(store);
    }
}

/// Sweeps in the background if it is time to.
pub(super) fn start_if_due(store: &Arc<Store>) {
    if !due(store) {
        return;
    }
    let store = store.clone();
    let run = move || {
        if let Err(error) = store.all("") {
            tracing::debug!(%error, "old records were not removed");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("latchwork-sweep".into()).spawn(run) {
        tracing::debug!(%error, "no thread to remove old records");
    }
}

/// Looks when the last sweep was, and says that the next one is now.
fn due(store: &Store) -> bool {
    let now = SystemTime::from(store.clock.wall());
    let path = store.keys.with_file_name("swept");
    let last = fs::metadata(&path).and_then(|found| found.modified());
    // A time in the future is somebody's wrong clock.
    if last.is_ok_and(|last| now.duration_since(last).is_ok_and(|ago| ago < INTERVAL)) {
        return false;
    }
    let marked = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path)
        .and_then(|file| file.set_modified(now));
    marked.is_ok()
}
