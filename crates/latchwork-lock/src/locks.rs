//! The front door.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::ReleaseOnDrop;
use crate::key::check_prefix;
use crate::provider::{AnyLockProvider, DynLockProvider};
use crate::request::{LockRequest, ManyKeys, OneKey};
use crate::{
    AcquireRequest, Capabilities, Capability, Clock, ConnectOptions, Error, Fence, Guard, Held,
    Holder, Inspection, Key, Lease, LockConfig, LockProvider, Owner, Page, PageRequest, Proof,
    Result, StaleFence, Token, Wait,
};

/// The prefix of keys unless another is chosen.
pub const DEFAULT_PREFIX: &str = "lock/";

/// A set of locks in one backend. Cloning is cheap, and clones are the same locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> latchwork_lock::Result<()> {
/// use latchwork_lock::Locks;
/// use std::time::Duration;
///
/// let locks = Locks::connect("memory:").await?;
/// let guard = locks
///     .lock("order:123")
///     .ttl(Duration::from_secs(30))
///     .wait(Duration::from_secs(10))
///     .acquire()
///     .await?;
/// println!("write with fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Locks {
    inner: Arc<Inner>,
}

/// A clone has a counter of its own, since every guard counts: with one for all, the tasks of two
/// cores would spend their time passing that counter to and fro.
impl Clone for Locks {
    fn clone(&self) -> Self {
        self.changed(|_| ())
    }
}

#[derive(Clone)]
struct Inner {
    provider: Arc<dyn DynLockProvider>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    prefix: Arc<str>,
    owner: Option<Owner>,
    defaults: LockConfig,
}

impl Locks {
    /// Locks on a provider of your own making or configuration.
    pub fn new(provider: impl LockProvider) -> Self {
        Locks {
            inner: Arc::new(Inner {
                capabilities: LockProvider::capabilities(&provider),
                clock: LockProvider::clock(&provider),
                provider: Arc::new(provider),
                prefix: DEFAULT_PREFIX.into(),
                owner: None,
                defaults: LockConfig::default(),
            }),
        }
    }

    /// Locks at an address:
    ///
    /// | scheme | backend | feature |
    /// | --- | --- | --- |
    /// | `memory:` | this process | |
    /// | `noop:` | none: every request is granted, for tests | |
    /// | `file:///directory` | a directory of this machine | `file` |
    /// | `sqlite:///file.db` | an SQLite file of this machine | `sqlite` |
    /// | `postgres://user:password@host/database`, `postgresql://…` | PostgreSQL | `postgres` |
    /// | `mysql://user:password@host/database`, `mariadb://…` | MySQL or MariaDB | `mysql` |
    /// | `redis://host:port/database`, `rediss://…` with TLS, `redis+unix:///socket` | Redis | `redis` |
    /// | `etcd://host:port,host:port`, `etcds://…` with TLS | etcd | `etcd` |
    ///
    /// Every `memory:` is a new, separate set of locks; clone the `Locks` to share it. A backend that
    /// does not answer is an error at once; [`connect_with`](Self::connect_with) tries again.
    ///
    /// Cancel safe: nothing but the connection is lost.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`NotBuilt`](crate::ErrorKind::NotBuilt) for one whose provider was left out of this build, and what
    /// the provider itself reports.
    pub async fn connect(url: &str) -> Result<Self> {
        crate::connect::connect(url).await
    }

    /// The same, as the options say: a backend that cannot be reached for the moment may be tried again.
    ///
    /// Cancel safe: nothing but the connection is lost.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect). With a timeout,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) only when that has passed.
    pub async fn connect_with(url: &str, options: &ConnectOptions) -> Result<Self> {
        crate::connect::connect_with(url, options).await
    }

    /// The same with another way to open the backend, for crates that know more addresses than this one.
    #[doc(hidden)]
    pub async fn open_with<F: Future<Output = Result<Locks>>>(
        url: &str,
        options: &ConnectOptions,
        open: impl Fn() -> F,
    ) -> Result<Self> {
        crate::connect::open_with(url, options, open).await
    }

    /// The tables that the backend at an address needs, as SQL, for those who make them
    /// themselves. Nothing is connected to.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address of a backend without
    /// tables, [`NotBuilt`](crate::ErrorKind::NotBuilt) for one that was left out of this build.
    pub fn schema(url: &str) -> Result<String> {
        crate::connect::schema(url)
    }

    /// The statements that grant a role of the database what it needs to lock with these tables, and no
    /// more; the tables' owner runs them. Nothing is connected to.
    ///
    /// # Errors
    /// As for [`schema`](Self::schema), and [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a
    /// database without roles.
    pub fn grants(url: &str, role: &str) -> Result<String> {
        crate::connect::grants(url, role)
    }

    /// The same backend with another prefix before each key; it may be empty.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when it is too long or has control characters.
    pub fn with_prefix(&self, prefix: impl AsRef<str>) -> Result<Self> {
        let prefix = prefix.as_ref();
        check_prefix(prefix)?;
        Ok(self.changed(|inner| inner.prefix = prefix.into()))
    }

    /// The same backend with one owner for every request that names no other. Mind that requests
    /// of one owner do not exclude each other: they take over (L7).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the name is not legal.
    pub fn with_owner(&self, owner: impl AsRef<str>) -> Result<Self> {
        let owner = Owner::new(owner.as_ref())?;
        Ok(self.changed(|inner| inner.owner = Some(owner)))
    }

    /// The same backend with other settings for requests that set none.
    #[must_use]
    pub fn with_defaults(&self, defaults: LockConfig) -> Self {
        self.changed(|inner| inner.defaults = defaults)
    }

    /// The same handle once more, for a guard of it.
    #[inline]
    pub(crate) fn share(&self) -> Self {
        Locks { inner: self.inner.clone() }
    }

    fn changed(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = (*self.inner).clone();
        change(&mut inner);
        Locks { inner: Arc::new(inner) }
    }

    /// A request for one key. Nothing happens until one of its last methods is called:
    /// [`acquire`](LockRequest::acquire), [`try_acquire`](LockRequest::try_acquire),
    /// [`attempt`](LockRequest::attempt) or [`run`](LockRequest::run).
    #[inline]
    pub fn lock<S: AsRef<str>>(&self, key: S) -> LockRequest<'_, OneKey<S>> {
        LockRequest::new(self, OneKey(key))
    }

    /// A request for several keys, all or none: deduplicated, asked for in sorted order, under
    /// one deadline, so that two such requests never wait for each other.
    pub fn lock_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> LockRequest<'_, ManyKeys> {
        LockRequest::new(self, ManyKeys::new(self, keys))
    }

    /// Goes on holding a lease that was handed over (L13). It gets a new token and a higher
    /// fence: of two resumers one wins, and every older copy of the lease is dead.
    ///
    /// Cancel safety: dropped midway, the lease may have been rotated already; a release is
    /// queued then, so that nobody waits for a holder that does not exist.
    ///
    /// # Errors
    /// [`LockLost`](crate::ErrorKind::LockLost) when the lease ran out, was broken, taken over or resumed
    /// by another.
    pub async fn resume(&self, lease: Lease) -> Result<Guard> {
        self.require(Capability::HandOver)?;
        crate::config::check_ttl(lease.ttl)?;
        let locks = if lease.prefix == self.prefix() {
            self.share()
        } else {
            self.with_prefix(&lease.prefix)?
        };
        let request = AcquireRequest {
            key: locks.key(&lease.key)?,
            mode: lease.mode,
            token: Token::random(),
            owner: lease.owner.clone(),
            note: None,
            ttl: lease.ttl,
            wait: Wait::No,
            keep: Duration::ZERO,
            retry_interval: locks.defaults().retry_interval,
            sent_at: locks.clock().recent(),
        };
        let mut held = Held::new_pending(&locks, request, false);
        let release = ReleaseOnDrop::new(&locks, &held.request);
        let old = Proof { key: &held.request.key, token: lease.token };
        let grant = self.provider().rotate(old, held.request.token, lease.ttl).await?;
        release.disarm();
        match grant {
            Some(grant) => {
                held.granted(grant);
                Ok(Guard::new(held))
            }
            None => Err(Error::lost(&lease.key, lease.fence)),
        }
    }

    /// Who holds a key and who waits for it (L11).
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), [`NotSupported`](crate::ErrorKind::NotSupported), or what the
    /// backend reports.
    pub async fn inspect(&self, key: &str) -> Result<Inspection> {
        self.require(Capability::Inspect)?;
        let mut found = self.provider().inspect(&self.key(key)?).await?;
        found.key = key.to_owned();
        Ok(found)
    }

    /// Whether somebody holds the key. It says nothing about *who*.
    ///
    /// # Errors
    /// As for [`inspect`](Self::inspect).
    pub async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.inspect(key).await?.is_held())
    }

    /// The keys that begin with `prefix` and are held or waited for, sorted, a page at a time.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a limit outside of 1 to 1,000,
    /// [`NotSupported`](crate::ErrorKind::NotSupported), or what the backend reports.
    pub async fn list(&self, prefix: &str, page: PageRequest) -> Result<Page> {
        self.require(Capability::List)?;
        if !(1..=1_000).contains(&page.limit) {
            return Err(Error::invalid_argument(
                "limit",
                format!("{} is not between 1 and 1,000", page.limit),
            ));
        }
        let own = self.prefix();
        let page = PageRequest {
            limit: page.limit,
            after: page.after.map(|after| format!("{own}{after}")),
        };
        let mut found = self.provider().list(&format!("{own}{prefix}"), &page).await?;
        for inspection in &mut found.keys {
            inspection.key = self.strip(&inspection.key).to_owned();
        }
        found.next = found.next.map(|next| self.strip(&next).to_owned());
        Ok(found)
    }

    /// Ends every lease of a key, as an administrator (L12), and tells whose they were. Their
    /// holders learn of it at their next renewal; until then only the fence stops them.
    ///
    /// Cancel safe: the break has happened or it has not.
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey), [`NotSupported`](crate::ErrorKind::NotSupported), or what the
    /// backend reports.
    pub async fn break_lock(&self, key: &str) -> Result<Vec<Holder>> {
        self.break_fence(key, None).await
    }

    /// Ends the one lease with this fence, and nothing if it has ended already: what was seen is
    /// what is broken.
    ///
    /// Cancel safe, and with the same errors as [`break_lock`](Self::break_lock).
    pub async fn break_lease(&self, key: &str, fence: Fence) -> Result<Option<Holder>> {
        Ok(self.break_fence(key, Some(fence)).await?.pop())
    }

    async fn break_fence(&self, key: &str, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.require(Capability::Break)?;
        self.provider().break_lock(&self.key(key)?, fence).await
    }

    /// Waits until every release that dropped guards have queued was tried (L21). Call it before
    /// the runtime ends; what could not be told by then, the ttl ends.
    ///
    /// Cancel safe: what is queued stays queued.
    pub async fn close(&self) {
        self.provider().close().await;
    }

    /// Lets a fence pass that is not older than the newest one that the backend's gate has seen for
    /// this name, and remembers it (L20). It is the gate of
    /// [`PostgresFenceGate`](crate::PostgresFenceGate) and [`SqliteFenceGate`](crate::SqliteFenceGate),
    /// in a transaction of its own: between it and a write elsewhere a newer holder may come. For
    /// exclusive leases only.
    ///
    /// Cancel safe: the check has happened or it has not, and may be asked for again.
    ///
    /// # Errors
    /// [`NotSupported`](crate::ErrorKind::NotSupported), or what the backend reports; inside,
    /// [`StaleFence`] for an older fence.
    pub async fn check_fence(&self, name: &str, fence: Fence) -> Result<Result<(), StaleFence>> {
        self.key(name)?;
        self.provider().check_fence(name, fence).await
    }

    /// The provider, for what needs its [port](LockProvider) instead of guards.
    pub fn any_provider(&self) -> AnyLockProvider {
        AnyLockProvider::of(self.inner.provider.clone())
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &'static str {
        self.provider().name()
    }

    /// What the provider can do and promises.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// What stands before each key.
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// The clock by which leases are trusted. Read the time from it *inside* the critical section.
    #[inline]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Refuses an operation that the provider did not declare.
    #[inline]
    pub(crate) fn require(&self, capability: Capability) -> Result<()> {
        if self.inner.capabilities.has(capability) {
            return Ok(());
        }
        Err(Error::not_supported(self.provider_name(), capability.name()))
    }

    #[inline]
    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.inner.owner.as_ref()
    }

    /// The settings of requests that set none.
    #[inline]
    pub fn defaults(&self) -> &LockConfig {
        &self.inner.defaults
    }

    #[inline]
    pub(crate) fn provider(&self) -> &dyn DynLockProvider {
        &*self.inner.provider
    }

    /// Whether keys of these are keys of those. Two connections to one server are not the same:
    /// nobody here knows that they are.
    pub(crate) fn is_same_provider(&self, other: &Locks) -> bool {
        Arc::ptr_eq(&self.inner.provider, &other.inner.provider)
    }

    /// A caller's key as the provider sees it: checked, and with the prefix.
    ///
    /// # Errors
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey).
    #[inline]
    pub fn key(&self, name: &str) -> Result<Key> {
        Key::with_prefix(&self.inner.prefix, name)
    }

    /// A provider's key as the caller knows it.
    pub(crate) fn strip<'a>(&self, key: &'a str) -> &'a str {
        key.strip_prefix(&*self.inner.prefix).unwrap_or(key)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("provider", &self.provider_name())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}
