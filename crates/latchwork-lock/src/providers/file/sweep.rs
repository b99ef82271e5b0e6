//! What killed processes left behind, of keys that nobody may ask for again (L16).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::store::Store;

/// A directory is swept this often at most, by whichever process opens it.
const INTERVAL_SECONDS: i64 = 600;

/// The file that says by its time when that was.
const MARKER: &str = "swept";

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
    let now = store.clock.wall();
    // A time in the future is somebody's wrong clock.
    let ago = store.root.modified(MARKER).map(|last| now.timestamp() - last);
    if ago.is_some_and(|ago| (0..INTERVAL_SECONDS).contains(&ago)) {
        return false;
    }
    let marked = store.root.open_or_create(MARKER);
    marked.and_then(|file| file.set_modified(SystemTime::from(now))).is_ok()
}
