//! Guards that are dropped together, and whether all of their releases arrive (L21).

use std::sync::Mutex;
use std::time::Duration;

use futures::future::join_all;
use latchwork_lock::{Error, Locks, PageRequest};
use rand::RngExt;
use rand::rngs::StdRng;

use super::process_context::ProcessContext;
use crate::history::What;

/// The keys that one process drops. Nobody else asks for them, and their leases outlast the run: so
/// only a release can end them, and one that got lost is found at the end.
pub(super) struct Drops {
    locks: Locks,
    /// Keys of requests that met an outage. Those may be held for nobody.
    uncertain: Mutex<Vec<String>>,
}

impl Drops {
    /// Under a prefix of the process's own.
    pub(super) fn new(locks: &Locks, prefix: &str) -> Result<Self, Error> {
        Ok(Drops { locks: locks.with_prefix(prefix)?, uncertain: Mutex::default() })
    }

    /// Which dropped keys are still held so long after their releases were flushed.
    pub(super) async fn left_over(&self, patience: Duration) -> Option<String> {
        self.locks.close().await;
        let clock = self.locks.clock();
        let deadline = clock.now().after(patience);
        loop {
            let held = match self.locks.list("", PageRequest::default()).await {
                Ok(page) => {
                    let uncertain = self.uncertain.lock().expect("no panic");
                    let keys = page.keys.into_iter().map(|seen| seen.key.to_string());
                    keys.filter(|key| !uncertain.iter().any(|known| key.ends_with(known))).collect()
                }
                Err(error) => vec![error.to_string()],
            };
            if held.is_empty() {
                return None;
            }
            if clock.now() >= deadline {
                let count = held.len();
                return Some(format!("releases of {count} dropped guards got lost: {held:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Takes some keys and drops all guards at once.
pub(super) async fn drop_many(context: &ProcessContext, chance: &mut StdRng) {
    let ttl = context.assignment.torture.duration + Duration::from_secs(60);
    let guards = join_all((0..chance.random_range(8..48)).map(|_| async move {
        let request = context.request();
        let key = format!("{request:016x}");
        match context.drops.locks.lock(&key).ttl(ttl).acquire().await {
            Ok(guard) => Some((request, guard)),
            Err(error) => {
                assert!(error.is_temporary(), "request {request:x} for a key of its own: {error}");
                context.drops.uncertain.lock().expect("no panic").push(key);
                None
            }
        }
    }))
    .await;
    tokio::time::sleep(Duration::from_millis(chance.random_range(0..10))).await;
    for (request, guard) in guards.into_iter().flatten() {
        context.record("", request, What::Dropped);
        drop(guard);
    }
}
