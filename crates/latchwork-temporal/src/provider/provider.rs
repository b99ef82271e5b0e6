//! [`TemporalLockProvider`]: the port of the lock layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::coordination::background::Background;
use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, LockProvider, Proof, Token};
use latchwork_lock::{
    Capabilities, Capability, Clock, Error, Fence, Holder, Inspection, Key, Page, PageRequest,
    Result, SystemClock,
};
use temporalio_client::Client;

use super::acquire::{self, PATIENCE, id};
use super::link::Links;
use super::{TemporalConfig, listing, report};
use crate::client::{CallError, MutexClient, Pauses};
use crate::error::NAME;
use crate::messages::{MutexStatus, OperationKind, Outcome};
use crate::state::{CLAIM_WINDOW, micros};

/// Where the calls of this process run: a drop may happen in any runtime or in none.
static BACKGROUND: Background = Background::new(NAME);

/// How late a lease may end: an untuned server's timers are up to a second late, and the next task may have
/// to find another worker.
const GRANULARITY: Duration = Duration::from_secs(2);

/// Locks on a Temporal cluster, shared with the workflows that lock by [`Mutex`](crate::Mutex).
///
/// A worker has to run the mutexes; `latchwork temporal worker` starts one.
///
/// ```no_run
/// # async fn example() -> latchwork_lock::Result<()> {
/// use latchwork_lock::Locks;
/// use latchwork_temporal::TemporalLockProvider;
///
/// let provider = TemporalLockProvider::connect("temporal://localhost/default?task-queue=latchwork");
/// let locks = Locks::new(provider.await?);
/// let guard = locks.lock("repo:42").acquire().await?;
/// println!("write with fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TemporalLockProvider {
    links: Arc<Links>,
}

impl TemporalLockProvider {
    /// Connects to a server, as `temporal://host:7233/namespace?task-queue=…` says.
    ///
    /// # Errors
    /// [`InvalidArgument`](latchwork_lock::ErrorKind::InvalidArgument) for an address that is none,
    /// [`Unavailable`](latchwork_lock::ErrorKind::Unavailable) when the server does not answer, and
    /// [`Backend`](latchwork_lock::ErrorKind::Backend) when it has no such namespace.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::open(TemporalConfig::parse(address)?).await
    }

    /// The same, as settings say.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn open(config: TemporalConfig) -> Result<Self> {
        BACKGROUND
            .run("connecting", async move {
                let client = config.connect().await?;
                let client = MutexClient::new(client, config.task_queue)
                    .with_idle_timeout(config.idle_timeout)
                    .with_operations_per_run(config.operations_per_run);
                client.check_namespace(PATIENCE).await.map_err(|e| failed(e, "connecting"))?;
                Self::over(client)
            })
            .await
    }

    /// On a client of one's own. Its calls run in a thread of this crate, so the client's own tasks, which
    /// live in the runtime where it was made, must go on there.
    ///
    /// # Errors
    /// [`Unavailable`](latchwork_lock::ErrorKind::Unavailable) when the thread cannot be started.
    pub fn from_client(client: Client, task_queue: &str) -> Result<Self> {
        Self::over(MutexClient::new(client, task_queue))
    }

    fn over(client: MutexClient) -> Result<Self> {
        let handle = BACKGROUND.handle()?.clone();
        Ok(TemporalLockProvider { links: Links::new(client, handle) })
    }

    /// Ends the leases of a resource by force, as an operator: the one with this fence, or all. It is
    /// [`break_lock`](latchwork_lock::Locks::break_lock) under the name that operators look for. The resource
    /// is named as workflows and `Locks` name it, without their prefix.
    ///
    /// # Errors
    /// As for [`break_lock`](latchwork_lock::Locks::break_lock).
    pub async fn force_release(&self, resource: &str, fence: Option<Fence>) -> Result<Vec<Holder>> {
        Key::new(resource)?;
        let key = Key::of_parts(&[latchwork_lock::DEFAULT_PREFIX, resource])?;
        self.break_lock(&key, fence).await
    }

    /// Waits until the mutex of a resource answers, and starts it where there is none; says what is wrong
    /// where it does not. The resource is named without prefix.
    ///
    /// # Errors
    /// [`NoWorker`](crate::ErrorKind::NoWorker), [`ForeignWorkflow`](crate::ErrorKind::ForeignWorkflow),
    /// [`Unreachable`](crate::ErrorKind::Unreachable) and the like.
    pub async fn ready(&self, resource: &str, limit: Duration) -> crate::Result<()> {
        let client = self.links.client().clone();
        let resource = format!("{}{resource}", latchwork_lock::DEFAULT_PREFIX);
        let job = async move { client.ready(&resource, limit).await };
        self.links.handle().spawn(job).await.unwrap_or_else(|_| {
            Err(crate::Error::unreachable("calling the mutex", "the runtime is shutting down"))
        })
    }

    /// Does an operation on a lease that exists; none where there is no mutex.
    async fn perform(
        &self,
        key: &Key,
        kind: OperationKind,
        limit: Duration,
        during: &'static str,
    ) -> Result<Option<Outcome>> {
        let deadline = SystemClock.now().after(limit);
        let done = self.links.perform(key, kind, false, deadline).await;
        done.map_err(|error| error.into_lock_error(during))
    }

    /// Whether an operation found its lease.
    async fn found(
        &self,
        key: &Key,
        kind: OperationKind,
        limit: Duration,
        during: &'static str,
    ) -> Result<bool> {
        match self.perform(key, kind, limit, during).await? {
            None => Ok(false),
            Some(Outcome::Done { found }) => Ok(found),
            Some(_) => Err(unexpected(during)),
        }
    }

    /// Asks for a status, in the background runtime, and again while the mutex is busy.
    async fn status(&self, key: &Key) -> Result<Option<MutexStatus>> {
        let client = self.links.client().clone();
        let resource = key.as_str().to_owned();
        BACKGROUND
            .run("inspecting", async move {
                let asked = with_retry(PATIENCE, |limit| client.status(&resource, limit)).await;
                match asked {
                    Ok(status) => Ok(Some(status)),
                    Err(CallError::NotFound) => Ok(None),
                    Err(error) => {
                        let error =
                            client.explained(&resource, plain(error), Duration::from_secs(2)).await;
                        Err(error.into_lock_error("inspecting"))
                    }
                }
            })
            .await
    }
}

/// Calls again while the mutex is busy or does not answer, for this long.
pub(super) async fn with_retry<T, F: Future<Output = std::result::Result<T, CallError>>>(
    patience: Duration,
    mut call: impl FnMut(Duration) -> F,
) -> std::result::Result<T, CallError> {
    let end = SystemClock.now().after(patience);
    let mut pauses = Pauses::default();
    loop {
        let left = end.since(SystemClock.now());
        let (error, pause) = match call(left.min(Duration::from_secs(4))).await {
            Err(error @ CallError::Busy(_)) => (error, pauses.next_busy()),
            Err(error @ CallError::NoAnswer(_)) => (error, pauses.next()),
            ended => return ended,
        };
        if left <= pause + Duration::from_secs(1) {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
    }
}

/// A failed call as an error of this crate.
fn plain(error: CallError) -> crate::Error {
    use crate::Error;

    match error {
        CallError::Final(error) => error,
        CallError::NoAnswer(reason) | CallError::Busy(reason) => {
            Error::unreachable("asking the mutex", reason)
        }
        CallError::NotFound => Error::unreachable("asking the mutex", "it has ended"),
    }
}

/// The same as an error of the lock layer.
pub(super) fn failed(error: CallError, during: &'static str) -> Error {
    plain(error).into_lock_error(during)
}

fn unexpected(during: &'static str) -> Error {
    Error::backend(NAME, during, "its worker runs another version of Latchwork", None)
}

impl LockProvider for TemporalLockProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::{
            Bounded, Break, CrossProcess, Durability, Exclusion, Expiry, Fairness, HandOver,
            Inspect, List, Renew, Shared, TakeOver, Tokens, Wait,
        };

        Capabilities::of(&[
            Shared,
            Wait,
            Renew,
            HandOver,
            Inspect,
            List,
            Break,
            Exclusion,
            Expiry,
            TakeOver,
            Tokens,
            Fairness,
            CrossProcess,
            Durability,
            Bounded,
        ])
        .with_granularity(GRANULARITY)
        .with_claim_window(CLAIM_WINDOW)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        acquire::acquire(&self.links, request).await
    }

    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        let kind = OperationKind::Renew { lease: id(proof.token.expose()), ttl_us: micros(ttl) };
        self.found(proof.key, kind, PATIENCE.min(ttl.max(GRANULARITY)), "renewing").await
    }

    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        let kind = OperationKind::Release { lease: id(proof.token.expose()) };
        self.found(proof.key, kind, PATIENCE, "releasing").await
    }

    fn release_later(&self, proof: Proof<'_>) {
        self.links.release_later(proof.key, id(proof.token.expose()), false);
    }

    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        let kind = OperationKind::Check { lease: id(proof.token.expose()) };
        self.found(proof.key, kind, PATIENCE, "handing over").await
    }

    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        let kind = OperationKind::Rotate {
            lease: id(proof.token.expose()),
            fresh: id(fresh.expose()),
            ttl_us: micros(ttl),
        };
        match self.perform(proof.key, kind, PATIENCE, "resuming").await? {
            None => Ok(None),
            Some(Outcome::Rotated { granted }) => Ok(granted.map(|granted| {
                let mut grant = Grant::first(Fence::new(granted.fence));
                grant.previous_fence = granted.previous_fence.map(Fence::new);
                grant
            })),
            Some(_) => Err(unexpected("resuming")),
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        let found = self.status(key).await?.map(|status| report::inspection(&status));
        let free = || Inspection { key: key.as_str().to_owned(), ..Inspection::default() };
        Ok(found.unwrap_or_else(free))
    }

    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        let (links, prefix) = (self.links.clone(), prefix.to_owned());
        let found =
            BACKGROUND.run("listing", async move { listing::list(&links, &prefix).await }).await?;
        Ok(Page::cut(found, page))
    }

    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        let kind = OperationKind::Break { fence: fence.map(Fence::get) };
        match self.perform(key, kind, PATIENCE, "breaking").await? {
            None => Ok(Vec::new()),
            Some(Outcome::Broken { holders }) => {
                let now = u64::try_from(SystemClock.wall().timestamp_micros()).unwrap_or(0);
                Ok(holders.iter().map(|view| report::holder(view, now)).collect())
            }
            Some(_) => Err(unexpected("breaking")),
        }
    }

    async fn close(&self) {
        self.links.flush().await;
    }
}

impl fmt::Debug for TemporalLockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporalLockProvider")
            .field("task_queue", &self.links.client().task_queue())
            .finish_non_exhaustive()
    }
}
