//! Releases that drops have queued (L21), where the locks are on a server.
//!
//! A drop cannot await. A program that drops guards faster than the server ends their leases one by
//! one would queue ever more of them, and each key would stay taken for longer than the one before.
//!
//! So queued releases go in batches, each of them one message: the longer the queue, the more a
//! message carries. Leases that a batch cannot end, because there are waiters for the key, are
//! released one by one. A caller that requests a new lease while [`LIMIT`] releases are pending waits
//! until there is [room](DeferredReleases::room), so that releases go ahead of new requests and a
//! program that drops too much is slowed down by it. At most `LIMIT` releases are pending, and one
//! more for each guard and each request that there is at a time.
//!
//! A server that cannot end leases must not keep callers from learning that it is unavailable, so
//! they wait for room for a second only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, select};
use tokio::sync::{Semaphore, watch};

use crate::retry::Backoff;
use crate::rules::Id;
use crate::sync::Mutex;
use crate::{Clock, Key, Result};

/// How many releases may be pending before new requests wait for them.
pub const LIMIT: usize = 2 * BATCH;

/// How many releases share a message.
const BATCH: usize = 64;

/// How many are released one by one at the same time: they must not take the whole pool.
const AT_ONCE: usize = 4;

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: usize = 6;

/// How long a request waits for room at the most.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lease to be ended, or a place in a queue to be left.
pub type Lease = (Key, Id);

/// The backend that ends leases.
pub trait ReleaseBackend: Send + Sync + 'static {
    /// Runs a job to its end on the provider's own thread: a drop may happen in any runtime or in
    /// none.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when there is no such thread.
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()>;

    /// Ends leases in one message. Returns those that must be released one by one.
    ///
    /// A failure may have ended some of them; the call may be repeated.
    fn release_together(&self, leases: &[Lease])
    -> impl Future<Output = Result<Vec<Lease>>> + Send;

    /// Ends one lease, and grants the key to the next waiter; false when it was not held any more.
    /// The call may be repeated.
    fn release(&self, key: &Key, id: Id) -> impl Future<Output = Result<bool>> + Send;
}

/// The queue of releases. Clones share it.
pub struct DeferredReleases<B>(Arc<Inner<B>>);

struct Inner<B> {
    backend: Arc<B>,
    queue: Mutex<Queue>,
    /// How many are queued or in progress.
    pending: watch::Sender<usize>,
    turns: Semaphore,
}

#[derive(Default)]
struct Queue {
    leases: VecDeque<Lease>,
    is_draining: bool,
}

impl<B> Clone for DeferredReleases<B> {
    fn clone(&self) -> Self {
        DeferredReleases(self.0.clone())
    }
}

impl<B: ReleaseBackend> DeferredReleases<B> {
    pub fn new(backend: &Arc<B>) -> Self {
        DeferredReleases(Arc::new(Inner {
            backend: backend.clone(),
            queue: Mutex::default(),
            pending: watch::Sender::new(0),
            turns: Semaphore::new(AT_ONCE),
        }))
    }

    /// How many releases are not done yet.
    pub fn pending(&self) -> usize {
        *self.0.pending.borrow()
    }

    /// Queues a release.
    pub fn defer(&self, key: Key, id: Id) {
        self.begun();
        self.enqueue(key, id);
    }

    /// Queues a release when something that must come before it has ended.
    pub fn defer_until(&self, key: Key, id: Id, ready: impl Future<Output = ()> + Send + 'static) {
        self.begun();
        let this = self.clone();
        self.spawn(async move {
            ready.await;
            this.enqueue(key, id);
        });
    }

    /// Waits until a new lease may be requested.
    ///
    /// Cancel safe.
    pub async fn room(&self, clock: &dyn Clock) {
        let has_room = |pending: &usize| *pending < LIMIT;
        if has_room(&self.0.pending.borrow()) {
            return;
        }
        let mut pending = self.0.pending.subscribe();
        let room = std::pin::pin!(pending.wait_for(has_room));
        select(room, clock.sleep_until(clock.now().after(PATIENCE))).await;
    }

    /// Ends when every queued release was tried.
    ///
    /// Cancel safe.
    pub async fn flush(&self) {
        // It cannot end before this value.
        let _ = self.0.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    fn begun(&self) {
        self.0.pending.send_modify(|pending| *pending += 1);
    }

    fn done(&self, count: usize) {
        self.0.pending.send_modify(|pending| *pending -= count);
    }

    fn enqueue(&self, key: Key, id: Id) {
        let mut queue = self.0.queue.lock();
        queue.leases.push_back((key, id));
        if !std::mem::replace(&mut queue.is_draining, true) {
            drop(queue);
            let this = self.clone();
            if let Err(error) = self.0.backend.spawn(Box::pin(async move { this.drain().await })) {
                tracing::warn!(%error, "no thread for queued releases; the leases end with their ttl");
                let lost = std::mem::take(&mut *self.0.queue.lock()).leases;
                self.done(lost.len());
            }
        }
    }

    /// Runs a job that ends one lease.
    fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.0.backend.spawn(Box::pin(job)) {
            tracing::warn!(%error, "no thread for a queued release; the lease ends with its ttl");
            self.done(1);
        }
    }

    /// Runs until the queue is empty.
    async fn drain(&self) {
        while let Some(leases) = self.next_batch() {
            let left = self.release_together(&leases).await;
            self.done(leases.len() - left.len());
            for (key, id) in left {
                let this = self.clone();
                self.spawn(async move {
                    let _turn = this.0.turns.acquire().await;
                    release_with_retry(&*this.0.backend, &key, id).await;
                    this.done(1);
                });
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<Lease>> {
        let mut queue = self.0.queue.lock();
        let count = queue.leases.len().min(BATCH);
        queue.is_draining = count > 0;
        queue.is_draining.then(|| queue.leases.drain(..count).collect())
    }

    /// Tries several times; returns those that must be released one by one.
    async fn release_together(&self, leases: &[Lease]) -> Vec<Lease> {
        let mut backoff = Backoff::new(Duration::from_millis(100));
        for left in (0..TRIES).rev() {
            match self.0.backend.release_together(leases).await {
                Ok(left) => return left,
                // Perhaps because of one of them only.
                Err(error) if !error.is_temporary() => return leases.to_vec(),
                Err(_) if left > 0 => tokio::time::sleep(backoff.pause()).await,
                Err(error) => {
                    let count = leases.len();
                    tracing::warn!(count, %error, "queued releases failed; the leases end with their ttl");
                }
            }
        }
        Vec::new()
    }
}

/// Releases a lease, and retries while the backend is unavailable.
///
/// Cancel safe: the release has happened or it has not, and then the ttl ends the lease.
pub async fn release_with_retry(backend: &impl ReleaseBackend, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..TRIES).rev() {
        match backend.release(key, id).await {
            Ok(_) => return,
            Err(error) if error.is_temporary() && left > 0 => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a queued release failed; the lease ends with its ttl");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, SystemClock};

    /// Remembers what it was asked for. Keys with a `w` are waited for; the first messages fail.
    #[derive(Default)]
    struct Recorder {
        failures: Mutex<usize>,
        /// No batch is answered while this is held.
        gate: tokio::sync::Mutex<()>,
        batches: Mutex<Vec<usize>>,
        alone: Mutex<Vec<Id>>,
    }

    impl ReleaseBackend for Recorder {
        fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()> {
            tokio::spawn(job);
            Ok(())
        }

        async fn release_together(&self, leases: &[Lease]) -> Result<Vec<Lease>> {
            let _open = self.gate.lock().await;
            let left = self.failures.lock().checked_sub(1);
            if let Some(left) = left {
                *self.failures.lock() = left;
                return Err(Error::unavailable("recorder", "releasing", "not yet", None));
            }
            self.batches.lock().push(leases.len());
            let waited = leases.iter().filter(|(key, _)| key.as_str().contains('w'));
            Ok(waited.cloned().collect())
        }

        async fn release(&self, _: &Key, id: Id) -> Result<bool> {
            self.alone.lock().push(id);
            Ok(true)
        }
    }

    fn key(name: &str) -> Key {
        Key::try_from(name.to_owned()).expect("a key")
    }

    #[tokio::test]
    async fn what_comes_together_shares_messages() {
        let backend = Arc::new(Recorder::default());
        let releases = DeferredReleases::new(&backend);
        for id in 0..200 {
            releases.defer(key(if id % 50 == 0 { "w" } else { "k" }), id);
        }
        assert_eq!(releases.pending(), 200);
        releases.flush().await;
        assert_eq!(*backend.batches.lock(), [64, 64, 64, 8]);
        let mut alone = backend.alone.lock().clone();
        alone.sort_unstable();
        assert_eq!(alone, [0, 50, 100, 150]);
        assert!(!releases.0.queue.lock().is_draining);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_tried_again_while_the_server_is_away() {
        let backend = Arc::new(Recorder::default());
        *backend.failures.lock() = 3;
        let releases = DeferredReleases::new(&backend);
        releases.defer(key("k"), 1);
        releases.flush().await;
        assert_eq!(*backend.batches.lock(), [1]);
        *backend.failures.lock() = TRIES;
        releases.defer(key("k"), 2);
        releases.flush().await;
        assert_eq!(*backend.batches.lock(), [1], "given up");
    }

    #[tokio::test]
    async fn who_asks_waits_for_room_and_not_for_ever() {
        let backend = Arc::new(Recorder::default());
        let releases = DeferredReleases::new(&backend);
        let shut = backend.gate.lock().await;
        for id in 0..LIMIT as Id {
            releases.defer(key("k"), id);
        }
        let mut asking = Box::pin(releases.room(&SystemClock));
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut asking).is_pending());
        drop(shut);
        asking.await;
        assert!(releases.pending() < LIMIT);

        let _shut = backend.gate.lock().await;
        for id in 0..2 * LIMIT as Id {
            releases.defer(key("k"), id);
        }
        releases.room(&SystemClock).await;
        assert!(releases.pending() >= LIMIT, "its patience has ended");
    }
}
