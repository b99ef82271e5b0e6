use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::builder::FileLockProviderBuilder;
use super::fault::NAME;
use super::process::{Asker, Census};
use super::release::{Releases, release};
use super::store::{Edit, Store};
use super::watch::Watch;
use super::{blocking, name, sweep, wait};
use crate::reporter::Reporter;
use crate::rules::{CLAIM_WINDOW, Rules};
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
    pub(super) store: Arc<Store>,
    pub(super) watch: Arc<Watch>,
    pub(super) releases: Arc<Releases>,
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
        FileLockProviderBuilder::new(directory.into())
    }

    pub(super) fn of(store: Store) -> Self {
        let store = Arc::new(store);
        sweep::start_if_due(&store);
        FileLockProvider {
            watch: Arc::new(Watch::new(store.clone())),
            releases: Arc::default(),
            store,
        }
    }

    /// One edit on a thread that may block.
    async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnOnce(&mut Rules<Asker>, &mut Edit<'_>) -> T + Send + 'static,
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
        wait::acquire(self, request).await
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
        self.releases.queue(&self.store, proof.key.clone(), name::id(proof.token));
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
        let asked = wait::Asked::new();
        let wanted = asked.watcher();
        self.edit("resuming", proof.key, move |rules, edit| {
            if !wanted.is_wanted() {
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
            Ok(Reporter::new(&*store.clock).inspection(key.as_str(), &rules, Asker::label))
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
                .map(|(key, rules)| report.inspection(key.as_str(), rules, Asker::label))
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

impl fmt::Debug for FileLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLockProvider")
            .field("directory", &self.store.root.path(""))
            .finish_non_exhaustive()
    }
}
