//! Releases that drops have queued (L21), where the locks are on a server.
//!
//! A drop cannot await. A program that drops guards faster than the server ends their leases one by
//! one would queue ever more of them, and each key would stay taken for longer than the one before.
//!
//! So what is queued goes in batches, each of them one message: the longer the queue, the more a
//! message carries. Leases that a batch cannot end, because others wait for the key, are released
//! each by itself. And whoever asks for a new lease while [`LIMIT`] releases are pending waits until
//! there is [room](DeferredReleases::room), so that they go ahead of new requests and a program
//! that drops too much is slowed down by it. At most `LIMIT` releases are pending, and one more
//! for each guard and each request that there is at a time.
//!
//! A server that cannot end leases must not keep callers from learning that it is unavailable, so
//! they wait for room for [`PATIENCE`] only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, select};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Clock, Key, Result};

/// How many releases may be pending before new requests wait for them.
pub(crate) const LIMIT: usize = 2 * BATCH;

/// How many share a message.
const BATCH: usize = 64;

/// How many are released each by itself at a time: they must not take the whole pool.
const AT_ONCE: usize = 4;

/// How often a release is tried while the server is away; then the ttl ends the lease.
const TRIES: usize = 6;

/// How long a request waits for room at the most.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lease to be ended, or a place in a queue to be left.
pub(crate) type Lease = (Key, Id);

/// What ends leases.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Runs a job to its end on the provider's own thread: a drop may happen in any runtime or in
    /// none.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when there is no such thread.
    fn spawn(&self, job: BoxFuture<'static, ()>) -> Result<()>;

    /// Ends leases in one message. Gives those that must be released each by itself.
    ///
    /// A failure may have ended some of them; it may be asked again.
    fn release_together(&self, leases: &[Lease])
    -> impl Future<Output = Result<Vec<Lease>>> + Send;

    /// Ends one lease, and hands the key on; false when it was not held any more. It may be asked
    /// again.
    fn release(&self, key: &Key, id: Id) -> impl Future<Output = Result<bool>> + Send;
}

/// The queue. Clones share it.
pub(crate) struct DeferredReleases<B>(Arc<Inner<B>>);

struct Inner<B> {
    backend: Arc<B>,
    queue: Mutex<Queue>,
    /// How many are queued or under way.
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

impl<B: Backend> DeferredReleases<B> {
    pub(crate) fn new(backend: &Arc<B>) -> Self {
        DeferredReleases(Arc::new(Inner {
            backend: backend.clone(),
            queue: Mutex::default(),
            pending: watch::Sender::new(0),
            turns: Semaphore::new(AT_ONCE),
        }))
    }

    /// How many releases are not done yet.
    pub(crate) fn pending(&self) -> usize {
        *self.0.pending.borrow()
    }

    /// Queues a release.
    pub(crate) fn defer(&self, key: Key, id: Id) {
        self.begun();
        self.enqueue(key, id);
    }

    /// The same when something that must come before it has ended.
    #[cfg(feature = "postgres")]
    pub(crate) fn defer_until(
        &self,
        key: Key,
        id: Id,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        self.begun();
        let this = self.clone();
        self.spawn(async move {
            ready.await;
            this.enqueue(key, id);
        });
    }

    /// Waits until a new lease may be asked for.
    ///
    /// Cancel safe: it only looks.
    pub(crate) async fn room(&self, clock: &dyn Clock) {
        let has_room = |pending: &usize| *pending < LIMIT;
        if has_room(&self.0.pending.borrow()) {
            return;
        }
        let mut pending = self.0.pending.subscribe();
        let room = std::pin::pin!(pending.wait_for(has_room));
        select(room, clock.sleep_until(clock.now().after(PATIENCE))).await;
    }

    /// Ends when everything that was queued was tried.
    ///
    /// Cancel safe: it only looks.
    pub(crate) async fn flush(&self) {
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
                tracing::warn!(%error, "no thread for releases: the ttl ends the leases");
                let lost = std::mem::take(&mut *self.0.queue.lock()).leases;
                self.done(lost.len());
            }
        }
    }

    /// Runs the job that ends one lease.
    fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.0.backend.spawn(Box::pin(job)) {
            tracing::warn!(%error, "no thread for a release: the ttl ends the lease");
            self.done(1);
        }
    }

    /// Until nothing is queued.
    async fn drain(&self) {
        while let Some(leases) = self.next_batch() {
            let left = self.release_together(&leases).await;
            self.done(leases.len() - left.len());
            for (key, id) in left {
                let this = self.clone();
                self.spawn(async move {
                    let _turn = this.0.turns.acquire().await;
                    patiently(&*this.0.backend, &key, id).await;
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

    /// More than once; gives those that must be released each by itself.
    async fn release_together(&self, leases: &[Lease]) -> Vec<Lease> {
        let mut backoff = Backoff::new(Duration::from_millis(100));
        for left in (0..TRIES).rev() {
            match self.0.backend.release_together(leases).await {
                Ok(left) => return left,
                // Perhaps for one of them only.
                Err(error) if !error.is_temporary() => return leases.to_vec(),
                Err(_) if left > 0 => tokio::time::sleep(backoff.pause()).await,
                Err(error) => {
                    let count = leases.len();
                    tracing::warn!(count, %error, "queued releases failed: the ttl ends the leases");
                }
            }
        }
        Vec::new()
    }
}

/// Tries a release more than once.
///
/// Dropped, it has happened or it has not; the ttl ends the lease.
pub(crate) async fn patiently(backend: &impl Backend, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..TRIES).rev() {
        match backend.release(key, id).await {
            Ok(_) => return,
            Err(error) if error.is_temporary() && left > 0 => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a queued release failed: the ttl ends the lease");
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

    impl Backend for Recorder {
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
