use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;

use super::background::{run_inline, run_to_completion};
use super::cluster::Cluster;
use super::config::Address;
use super::error::NAME;
use super::names::Names;
use super::notify::Notifier;
use super::store::Store;
use super::store::release::release_later;
use super::{acquire, record};
use crate::coordination::cancel::CancelOnDrop;
use crate::key::has_control;
use crate::rules::CLAIM_WINDOW;
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Error, Fence, Grant, Holder,
    Inspection, Key, LockProvider, Page, PageRequest, Proof, Result, SystemClock, Token,
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
    /// Stops when the last clone is dropped.
    notifier: Arc<Notifier>,
}

impl EtcdLockProvider {
    /// Connects to a cluster by its address.
    ///
    /// `etcd://user:password@a:2379,b:2379/prefix`, where the user, all members but one, the port
    /// (2379) and the prefix may be left out. `etcds://` is the same over TLS, with the options
    /// `tls-ca=FILE` (else the usual authorities are trusted), `tls-cert=FILE` and `tls-key=FILE` (a
    /// client certificate) and `tls-server-name=NAME` (the name in the server's certificate, where that is
    /// not the host's); all files in PEM form. They are read again for each new connection.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Backend`](crate::ErrorKind::Backend) for a server that cannot be used (wrong password,
    /// wrong certificates, no etcd, too old), [`Unavailable`](crate::ErrorKind::Unavailable) when
    /// nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_with_clock(address, SystemClock::shared()).await
    }

    /// Connects with another clock, for tests of what a slow process does. The server's own clock
    /// decides when leases end, so this one must run at the same pace.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with_clock(address: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut address = Address::parse(address)?;
        let names = Names::new(&std::mem::take(&mut address.root));
        Self::open(Cluster::own(address), names, clock).await
    }

    /// Uses the caller's own client, and puts `prefix` before the names of all entries.
    ///
    /// The client's connection belongs to the runtime that made it, which must live as long as
    /// the locks are used. Leases are renewed on it, too: while that runtime is blocked they are not,
    /// unlike those of [`connect`](Self::connect).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_client(client: Client, prefix: &str) -> Result<Self> {
        if has_control(prefix) {
            return Err(Error::invalid_argument("prefix", "it has control characters"));
        }
        Self::open(Cluster::given(client), Names::new(prefix), SystemClock::shared()).await
    }

    async fn open(cluster: Cluster, names: Names, clock: Arc<dyn Clock>) -> Result<Self> {
        const DURING: &str = "connecting";
        run_to_completion(DURING, async move {
            cluster.check(DURING).await?;
            let store = Arc::new(Store::new(cluster, names, clock));
            Ok(EtcdLockProvider { store, notifier: Arc::default() })
        })
        .await
    }

    /// Runs one operation on a key of the store to completion.
    fn run<T: Send + 'static, F>(
        &self,
        during: &'static str,
        key: &Key,
        job: impl FnOnce(Arc<Store>, Key) -> F,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        run_to_completion(during, job(self.store.clone(), key.clone()))
    }
}

impl LockProvider for EtcdLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        // Up to a second of rounding, one of sharing, half of the server's sweep, and the round trip.
        Capabilities::of(&Capability::ALL)
            .with_granularity(Duration::from_secs(3))
            .with_claim_window(CLAIM_WINDOW)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        acquire::acquire(&self.store, &self.notifier, request).await
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
        // If nobody here waits for the key, nobody but the caller waits for the answer.
        if !store.waiters.tracks(&key) {
            let release = async move { store.release(DURING, &key, id, false).await };
            return run_inline(DURING, release).await;
        }
        run_to_completion(DURING, async move { store.release(DURING, &key, id, true).await }).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        release_later(&self.store, proof.key.clone(), record::id(proof.token));
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
        let caller = CancelOnDrop::new();
        let cancelled = caller.flag();
        let rotated = self.run(DURING, proof.key, async move |store, key| {
            let grant = store.rotate(DURING, &key, old, fresh, ttl).await;
            if cancelled.is_cancelled() {
                // The release of the abandoned request may have been executed before it.
                store.release(DURING, &key, fresh, true).await?;
            }
            grant
        });
        let rotated = rotated.await;
        drop(caller);
        rotated
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        const DURING: &str = "inspecting";
        self.run(DURING, key, async move |store, key| store.inspect(DURING, &key).await).await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        const DURING: &str = "listing";
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        run_to_completion(DURING, async move { store.list(DURING, &prefix, &page).await }).await
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

impl fmt::Debug for EtcdLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLockProvider").finish_non_exhaustive()
    }
}
