//! The releases that drops have queued: a thread of its own, because a drop may happen in any
//! runtime or in none (L21).

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;

use super::store::Store;
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Key, Result};

/// How often a release is tried while the disk refuses; then the ttl ends the lease.
const TRIES: usize = 4;

enum Job {
    Release(Key, Id),
    Tell(oneshot::Sender<()>),
}

/// Started by the first queued release; ends, with nothing left to do, after its owner.
#[derive(Default)]
pub(super) struct Releases {
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl Releases {
    /// Queues a release.
    pub(super) fn queue(&self, store: &Arc<Store>, key: Key, id: Id) {
        let jobs = self.jobs.get_or_init(|| start(store.clone()));
        let job = Job::Release(key, id);
        let unsent = match jobs {
            Some(jobs) => jobs.send(job).err().map(|e| e.0),
            None => Some(job),
        };
        // Without a thread a drop that blocks is still better than a lease that stays.
        if let Some(Job::Release(key, id)) = unsent {
            try_release(store, &key, id);
        }
    }

    /// Ends when everything that was queued before was tried.
    pub(super) async fn flush(&self) {
        let Some(Some(jobs)) = self.jobs.get() else { return };
        let (tell, told) = oneshot::channel();
        if jobs.send(Job::Tell(tell)).is_ok() {
            let _ = told.await;
        }
    }
}

fn start(store: Arc<Store>) -> Option<Sender<Job>> {
    let (jobs, queue) = channel();
    let run = move || work(&store, &queue);
    match std::thread::Builder::new().name("latchwork-release".into()).spawn(run) {
        Ok(_) => Some(jobs),
        Err(error) => {
            tracing::warn!(%error, "no thread for queued releases: drops will block");
            None
        }
    }
}

fn work(store: &Store, queue: &Receiver<Job>) {
    for job in queue {
        match job {
            Job::Release(key, id) => try_release(store, &key, id),
            Job::Tell(tell) => {
                let _ = tell.send(());
            }
        }
    }
}

fn try_release(store: &Store, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(20));
    for left in (0..TRIES).rev() {
        match release(store, key, id) {
            Ok(_) => return,
            Err(error) if error.is_temporary() && left > 0 => {
                std::thread::sleep(backoff.pause());
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a queued release failed: the ttl ends the lease");
                return;
            }
        }
    }
}

/// Ends a lease, or leaves the queue. True when it was held and had not run out.
pub(super) fn release(store: &Store, key: &Key, id: Id) -> Result<bool> {
    let (held, _) = store.edit(key, |rules, _| {
        let held = rules.release(id).is_some();
        if !held {
            rules.leave(id);
        }
        held
    })?;
    Ok(held)
}
