use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Client, RedisError};

use super::connection::{BACKGROUND, Connection, SharedConnection};
use super::error::NAME;
use super::notify::Notifier;
use super::store::Store;
use super::{acquire, check, config, error, record, scripts};
use crate::rules::CLAIM_WINDOW;
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Page, PageRequest, Proof, Result, SystemClock, Token,
};

/// Locks between machines, in a Redis server (6.2 or later, or one that behaves like it); clones
/// share them.
///
/// Acquiring a lease and releasing it are one message each, and many of one process share a message.
/// One more connection subscribes to notifications once the process waits for a key. Everything is
/// stored under names that begin with `latchwork:`; for keys that nobody uses, only one fence for all
/// of them is kept.
///
/// Not durable: a server that restarts without its data, or a fail-over to a replica that lags
/// behind, ends leases early. Fences grow even then: guard what must not happen twice with them.
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
    store: Arc<Store>,
    /// Stops when the last clone is dropped.
    notifier: Arc<Notifier>,
}

impl RedisLockProvider {
    /// Opens the server at an address: `redis://user:password@host:port/database`, `rediss://` with
    /// TLS, or `redis+unix:///socket`.
    ///
    /// With TLS the system's certificate authorities are trusted, or the one in the file that
    /// `?tls-ca=` names; `tls-cert` and `tls-key` name a client certificate. All are PEM files, which are
    /// read again for each new connection.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is not legal,
    /// [`Backend`](crate::ErrorKind::Backend) for a server that cannot be used (wrong password,
    /// missing rights, a replica, too old), [`NotSupported`](crate::ErrorKind::NotSupported) for
    /// Cluster and Sentinel, [`Unavailable`](crate::ErrorKind::Unavailable) when nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        let client = config::client(address)?;
        Self::open(client, config::names_files(address).then(|| address.into()), None).await
    }

    /// Uses the caller's own client to open connections.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_client(client: Client) -> Result<Self> {
        Self::open(client, None, None).await
    }

    /// Uses the caller's own connection, such as a `MultiplexedConnection` or a `ConnectionManager`,
    /// for everything but notifications and renewals. These have connections that the client opens, so
    /// that a lease is renewed also while the runtime of the caller's connection is blocked.
    ///
    /// It works for as long as the runtime in which the connection was opened.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_connection<C>(connection: C, client: Client) -> Result<Self>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::open(client, None, Some(Box::new(connection))).await
    }

    async fn open(
        client: Client,
        address: Option<Arc<str>>,
        given: Option<Box<dyn SharedConnection>>,
    ) -> Result<Self> {
        const DURING: &str = "opening the connection";
        // Rustls needs a default if a program has several sets of algorithms, or none.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        BACKGROUND
            .run(DURING, async move {
                let failed = |e: RedisError| error::driver(DURING, e);
                let connection = Arc::new(Connection::new(client, address, given));
                check::check(&connection, DURING).await?;
                connection.load_script().await.map_err(failed)?;
                let store = Arc::new(Store::new(connection, SystemClock::shared())?);
                // Each release that hands a key on says so on a channel; without that right all goes well
                // until somebody waits. Nobody listens to this one yet.
                let mut publish = redis::cmd("PUBLISH");
                publish.arg(scripts::channel(&store.client)).arg("");
                store.connection.send(&publish).await.map_err(failed)?;
                // A write that leaves nothing behind, so that a missing right is reported now.
                store.refresh_key(DURING, &Key::new("latchwork")?, &[]).await?;
                Ok(RedisLockProvider { store, notifier: Arc::default() })
            })
            .await
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
        acquire::acquire(&self.store, &self.notifier, request).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.store.renew("renewing", proof.key, record::id(proof.token), ttl).await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.store.release("releasing", proof.key, record::id(proof.token)).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.store.release_later(proof.key, record::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        // A lease in Redis does not depend on its process.
        self.store.is_held("handing over", proof.key, record::id(proof.token)).await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let (old, fresh) = (record::id(proof.token), record::id(fresh));
        self.store.rotate("resuming", proof.key, old, fresh, ttl).await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.store.inspect("inspecting", key).await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        const DURING: &str = "listing";
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        BACKGROUND.run(DURING, async move { store.list(DURING, &prefix, &page).await }).await
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.store.break_lock("breaking", key, fence).await
    }

    async fn close(&self) {
        self.store.flush_releases().await;
    }
}

impl fmt::Debug for RedisLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLockProvider").finish_non_exhaustive()
    }
}
