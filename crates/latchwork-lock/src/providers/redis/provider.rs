use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::sync::watch::Sender;

use super::error::NAME;
use super::release::Releases;
use super::store::Store;
use super::{config, record, wait, watcher};
use crate::rules::CLAIM_WINDOW;
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Page, PageRequest, Proof, Result, Token,
};

/// Locks between machines, in a Redis server (6.2 or later, or one that behaves like it); clones
/// share them.
///
/// Taking a lease and giving it back are one message each, and many of one process share a message.
/// One more connection listens once somebody waits. Everything is stored under names that begin with
/// `latchwork:`, and nothing of a key that nobody uses but one fence for all.
///
/// Not durable: a server that restarts without its data, or a fail-over to a replica that lags
/// behind, ends leases early. Fences grow even then, so guard what must not happen twice with them.
/// The server must not evict keys: `maxmemory-policy noeviction`.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{Locks, RedisLockProvider};
///
/// let provider = RedisLockProvider::connect("redis://localhost").await?;
/// let locks = Locks::new(provider);
/// let guard = locks.lock("order:123").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisLockProvider {
    pub(super) store: Arc<Store>,
    pub(super) releases: Arc<Releases>,
    /// Dropped with the last clone, which ends the watch.
    watching: Arc<OnceLock<Sender<()>>>,
}

impl RedisLockProvider {
    /// Opens the server at an address: `redis://user:password@host:port/database`, `rediss://` with
    /// TLS, or `redis+unix:///socket`.
    ///
    /// With TLS the system's certificate authorities are trusted, or the one in the file that
    /// `?tls-ca=` names; `tls-cert` and `tls-key` name a certificate of our own. All are PEM files.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Backend`](crate::ErrorKind::Backend) for a server that cannot be used (wrong password,
    /// missing rights, a replica, too old), [`NotSupported`](crate::ErrorKind::NotSupported) for
    /// Cluster and Sentinel, [`Unavailable`](crate::ErrorKind::Unavailable) when nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        config::connect(address).await
    }

    /// Uses the caller's own client, with connections that the provider opens by it.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_client(client: redis::Client) -> Result<Self> {
        config::open(client, None).await
    }

    /// Uses the caller's own connection, such as a `MultiplexedConnection` or a `ConnectionManager`,
    /// for everything but notices; those are heard on a connection that is opened by the client.
    ///
    /// It goes on as long as the runtime in which the connection was made.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_connection<C>(connection: C, client: redis::Client) -> Result<Self>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        config::open(client, Some(Box::new(connection))).await
    }

    pub(super) fn of(store: Store) -> Self {
        RedisLockProvider {
            store: Arc::new(store),
            releases: Arc::new(Releases::new()),
            watching: Arc::default(),
        }
    }

    /// Sees to it that somebody looks after the waiters.
    pub(super) fn watch(&self) {
        self.watching.get_or_init(|| {
            let gone = Sender::new(());
            if let Ok(runtime) = watcher::runtime() {
                let (store, releases) = (self.store.clone(), self.releases.clone());
                runtime.spawn(watcher::watch(store, releases, gone.subscribe()));
            }
            gone
        });
    }
}

impl LockProvider for RedisLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let kept = Capability::ALL.into_iter().filter(|c| *c != Capability::Durability);
        kept.fold(Capabilities::NONE, Capabilities::with)
            .with_granularity(Duration::from_millis(500))
            .with_claim_window(CLAIM_WINDOW)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        wait::acquire(self, request).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.store.renew("renewing", proof.key, record::id(proof.token), ttl).await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.store.release("releasing", proof.key, record::id(proof.token)).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.releases.queue(&self.store, proof.key, record::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        // A lease of this backend never depends on its process.
        self.store.is_held("handing over", proof.key, record::id(proof.token)).await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let ids = (record::id(proof.token), record::id(fresh));
        self.store.rotate("resuming", proof.key, ids, ttl).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.store.inspect("inspecting", key).await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        const DURING: &str = "listing";
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        watcher::run(DURING, async move { store.list(DURING, &prefix, &page).await }).await
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.store.break_lock("breaking", key, fence).await
    }

    async fn close(&self) {
        self.releases.flush().await;
    }
}

impl fmt::Debug for RedisLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLockProvider").finish_non_exhaustive()
    }
}
