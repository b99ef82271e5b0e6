//! The connection to the cluster: to one member at a time, and to the next one when that fails.
//!
//! Not to all members at once: the driver would then choose one at random for each request, also
//! one that is stopped and never answers. A client stays with a member that answers.
//!
//! Each runtime has a connection of its own, since a connection is driven by the runtime that opened
//! it, and waking a thread of another runtime and being woken by it costs half as much as the round
//! trip. When a member fails, the connections of all runtimes leave it.

pub(super) mod batch;
mod batch_queue;
mod check;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use batch_queue::BatchQueue;
use etcd_client::{Client, KvClient, LeaseClient, WatchClient};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::config::Address;
use super::error::{RequestError, is_handshake};

/// How long an answer may take. An election lasts a second or two.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to one member.
pub(super) struct Member {
    pub(super) kv: KvClient,
    pub(super) lease: LeaseClient,
    pub(super) watch: WatchClient,
    client: Client,
    /// Its index in the address.
    index: usize,
    /// Whether it has answered by this connection.
    has_answered: AtomicBool,
}

impl Member {
    fn new(client: Client, index: usize) -> Self {
        Member {
            kv: client.kv_client(),
            lease: client.lease_client(),
            watch: client.watch_client(),
            client,
            index,
            has_answered: AtomicBool::new(false),
        }
    }
}

/// A cluster and this process's connections to it.
pub(super) struct Cluster {
    source: Source,
    connections: Mutex<Vec<Arc<RuntimeConnection>>>,
    /// The index of the member that a runtime without a connection tries first.
    next: AtomicUsize,
}

enum Source {
    Address(Box<Address>),
    /// The caller's own client, which chooses members by itself.
    Client(Arc<Member>),
}

/// The connection of one runtime.
struct RuntimeConnection {
    runtime: Handle,
    batches: BatchQueue,
    /// A task that ends with the runtime.
    alive: AbortHandle,
    current: Mutex<Option<Arc<Member>>>,
    /// Held while connecting, so that only one task does.
    connecting: tokio::sync::Mutex<()>,
    /// Whether there was a request since the [timer](RuntimeConnection::keep_timer) last fired.
    active: AtomicBool,
    timer_runs: AtomicBool,
}

impl RuntimeConnection {
    fn open(runtime: &Handle) -> Arc<Self> {
        Arc::new(RuntimeConnection {
            runtime: runtime.clone(),
            batches: BatchQueue::default(),
            alive: runtime.spawn(std::future::pending::<()>()).abort_handle(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            active: AtomicBool::new(false),
            timer_runs: AtomicBool::new(false),
        })
    }

    /// Keeps a timer that fires sooner than the timeout of a new request. Without one, each request
    /// would wake the runtime's driver to make it sleep for a shorter time.
    fn keep_timer(self: &Arc<Self>) {
        self.active.store(true, Ordering::Relaxed);
        if self.timer_runs.load(Ordering::Relaxed) || self.timer_runs.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let connection = self.clone();
        self.runtime.spawn(async move {
            while connection.active.swap(false, Ordering::Relaxed) {
                sleep(REQUEST_TIMEOUT / 2).await;
            }
            connection.timer_runs.store(false, Ordering::Relaxed);
        });
    }

    fn uses(&self, member: &Arc<Member>) -> bool {
        self.current.lock().as_ref().is_some_and(|current| Arc::ptr_eq(current, member))
    }
}

impl Drop for RuntimeConnection {
    fn drop(&mut self) {
        self.alive.abort();
    }
}

impl Cluster {
    pub(super) fn own(address: Address) -> Self {
        Self::new(Source::Address(Box::new(address)))
    }

    pub(super) fn given(client: Client) -> Self {
        Self::new(Source::Client(Arc::new(Member::new(client, 0))))
    }

    fn new(source: Source) -> Self {
        Cluster { source, connections: Mutex::default(), next: AtomicUsize::new(0) }
    }

    /// The connection of the current runtime.
    fn connection(&self) -> Arc<RuntimeConnection> {
        let current = Handle::current();
        let mut connections = self.connections.lock();
        let known = connections.iter().find(|known| known.runtime.id() == current.id());
        if let Some(known) = known {
            return known.clone();
        }
        // Those of runtimes that have ended.
        connections.retain(|connection| !connection.alive.is_finished());
        let connection = RuntimeConnection::open(&current);
        connections.push(connection.clone());
        connection
    }

    /// Sends a request once.
    pub(super) async fn request<T, F>(
        &self,
        during: &'static str,
        request: impl FnOnce(Arc<Member>) -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let member = self.member(during).await?;
        let error = match timeout(REQUEST_TIMEOUT, request(member.clone())).await {
            Ok(Ok(answer)) => {
                if !member.has_answered.load(Ordering::Relaxed) {
                    member.has_answered.store(true, Ordering::Relaxed);
                }
                return Ok(answer);
            }
            Ok(Err(error)) => RequestError::from_driver(during, error),
            Err(_) => RequestError::timed_out(during, REQUEST_TIMEOUT),
        };
        // The driver opens a connection anew with the certificates of the first one. Where these have
        // expired, or the server's authority has changed, the files may have newer ones.
        let error = match error {
            RequestError::Rejected(error) if is_handshake(&error) => {
                self.mark_failed(&member);
                match member.has_answered.load(Ordering::Relaxed) {
                    true => RequestError::lost_handshake(during, &error),
                    false => RequestError::Rejected(error),
                }
            }
            error => error,
        };
        if matches!(error, RequestError::Unknown(_)) {
            self.mark_failed(&member);
        }
        Err(error)
    }

    /// Sends a request, and once more if there was no answer: to another member, or to the same one
    /// on a new connection. For requests that may be executed twice; the flag says that this may
    /// have happened.
    pub(super) async fn request_with_retry<T, F>(
        &self,
        during: &'static str,
        request: impl Fn(Arc<Member>) -> F,
    ) -> Result<(T, bool), RequestError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        match self.request(during, &request).await {
            Ok(answer) => Ok((answer, false)),
            Err(RequestError::Unknown(error)) => {
                tracing::debug!(%error, "no answer: trying the next member");
                self.request(during, &request).await.map(|answer| (answer, true))
            }
            Err(error) => Err(error),
        }
    }

    /// The member that requests go to; connects to one if necessary.
    pub(super) async fn member(&self, during: &'static str) -> Result<Arc<Member>, RequestError> {
        let address = match &self.source {
            Source::Address(address) => address,
            Source::Client(member) => return Ok(member.clone()),
        };
        let connection = self.connection();
        connection.keep_timer();
        if let Some(member) = connection.current.lock().clone() {
            return Ok(member);
        }
        let _one_at_a_time = connection.connecting.lock().await;
        if let Some(member) = connection.current.lock().clone() {
            return Ok(member);
        }
        let first = self.next.load(Ordering::Relaxed);
        let mut failure = None;
        for index in (first..).take(address.endpoints.len()) {
            let index = index % address.endpoints.len();
            match connect(address, index, during).await {
                Ok(member) => {
                    let member = Arc::new(member);
                    *connection.current.lock() = Some(member.clone());
                    self.next.store(index, Ordering::Relaxed);
                    return Ok(member);
                }
                // Report a permanent error rather than a temporary one.
                Err(RequestError::Unknown(_))
                    if matches!(failure, Some(RequestError::Rejected(_))) => {}
                Err(error) => failure = Some(error),
            }
        }
        self.next.store(first + 1, Ordering::Relaxed);
        Err(failure.unwrap_or_else(|| RequestError::timed_out(during, REQUEST_TIMEOUT)))
    }

    /// Whether any runtime still sends its requests to this member.
    pub(super) fn is_current(&self, member: &Arc<Member>) -> bool {
        match self.source {
            Source::Address(_) => {
                self.connections.lock().iter().any(|connection| connection.uses(member))
            }
            Source::Client(_) => true,
        }
    }

    /// A member did not answer: all runtimes go on with the next one.
    pub(super) fn mark_failed(&self, member: &Arc<Member>) {
        if let Source::Address(_) = self.source {
            let connections = self.connections.lock();
            // Once: several requests may fail with one connection.
            if connections.iter().any(|connection| connection.uses(member)) {
                for connection in &*connections {
                    connection.current.lock().take_if(|current| current.index == member.index);
                }
                self.next.store(member.index + 1, Ordering::Relaxed);
            }
        }
    }
}

async fn connect(
    address: &Address,
    index: usize,
    during: &'static str,
) -> Result<Member, RequestError> {
    let endpoint = &address.endpoints[index];
    // This opens no connection yet, unless there is a password to check.
    let options = address.options().map_err(RequestError::Rejected)?;
    let connecting = Client::connect([endpoint], Some(options));
    match timeout(REQUEST_TIMEOUT, connecting).await {
        Ok(Ok(client)) => Ok(Member::new(client, index)),
        Ok(Err(error)) => Err(RequestError::from_driver(during, error)),
        Err(_) => Err(RequestError::timed_out(during, REQUEST_TIMEOUT)),
    }
}
