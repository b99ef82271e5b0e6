use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::sqlite::{BUSY_TIMEOUT, Options};
use sqlx::SqlitePool;
use tokio::sync::oneshot;

use super::boot::LocalProcess;
use super::config::Source;
use super::error::NAME;
use super::fence_gate::pass;
use super::handle::WriterHandle;
use super::jobs::{DeferredRelease, JobOptions, release};
use super::record::RequesterInfo;
use super::schema::SCHEMA;
use super::store::{Edit, list, peek};
use super::writer::Order;
use super::{acquire, name};
use crate::coordination;
use crate::coordination::acquire::{AcquireAttempt, AcquireBackend, AttemptOutcome};
use crate::coordination::waiters::WaiterRegistry;
use crate::reporter::Reporter;
use crate::rules::{CLAIM_WINDOW, Id, Rules};
use crate::{
    AcquireRequest, Acquired, Capabilities, Capability, Clock, Error, Fence, Grant, Holder,
    Inspection, Key, LockProvider, Page, PageRequest, Proof, Result, StaleFence, Token,
};

/// Locks between the processes of one machine, in an SQLite file; clones share them.
///
/// A lease outlives its process and a reboot, until its ttl. Fences start at the wall clock in
/// microseconds and are durable. Another process learns of a release within some 5 ms.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_lock::{Locks, SqliteLockProvider};
///
/// # let dir = tempfile::tempdir()?;
/// # let file = dir.path().join("locks.db");
/// let locks = Locks::new(SqliteLockProvider::open_file(file).await?);
/// let guard = locks.lock("order:123").acquire().await?;
/// assert!(locks.lock("order:123").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteLockProvider {
    writer: WriterHandle,
}

impl SqliteLockProvider {
    /// Opens the file that `sqlite:///directory/file.db` names, with the parameters `mode=rwc` (the
    /// default) or `rw`, and `synchronous=full` (the default) or `normal`, with which a power cut
    /// may take back the last grants. A network file system is refused unless it says
    /// `allow-network-fs=true`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Backend`](crate::ErrorKind::Backend) for a file that cannot be used.
    pub async fn open(url: &str) -> Result<Self> {
        let options = Options::parse(url).map_err(|e| Error::invalid_argument("url", e.message))?;
        Self::start(Source::File(options)).await
    }

    /// Opens a file, and makes it where it is missing; its directory must exist.
    ///
    /// # Errors
    /// [`Backend`](crate::ErrorKind::Backend) for a file that cannot be used.
    pub async fn open_file(path: impl Into<PathBuf>) -> Result<Self> {
        Self::start(Source::File(Options::at(path))).await
    }

    /// Locks in the database of a pool. It opens the pool's file for itself, as durable
    /// (`synchronous`) as the pool has it, and so takes no connection away from it. Its other settings,
    /// such as the key of an encrypted file, are the pool's own.
    ///
    /// # Errors
    /// [`Backend`](crate::ErrorKind::Backend) when the database is in memory or cannot be used.
    pub async fn from_pool(pool: &SqlitePool) -> Result<Self> {
        Self::start(Source::Pool(pool.clone())).await
    }

    async fn start(source: Source) -> Result<Self> {
        Ok(SqliteLockProvider { writer: source.open().await? })
    }

    /// The tables as SQL, to make or to read them before.
    pub fn schema() -> &'static str {
        SCHEMA
    }
}

impl LockProvider for SqliteLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::*;
        // Not Notification: another process looks every 5 ms.
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
            CrossProcess,
            Durability,
            Bounded,
        ])
        .with_granularity(Duration::from_millis(500))
        .with_claim_window(CLAIM_WINDOW)
        .with_kept_places();
        DECLARED
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.writer.here.clock.clone()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        coordination::acquire::acquire(self, request, name::id(request.token)).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        let id = name::id(proof.token);
        self.writer
            .edit("renewing", proof.key, move |rules, edit| rules.renew(id, ttl, edit.now))
            .await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        let id = name::id(proof.token);
        self.writer.edit("releasing", proof.key, move |rules, _| release(rules, id)).await
    }

    fn release_later(&self, proof: Proof<'_>) {
        AcquireBackend::release_later(self, proof.key, name::id(proof.token));
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        // No lease ends with its process here, so it is enough that it is held.
        let id = name::id(proof.token);
        self.writer
            .edit("handing over", proof.key, move |rules, _| rules.holder_mut(id).is_some())
            .await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let (old, fresh) = (name::id(proof.token), name::id(fresh));
        let here = self.writer.asker();
        let change = move |rules: &mut Rules<RequesterInfo>, edit: &mut Edit<'_>| {
            let grant = rules.rotate(old, fresh, ttl, edit.now, &mut edit.fences())?;
            if let Some(held) = rules.holder_mut(fresh) {
                held.requester.extra = here.clone();
            }
            Some(grant)
        };
        self.writer
            .edit_with("resuming", proof.key, JobOptions::default(), |_, _, _| (), change)
            .await
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let name = key.clone();
        let (report, due) = self
            .writer
            .read("inspecting", move |connection, here| {
                let (rules, due) = peek(connection, here, &name)?;
                let report = Reporter::new(&*here.clock);
                Ok((report.inspection(name.as_str(), &rules, RequesterInfo::label), due))
            })
            .await?;
        if due {
            self.writer.tidy(key.clone());
        }
        Ok(report)
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        let (prefix, page) = (prefix.to_owned(), page.clone());
        let (page, over) =
            self.writer.read("listing", move |on, here| list(on, here, &prefix, &page)).await?;
        over.into_iter().for_each(|key| self.writer.tidy(key));
        Ok(page)
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        let clock = self.writer.here.clock.clone();
        self.writer
            .edit("breaking", key, move |rules, _| {
                let report = Reporter::new(&*clock);
                let broken = rules.break_lock(fence);
                broken.iter().map(|h| report.holder(h, h.requester.extra.label())).collect()
            })
            .await
    }

    async fn check_fence(&self, name: &str, fence: Fence) -> Result<Result<(), StaleFence>> {
        let name = name.to_owned();
        if i64::try_from(fence.get()).is_err() {
            return Err(Error::invalid_argument("fence", "it is over 2^63, which no grant has"));
        }
        let clock = &self.writer.here.clock;
        let patience = clock.now().after(BUSY_TIMEOUT);
        loop {
            let name = name.clone();
            let check = move |on: &rusqlite::Connection, _: &LocalProcess| pass(on, &name, fence);
            match self.writer.read("checking a fence", check).await {
                // Another process writes.
                Err(error) if error.is_temporary() && clock.now() < patience => {
                    clock.sleep_until(clock.now().after(Duration::from_millis(2))).await;
                }
                checked => return checked,
            }
        }
    }

    async fn close(&self) {
        let (tell, told) = oneshot::channel();
        if self.writer.send(Order::Tell(tell)) {
            let _ = told.await;
        }
    }
}

impl AcquireBackend for SqliteLockProvider {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.writer.here.clock
    }

    fn waiters(&self) -> &Arc<WaiterRegistry> {
        &self.writer.waiters
    }

    async fn attempt(&self, attempt: AcquireAttempt) -> Result<AttemptOutcome> {
        acquire::attempt(&self.writer, attempt).await
    }

    /// The writer has queued the waiter itself, and looks after it.
    fn watch_waiters(&self) {}

    /// The writer makes changes in turn, so the release comes after the request.
    fn release_later(&self, key: &Key, id: Id) {
        let job = DeferredRelease::new(key.clone(), id);
        self.writer.send(Order::Change(Box::new(job)));
    }
}

impl fmt::Debug for SqliteLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLockProvider").finish_non_exhaustive()
    }
}
