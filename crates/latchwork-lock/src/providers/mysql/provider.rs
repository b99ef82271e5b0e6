use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::mysql::MySqlPool;
use tokio::sync::watch::Sender;

use super::error::NAME;
use super::notify::Notifier;
use super::record::{self, RequesterInfo};
use super::release::release;
use super::schema::{LAYER, MIGRATIONS};
use super::store::{BACKGROUND, Edit, Store};
use super::{acquire, config, schema, sweep};
use crate::coordination;
use crate::coordination::acquire::{AcquireAttempt, AcquireBackend, AttemptOutcome};
use crate::coordination::cancel::CancelOnDrop;
use crate::coordination::deferred_release::DeferredReleases;
use crate::coordination::polling::poll_waiters;
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::{CLAIM_WINDOW, Id, Rules};
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Page, PageRequest, Proof, Result, Token,
};

/// Locks between machines, in a MariaDB or MySQL database; clones share them.
///
/// No connection is kept for a lease, so a small pool serves any number of them. Leases and fences
/// are as durable as the server's commits (`innodb_flush_log_at_trx_commit = 1`, the default).
///
/// Messages to the server: one to take a key that was used lately (two for another), one to renew,
/// one to give back, one to queue behind a writer, one to hand on to a writer of the same process;
/// two for any other change of a key that somebody waits for, or that is shared.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{Locks, MySqlLockProvider};
///
/// let provider = MySqlLockProvider::connect("mysql://app:secret@localhost/app").await?;
/// let locks = Locks::new(provider);
/// let guard = locks.lock("order:123").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MySqlLockProvider {
    store: Arc<Store>,
    releases: DeferredReleases<Store>,
    /// Dropped with the last clone, which ends the watch.
    watching: Arc<OnceLock<Sender<()>>>,
    asked: Arc<AtomicU32>,
}

impl MySqlLockProvider {
    /// Opens a database by its address, and makes the tables where they are missing.
    ///
    /// The address is `mysql://user:password@host:port/database?ssl-mode=VERIFY_IDENTITY`, or the
    /// same with `mariadb:`. TLS is used where the server offers it; `ssl-mode=REQUIRED` insists.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Backend`](crate::ErrorKind::Backend) for a server that cannot be used (wrong password,
    /// missing rights, a replica, too old), [`Unavailable`](crate::ErrorKind::Unavailable) when
    /// nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        Ok(Self::of(config::connect(address).await?))
    }

    /// Uses the caller's own pool.
    ///
    /// Its connections may then belong to the provider's own runtime, which lives as long as
    /// the process. One that serves the provider goes back after some jobs in a row, or when there
    /// is none for a moment. Autocommit must be on; the isolation level is the pool's own affair.
    /// Leases are renewed on one more connection that is opened with the pool's options, also while
    /// all of the pool are in use or its runtime is blocked.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_pool(pool: MySqlPool) -> Result<Self> {
        Ok(Self::of(config::from_pool(pool).await?))
    }

    /// How many releases of dropped guards and requests are not done yet.
    ///
    /// While it is 128 or more, new requests wait for them, a second at the most: so it stays below
    /// that plus the number of guards and requests that there are at a time.
    pub fn pending_releases(&self) -> usize {
        self.releases.pending()
    }

    /// The tables as SQL, for those who let nobody but themselves create any.
    pub fn schema() -> String {
        latchwork_sql::mysql::script(LAYER, &MIGRATIONS)
    }

    /// The statements that grant a user (`name`, `name@host`) or a role what it needs to lock with these
    /// tables, and no more.
    pub fn grants(role: &str) -> String {
        schema::grants(role)
    }

    fn of(store: Store) -> Self {
        let store = Arc::new(store);
        let provider = MySqlLockProvider {
            releases: DeferredReleases::new(&store),
            store,
            watching: Arc::default(),
            asked: Arc::default(),
        };
        provider.sweep();
        provider
    }

    /// Removes what is left of keys that nobody has asked for since.
    fn sweep(&self) {
        let store = self.store.clone();
        let Ok(runtime) = BACKGROUND.handle() else { return };
        runtime.spawn(async move { sweep::sweep(&store).await });
    }

    /// One edit, which runs to its end.
    async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnMut(&mut Rules<RequesterInfo>, &mut Edit) -> T + Send + 'static,
    ) -> Result<T> {
        let (store, key) = (self.store.clone(), key.clone());
        BACKGROUND.run(during, async move { Ok(store.edit(during, &key, change).await?.0) }).await
    }
}

impl LockProvider for MySqlLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let declared = Capability::ALL.into_iter().filter(|c| *c != Capability::Notification);
        declared
            .fold(Capabilities::NONE, Capabilities::with)
            .with_granularity(Duration::from_millis(500))
            .with_claim_window(CLAIM_WINDOW)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        if self.asked.fetch_add(1, Ordering::Relaxed) % sweep::EVERY == sweep::EVERY - 1 {
            self.sweep();
        }
        self.releases.room(&*self.store.clock).await;
        coordination::acquire::acquire(self, request, record::id(request.token)).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        const DURING: &str = "renewing";
        let (store, key, id) = (self.store.clone(), proof.key.clone(), record::id(proof.token));
        BACKGROUND.run(DURING, async move { store.renew(DURING, &key, id, ttl).await }).await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        let (store, key, id) = (self.store.clone(), proof.key.clone(), record::id(proof.token));
        BACKGROUND.run("releasing", async move { release(&store, &key, id).await }).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.releases.defer(proof.key.clone(), record::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        // A lease of this backend never depends on its process.
        let id = record::id(proof.token);
        self.edit("handing over", proof.key, move |rules, _| rules.holder_mut(id).is_some()).await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let (old, fresh) = (record::id(proof.token), record::id(fresh));
        let here =
            RequesterInfo::new(&self.store.process, &self.store.client, crate::Moment::NEVER);
        let caller = CancelOnDrop::new();
        let is_cancelled = caller.flag();
        self.edit("resuming", proof.key, move |rules, edit| {
            // Under the key's lock: the release that follows a dropped request may have been here
            // before it, and would not come again.
            if is_cancelled.is_cancelled() {
                return None;
            }
            let grant = rules.rotate(old, fresh, ttl, edit.now, &mut edit.fences())?;
            if let Some(held) = rules.holder_mut(fresh) {
                held.requester.extra = here.clone();
            }
            Some(grant)
        })
        .await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        const DURING: &str = "inspecting";
        let (store, key) = (self.store.clone(), key.clone());
        BACKGROUND
            .run(DURING, async move {
                let (rules, now) = store.peek(DURING, &key).await?;
                Ok(record::reporter(now).inspection(key.as_str(), &rules, RequesterInfo::label))
            })
            .await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        const DURING: &str = "listing";
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        BACKGROUND.run(DURING, async move { store.list(DURING, &prefix, &page).await }).await
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.edit("breaking", key, move |rules, edit| {
            let report = record::reporter(edit.now);
            let broken = rules.break_lock(fence);
            broken.iter().map(|h| report.holder(h, h.requester.extra.label())).collect()
        })
        .await
    }

    async fn close(&self) {
        self.releases.flush().await;
    }
}

impl AcquireBackend for MySqlLockProvider {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.store.clock
    }

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.store.waiters
    }

    async fn attempt(&self, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
        acquire::attempt(&self.store, attempt).await
    }

    fn watch_waiters(&self) {
        self.watching.get_or_init(|| {
            let gone = Sender::new(());
            if let Ok(runtime) = BACKGROUND.handle() {
                let notifier = Notifier::new(self.store.clone());
                runtime.spawn(poll_waiters(notifier, gone.subscribe()));
            }
            gone
        });
        self.store.waiters.wake_idle_poller();
    }

    fn release_later(&self, key: &Key, id: Id) {
        self.releases.defer(key.clone(), id);
    }
}

impl fmt::Debug for MySqlLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlLockProvider").finish_non_exhaustive()
    }
}
