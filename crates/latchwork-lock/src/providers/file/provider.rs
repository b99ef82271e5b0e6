use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::config::Settings;
use super::error::{NAME, OPENING};
use super::notify::{Notifier, WITHOUT_INOTIFY};
use super::process::{Census, RequesterInfo};
use super::release::{Releaser, release};
use super::store::{Edit, Store};
use super::{acquire, blocking, name, sweep};
use crate::coordination;
use crate::coordination::acquire::{AcquireAttempt, AcquireBackend, AttemptOutcome};
use crate::coordination::cancel::CancelOnDrop;
use crate::coordination::deferred_release::DeferredReleases;
use crate::coordination::waiters::WaiterRegistry;
use crate::reporter::Reporter;
use crate::rules::{CLAIM_WINDOW, Decision, Id, Rules};
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Fence, Grant, Holder, Inspection,
    Key, LockProvider, Moment, Page, PageRequest, Proof, Result, Token,
};

/// Locks between the processes of one Linux machine, in a directory; clones share them.
///
/// A lease ends with its process too, at once, unless it was handed over; a reboot ends all.
/// Local file systems only. Fences start at the wall clock in microseconds and are durable.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_lock::{FileLockProvider, Locks};
///
/// # let dir = tempfile::tempdir()?;
/// # let directory = dir.path();
/// let locks = Locks::new(FileLockProvider::open(directory)?);
/// let guard = locks.lock("order:123").acquire().await?;
/// assert!(locks.lock("order:123").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FileLockProvider {
    store: Arc<Store>,
    waiters: Arc<WaiterRegistry>,
    notifier: Arc<Notifier>,
    releases: DeferredReleases<Releaser>,
}

/// Settings of a [`FileLockProvider`].
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are opened"]
pub struct FileLockProviderBuilder(Settings);

impl FileLockProviderBuilder {
    /// Names another process that uses the leases too: they are freed early only when this
    /// process and all companions are dead. May be called more than once.
    pub fn companion(mut self, pid: u32) -> Self {
        self.0.companions.push(pid);
        self
    }

    /// Accepts a network file system. Only for one that a single machine uses: leases are judged by
    /// this machine's boot clock and processes.
    pub fn allow_network(mut self) -> Self {
        self.0.allow_network = true;
        self
    }

    /// Opens the directory, and makes it where it is missing. It blocks for a few system calls.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a companion that does not run,
    /// [`Backend`](crate::ErrorKind::Backend) when the directory cannot be used or is on a network file
    /// system.
    pub fn open(self) -> Result<FileLockProvider> {
        Ok(FileLockProvider::of(self.0.open()?))
    }
}

/// Opens the directory that `file:///directory` names; `address` is the url as it was written.
pub(crate) async fn connect(url: &Url, address: &str) -> Result<FileLockProvider> {
    let settings = Settings::from_url(url, address)?;
    blocking::run(OPENING, move || Ok(FileLockProvider::of(settings.open()?))).await
}

impl FileLockProvider {
    /// Opens a directory, and makes it where it is missing.
    ///
    /// # Errors
    /// As for [`FileLockProviderBuilder::open`].
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(directory).open()
    }

    /// The same with settings.
    pub fn builder(directory: impl Into<PathBuf>) -> FileLockProviderBuilder {
        FileLockProviderBuilder(Settings::new(directory.into()))
    }

    fn of(store: Store) -> Self {
        let (store, waiters) = (Arc::new(store), Arc::new(WaiterRegistry::default()));
        sweep::start_if_due(&store);
        FileLockProvider {
            notifier: Arc::new(Notifier::new(store.clone(), waiters.clone())),
            releases: DeferredReleases::new(&Arc::new(Releaser(store.clone()))),
            waiters,
            store,
        }
    }

    /// One edit on a thread that may block.
    async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let (store, key) = (self.store.clone(), key.clone());
        blocking::run(during, move || Ok(store.edit(&key, change)?.0)).await
    }
}

impl LockProvider for FileLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::*;
        // Not Durability: a reboot, this backend's restart, frees everything.
        const DECLARED: Capabilities = Capabilities::of(&[
            Shared,
            Wait,
            Renew,
            TakeOver,
            HandOver,
            Inspect,
            List,
            Break,
            Exclusion,
            Expiry,
            Tokens,
            Fairness,
            Notification,
            CrossProcess,
            Bounded,
        ])
        .with_granularity(Duration::from_millis(100))
        .with_claim_window(CLAIM_WINDOW);
        DECLARED
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        sweep::count(&self.store);
        self.releases.room(&*self.store.clock).await;
        coordination::acquire::acquire(self, request, name::id(request.token)).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        let id = name::id(proof.token);
        self.edit("renewing", proof.key, move |rules, edit| rules.renew(id, ttl, edit.now)).await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        let (store, key, id) = (self.store.clone(), proof.key.clone(), name::id(proof.token));
        blocking::run("releasing", move || release(&store, &key, id)).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.releases.defer(proof.key.clone(), name::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        let id = name::id(proof.token);
        self.edit("handing over", proof.key, move |rules, _| {
            let held = rules.holder_mut(id);
            held.map(|held| held.requester.extra.handed_over = true).is_some()
        })
        .await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let (old, fresh) = (name::id(proof.token), name::id(fresh));
        let here = self.store.here.asker(Moment::NEVER);
        let caller = CancelOnDrop::new();
        let flag = caller.flag();
        self.edit("resuming", proof.key, move |rules, edit| {
            if flag.is_cancelled() {
                return None;
            }
            let grant = rules.rotate(old, fresh, ttl, edit.now, &mut edit.fences())?;
            // It lives and dies with this process from now on.
            if let Some(held) = rules.holder_mut(fresh) {
                held.requester.extra = here;
            }
            Some(grant)
        })
        .await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let (store, key) = (self.store.clone(), key.clone());
        blocking::run("inspecting", move || {
            let (rules, due) = store.peek(&key, &mut Census::new(&store.here))?;
            if due && rules.is_empty() {
                store.tidy(&key);
            }
            Ok(Reporter::new(&*store.clock).inspection(key.as_str(), &rules, RequesterInfo::label))
        })
        .await
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        let (store, prefix, page) = (self.store.clone(), prefix.to_owned(), page.clone());
        blocking::run("listing", move || {
            let report = Reporter::new(&*store.clock);
            let found = store.all(&prefix)?;
            let mut keys: Vec<Inspection> = found
                .iter()
                .map(|(key, rules)| report.inspection(key.as_str(), rules, RequesterInfo::label))
                .collect();
            keys.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            Ok(Page::cut(keys, &page))
        })
        .await
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        let (store, key) = (self.store.clone(), key.clone());
        blocking::run("breaking", move || {
            // A record that cannot be judged names no holder that could be told.
            if fence.is_none() && store.remove_unjudged(&key)? {
                return Ok(Vec::new());
            }
            let report = Reporter::new(&*store.clock);
            let (broken, _) = store.edit(&key, |rules, _| rules.break_lock(fence))?;
            Ok(broken.iter().map(|h| report.holder(h, h.requester.extra.label())).collect())
        })
        .await
    }

    async fn close(&self) {
        self.releases.flush().await;
    }
}

impl AcquireBackend for FileLockProvider {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.store.clock
    }

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.waiters
    }

    async fn attempt(&self, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
        let key = attempt.request.key.clone();
        let mut outcome = acquire::attempt(&self.store, &self.waiters, attempt).await?;
        if outcome.decision == Decision::Queued && !self.notifier.watch(&key) {
            outcome.due_in = Some(WITHOUT_INOTIFY);
        }
        Ok(outcome)
    }

    /// The attempt has done it.
    fn watch_waiters(&self) {}

    fn release_later(&self, key: &Key, id: Id) {
        self.releases.defer(key.clone(), id);
    }
}

impl fmt::Debug for FileLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLockProvider")
            .field("directory", &self.store.root.path(""))
            .finish_non_exhaustive()
    }
}
