use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::postgres::PgPool;
use tokio::sync::watch::Sender;

use super::batches::Batches;
use super::error::{self, NAME};
use super::notify::Notifier;
use super::record::{self, RequesterInfo};
use super::schema::{LAYER, MIGRATIONS};
use super::store::{BACKGROUND, Edit, Store};
use super::{acquire, config, release, schema};
use crate::coordination;
use crate::coordination::acquire::{AcquireAttempt, AcquireBackend, AttemptOutcome};
use crate::coordination::cancel::CancelOnDrop;
use crate::coordination::polling::poll_waiters;
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::{CLAIM_WINDOW, Id, Rules};
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Error, Fence, Grant, Holder,
    Inspection, Key, LockProvider, Page, PageRequest, Proof, Result, StaleFence, Token,
};

/// After this many requests somebody looks for what the killed have left.
const SWEEP_EVERY: u32 = 1_000;

/// How long after its start a process looks for it.
const SOON: Duration = Duration::from_secs(2);

/// One in this many looks at once.
const SHORT_STARTS: u32 = 16;

/// Locks between machines, in a PostgreSQL database; clones share them.
///
/// No connection is kept for a lease, so a small pool serves any number of them, also through
/// pgbouncer in transaction mode. One more connection of its own listens while somebody waits.
/// A runtime with several threads has up to five of its own besides, which spare it the way over
/// another thread; they are opened when it first asks and closed when it has not for half a minute.
/// Where the pool has fewer than eight there are none of these.
/// Leases and fences are as durable as the server's commits.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::{Locks, PostgresLockProvider};
///
/// let provider = PostgresLockProvider::connect("postgres://localhost/app").await?;
/// let locks = Locks::new(provider);
/// let guard = locks.lock("order:123").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresLockProvider {
    store: Arc<Store>,
    /// Ends with the last clone.
    batches: Arc<Batches>,
    /// Dropped with the last clone, which ends the watch.
    watching: Arc<OnceLock<Sender<()>>>,
    asked: Arc<AtomicU32>,
}

impl PostgresLockProvider {
    /// Opens a database by its address, and makes the tables where they are missing.
    ///
    /// The address is libpq's: `postgres://user:password@host:port/database?sslmode=verify-full`.
    /// Behind pgbouncer, in any mode, waiters look at every tick; that it is there is found
    /// out, or said with `statement-cache-capacity=0`.
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
    /// the process. Leases are renewed on a connection of their own, also while all of the pool are in
    /// use or its runtime is blocked. That one, and what a runtime has of its own (see above), are opened with the
    /// options of the pool and do not count in its size.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_pool(pool: PgPool) -> Result<Self> {
        Ok(Self::of(config::from_pool(pool).await?))
    }

    /// How many releases of dropped guards and requests are not done yet.
    ///
    /// While it is 128 or more, new requests wait for them, a second at the most: so it stays below
    /// that plus the number of guards and requests that there are at a time.
    pub fn pending_releases(&self) -> usize {
        self.batches.releases.pending()
    }

    /// The tables as SQL, for those who let nobody but themselves create any.
    pub fn schema() -> String {
        latchwork_sql::postgres::script(LAYER, &MIGRATIONS)
    }

    /// The statements that grant a role what it needs to lock with these tables, and no more. Their owner
    /// runs them.
    pub fn grants(role: &str) -> String {
        schema::grants(role)
    }

    fn of(store: Store) -> Self {
        let batches = Arc::new(Batches::new(store));
        let provider = PostgresLockProvider {
            store: batches.store.clone(),
            batches,
            watching: Arc::default(),
            asked: Arc::default(),
        };
        // A process that lives for long sweeps soon, and of those that do not some do: to run a short
        // command under a lock should not cost a second connection.
        let at_once = rand::random_ratio(1, SHORT_STARTS);
        provider.sweep(if at_once { Duration::ZERO } else { SOON });
        provider
    }

    /// Removes what is left of keys whose holders were killed and that nobody has asked for since.
    fn sweep(&self, after: Duration) {
        let store = Arc::downgrade(&self.store);
        let Ok(runtime) = BACKGROUND.handle() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            let Some(store) = store.upgrade() else { return };
            for key in store.left_over().await.unwrap_or_default() {
                if let Err(error) = store.edit("sweeping", &key, |_, _| ()).await {
                    tracing::debug!(%key, %error, "what is left of a key was not removed");
                }
            }
        });
    }

    /// One edit, which runs to its end.
    async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit) -> T + Send + 'static,
    ) -> Result<T> {
        let (store, key) = (self.store.clone(), key.clone());
        BACKGROUND.run(during, async move { Ok(store.edit(during, &key, change).await?.0) }).await
    }
}

impl LockProvider for PostgresLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        const DECLARED: Capabilities = Capabilities::of(&Capability::ALL)
            .with_granularity(Duration::from_millis(500))
            .with_claim_window(CLAIM_WINDOW)
            .with_kept_places();
        if self.store.has_own_sessions() {
            return DECLARED;
        }
        let heard = Capability::ALL.into_iter().filter(|c| *c != Capability::Notification);
        heard
            .fold(Capabilities::NONE, Capabilities::with)
            .with_granularity(DECLARED.granularity())
            .with_claim_window(DECLARED.claim_window())
            .with_kept_places()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        if self.asked.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep(Duration::ZERO);
        }
        self.batches.releases.room(&*self.store.clock).await;
        coordination::acquire::acquire(self, request, record::id(request.token)).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        const DURING: &str = "renewing";
        let (store, key, id) = (self.store.clone(), proof.key.clone(), record::id(proof.token));
        BACKGROUND.run(DURING, async move { store.renew(DURING, &key, id, ttl).await }).await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        release::release(&self.batches, proof.key, record::id(proof.token)).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        release::later(&self.batches, proof.key.clone(), record::id(proof.token));
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
                held.requester.extra = here;
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

    async fn check_fence(&self, name: &str, fence: Fence) -> Result<Result<(), StaleFence>> {
        const DURING: &str = "checking a fence";
        if i64::try_from(fence.get()).is_err() {
            return Err(Error::invalid_argument("fence", "it is over 2^63, which no grant has"));
        }
        let (store, name) = (self.store.clone(), name.to_owned());
        let check = async move {
            let checked = store.check_fence(&name, fence).await;
            checked.map_err(|error| error::driver(DURING, error))
        };
        BACKGROUND.run(DURING, check).await
    }

    async fn close(&self) {
        self.batches.releases.flush().await;
    }
}

impl AcquireBackend for PostgresLockProvider {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.store.clock
    }

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.store.waiters
    }

    async fn attempt(&self, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
        acquire::attempt(&self.batches, attempt).await
    }

    fn watch_waiters(&self) {
        self.watching.get_or_init(|| {
            let stop = Sender::new(());
            if let Ok(runtime) = BACKGROUND.handle() {
                let (store, stopped) = (self.store.clone(), stop.subscribe());
                runtime.spawn(async { poll_waiters(Notifier::start(store), stopped).await });
            }
            stop
        });
        self.store.waiters.wake_idle_poller();
    }

    fn release_later(&self, key: &Key, id: Id) {
        release::later(&self.batches, key.clone(), id);
    }
}

impl fmt::Debug for PostgresLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLockProvider").finish_non_exhaustive()
    }
}
