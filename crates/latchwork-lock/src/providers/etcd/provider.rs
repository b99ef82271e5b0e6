use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::watch::Sender;

use super::error::NAME;
use super::release::Releases;
use super::store::Store;
use super::{config, record, wait, watcher};
use crate::rules::CLAIM_WINDOW;
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Page, PageRequest, Proof, Result, SystemClock, Token,
};

/// Locks between machines, in an etcd cluster (3.4 or newer); clones share them.
///
/// Leases count in whole seconds there, and end up to three seconds after their ttl. A change
/// of the leader starts all of them anew. Fences are revisions of the cluster: a cluster that is
/// restored from a backup must be restored with `--bump-revision`, or they go back.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{EtcdLockProvider, Locks};
///
/// let provider = EtcdLockProvider::connect("etcd://a:2379,b:2379,c:2379/app").await?;
/// let locks = Locks::new(provider);
/// let guard = locks.lock("order:123").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdLockProvider {
    pub(super) store: Arc<Store>,
    /// Dropped with the last clone, which ends the watch.
    watching: Arc<OnceLock<Sender<()>>>,
}

impl EtcdLockProvider {
    /// Connects to a cluster by its address.
    ///
    /// `etcd://user:password@a:2379,b:2379/prefix`, where the user, all members but one, the port
    /// (2379) and the prefix may be left out. `etcds://` is the same over TLS, with the options
    /// `ca=FILE` (else the usual authorities are trusted), `cert=FILE` and `key=FILE` (a client
    /// certificate) and `domain=NAME` (the name in the server's certificate, where that is not the
    /// host's); all files in PEM form.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Backend`](crate::ErrorKind::Backend) for a server that cannot be used (wrong password,
    /// wrong certificates, no etcd, too old), [`Unavailable`](crate::ErrorKind::Unavailable) when
    /// nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        config::connect(address, SystemClock::shared()).await
    }

    /// The same on another clock, for tests of what a slow process does. The server's own clock
    /// decides when leases end, so this one must run at the same pace.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with_clock(address: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        config::connect(address, clock).await
    }

    /// Uses the caller's own client, and puts `prefix` before the names of all entries.
    ///
    /// The client's connection belongs to the runtime that made it, which must live as long as
    /// the locks are used.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_client(client: Client, prefix: &str) -> Result<Self> {
        config::from_client(client, prefix).await
    }

    pub(super) fn of(store: Store) -> Self {
        EtcdLockProvider { store: Arc::new(store), watching: Arc::default() }
    }

    /// Sees to it that somebody looks after the waiters.
    pub(super) fn watch(&self) {
        self.watching.get_or_init(|| {
            let gone = Sender::new(());
            if let Ok(runtime) = watcher::runtime() {
                runtime.spawn(watcher::watch(self.store.clone(), gone.subscribe()));
            }
            gone
        });
    }

    /// One job on the store, which runs to its end.
    fn run<T: Send + 'static, F>(
        &self,
        during: &'static str,
        key: &Key,
        job: impl FnOnce(Arc<Store>, Key) -> F,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        watcher::run(during, job(self.store.clone(), key.clone()))
    }
}

impl LockProvider for EtcdLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        // Up to a second of rounding, one of sharing, half of sweeping, and the way there.
        Capabilities::of(&Capability::ALL)
            .with_granularity(Duration::from_secs(3))
            .with_claim_window(CLAIM_WINDOW)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        wait::acquire(self, request).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        const DURING: &str = "renewing";
        let id = record::id(proof.token);
        self.run(DURING, proof.key, async move |store, key| {
            store.renew(DURING, &key, id, ttl).await
        })
        .await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        const DURING: &str = "releasing";
        let id = record::id(proof.token);
        let (store, key) = (self.store.clone(), proof.key.clone());
        if !store.desk.has_room(&key) {
            // Nobody here waits for it, and so for the answer.
            let alone = async move { store.release_alone(DURING, &key, id).await };
            return watcher::run_along(DURING, alone).await;
        }
        watcher::run(DURING, async move { store.release(DURING, &key, id).await }).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        Releases::queue(&self.store, proof.key.clone(), record::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        const DURING: &str = "handing over";
        let id = record::id(proof.token);
        self.run(DURING, proof.key, async move |store, key| store.hand_over(DURING, &key, id).await)
            .await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        const DURING: &str = "resuming";
        let (old, fresh) = (record::id(proof.token), record::id(fresh));
        let (still_there, wanted) = Wanted::new();
        let rotated = self.run(DURING, proof.key, async move |store, key| {
            let grant = store.rotate(DURING, &key, old, fresh, ttl).await;
            if !wanted.load(Ordering::Acquire) {
                // The release that follows an abandoned question may have been there before it.
                store.release(DURING, &key, fresh).await?;
            }
            grant
        });
        let rotated = rotated.await;
        drop(still_there);
        rotated
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        const DURING: &str = "inspecting";
        self.run(DURING, key, async move |store, key| store.inspect(DURING, &key).await).await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        const DURING: &str = "listing";
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        watcher::run(DURING, async move { store.list(DURING, &prefix, &page).await }).await
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        const DURING: &str = "breaking";
        self.run(DURING, key, async move |store, key| store.break_lock(DURING, &key, fence).await)
            .await
    }

    async fn close(&self) {
        self.store.releases.flush().await;
    }
}

/// Says that nobody waits for an answer any more, when it is dropped before that has come.
struct Wanted(Arc<AtomicBool>);

impl Wanted {
    fn new() -> (Self, Arc<AtomicBool>) {
        let wanted = Arc::new(AtomicBool::new(true));
        (Wanted(wanted.clone()), wanted)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl fmt::Debug for EtcdLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLockProvider").finish_non_exhaustive()
    }
}
