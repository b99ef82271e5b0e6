//! What the handlers share.

use std::sync::Arc;
use std::time::Duration;

use latchwork_flow::Contexts;
use latchwork_lock::Locks;
use latchwork_work::WorkManager;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::tokens::Tokens;

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The largest body of a request, in bytes. A payload and a result have at most 1 MiB by themselves.
    pub max_body_bytes: usize,
    /// How many requests may wait at once: long polls and event streams together.
    pub max_waiting: usize,
    /// The longest wait of one request.
    pub max_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { max_body_bytes: 4 << 20, max_waiting: 4_096, max_wait: Duration::from_secs(60) }
    }
}

/// What the handlers share. Clones share it too.
#[derive(Clone)]
pub struct App {
    pub(crate) work: WorkManager,
    pub(crate) tokens: Option<Tokens>,
    locks: Option<Locks>,
    flows: Option<Contexts>,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) shutdown: watch::Receiver<bool>,
    waiting: Arc<Semaphore>,
}

impl App {
    /// An application on these orders, which ends its waits when the server ends.
    pub fn new(work: WorkManager, settings: Settings, shutdown: &Shutdown) -> Self {
        let waiting = Arc::new(Semaphore::new(settings.max_waiting));
        App {
            work,
            tokens: None,
            metrics: None,
            locks: None,
            flows: None,
            settings: Arc::new(settings),
            shutdown: shutdown.watch(),
            waiting,
        }
    }

    /// Lets callers in by these tokens, once there are some. Without tokens every caller may do
    /// everything, so the router answers to loopback names only.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Serves these locks too. Waiting for them needs a provider that
    /// [keeps places](latchwork_lock::Capabilities::keeps_places): SQLite's or PostgreSQL's.
    #[must_use]
    pub fn with_locks(mut self, locks: Locks) -> Self {
        self.locks = Some(locks);
        self
    }

    /// Serves these stored flows too. It runs none of them: that is for the program that has their
    /// actions.
    #[must_use]
    pub fn with_flows(mut self, flows: Contexts) -> Self {
        self.flows = Some(flows);
        self
    }

    pub(crate) fn locks(&self) -> Result<&Locks, ApiError> {
        let missing = || ApiError::new(501, "not_supported", "this server has no locks");
        self.locks.as_ref().ok_or_else(missing)
    }

    pub(crate) fn flows(&self) -> Result<&Contexts, ApiError> {
        let missing = || ApiError::new(501, "not_supported", "this server has no flows");
        self.flows.as_ref().ok_or_else(missing)
    }

    /// The time that one request may wait.
    pub(crate) fn wait_span(&self, wait_ms: u64) -> Result<Duration, ApiError> {
        let wait = Duration::from_millis(wait_ms);
        if wait <= self.settings.max_wait {
            return Ok(wait);
        }
        let most = self.settings.max_wait.as_millis();
        let detail = format!("a request waits {most} ms at most; ask again then");
        Err(ApiError::new(400, "invalid_argument", detail).field("/wait_ms"))
    }

    /// Shows what the program counts at `/metrics`.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// How many requests wait.
    pub(crate) fn waiting_count(&self) -> usize {
        self.settings.max_waiting.saturating_sub(self.waiting.available_permits())
    }

    /// A place among the requests that wait; refused when there are too many.
    pub(crate) fn waiting(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.waiting.clone().try_acquire_owned().map_err(|_| {
            ApiError::new(429, "too_many_waiting", "too many requests wait at once; try again")
                .retry_after(Duration::from_secs(1))
        })
    }

    /// Whether the server ends.
    pub(crate) fn is_ending(&self) -> bool {
        *self.shutdown.borrow()
    }
}

/// Ends a server: it takes no new connections, its long polls and streams end, and what is under way
/// is finished.
#[derive(Clone)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Not ended yet.
    pub fn new() -> Self {
        Shutdown(Arc::new(watch::Sender::new(false)))
    }

    /// Ends the server.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
