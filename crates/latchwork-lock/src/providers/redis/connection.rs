//! The connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};

use super::error::NAME;
use super::{config, scripts};
use crate::coordination::background::Background;

/// The runtime that all Redis providers of this process share: for what must outlive the caller's
/// runtime, and for the requests of callers without a runtime of several threads.
pub(super) static BACKGROUND: Background = Background::new(NAME);

/// How long a reply may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that several tasks can use at a time.
pub(super) trait SharedConnection: ConnectionLike + Send + Sync {
    fn share(&self) -> Box<dyn SharedConnection>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> SharedConnection for C {
    fn share(&self) -> Box<dyn SharedConnection> {
        Box::new(self.clone())
    }
}

/// A connection to the server that is opened again when it is lost.
pub(super) struct Connection {
    client: Client,
    /// The address whose files make a client anew for each connection, since a certificate is replaced
    /// while the process runs; none where there are no files.
    address: Option<Arc<str>>,
    /// The caller's own connection, which reconnects by itself.
    given: Option<Box<dyn SharedConnection>>,
    /// Our own. The lock is fair, so that messages keep their order while it is being opened: a
    /// release must not overtake its request.
    open: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    /// How many were opened.
    opened: AtomicU64,
    /// The number of the last one that must not be used any more.
    discarded: AtomicU64,
    /// How often none could be opened.
    failures: AtomicU64,
    last_failure: Mutex<Option<RedisError>>,
    /// The script's hash, as the server returned it.
    script_hash: Arc<Mutex<Arc<str>>>,
}

impl Connection {
    pub(super) fn new(
        client: Client,
        address: Option<Arc<str>>,
        given: Option<Box<dyn SharedConnection>>,
    ) -> Self {
        Connection::with(client, address, given, Arc::new(Mutex::new("".into())))
    }

    /// The client for a new connection, with the certificates as their files have them now.
    pub(super) fn client(&self) -> Client {
        let Some(address) = &self.address else { return self.client.clone() };
        config::client(address).unwrap_or_else(|error| {
            tracing::warn!(%error, "the certificates were not read again; those of the start are used");
            self.client.clone()
        })
    }

    /// Another connection to the same server, or the caller's own again.
    pub(super) fn another(&self) -> Self {
        let given = self.given.as_ref().map(|given| given.share());
        let address = self.address.clone();
        Connection::with(self.client.clone(), address, given, self.script_hash.clone())
    }

    /// A connection of our own to the same server, if this one is the caller's.
    pub(super) fn own(&self) -> Option<Self> {
        self.given.as_ref()?;
        let address = self.address.clone();
        Some(Connection::with(self.client.clone(), address, None, self.script_hash.clone()))
    }

    fn with(
        client: Client,
        address: Option<Arc<str>>,
        given: Option<Box<dyn SharedConnection>>,
        script_hash: Arc<Mutex<Arc<str>>>,
    ) -> Self {
        Connection {
            client,
            address,
            given,
            open: Default::default(),
            opened: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            script_hash,
        }
    }

    /// Sends a command and waits for its reply.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let (mut connection, number) = self.connection().await?;
        let reply = connection.req_packed_command(command).await.and_then(Value::extract_error);
        // A connection that was cut may look open for long, so a timeout discards it, too. A server
        // that was demoted stays a replica, but its address may lead to the new primary.
        let discard = |e: &RedisError| {
            e.is_unrecoverable_error() || e.is_io_error() || e.code() == Some("READONLY")
        };
        if reply.as_ref().is_err_and(discard) {
            self.discarded.fetch_max(number, Ordering::AcqRel);
        }
        reply
    }

    /// The same for a command that may be executed twice: it is sent once more where the connection
    /// broke, as one does that the server has ended because it idled.
    pub(super) async fn send_again(&self, command: &Cmd) -> RedisResult<Value> {
        match self.send(command).await {
            Err(error) if error.is_io_error() && !error.is_timeout() => self.send(command).await,
            reply => reply,
        }
    }

    /// Makes the next command open a new connection: the address may lead to another server by now.
    pub(super) fn discard(&self) {
        self.discarded.fetch_max(self.opened.load(Ordering::Acquire), Ordering::AcqRel);
    }

    /// Makes the server keep the script.
    pub(super) async fn load_script(&self) -> RedisResult<()> {
        let hash: String = redis::from_redis_value(self.send(&scripts::load()).await?)?;
        *self.script_hash.lock() = hash.into();
        Ok(())
    }

    pub(super) fn script_hash(&self) -> Arc<str> {
        self.script_hash.lock().clone()
    }

    /// An open connection, and its number.
    async fn connection(&self) -> RedisResult<(Box<dyn SharedConnection>, u64)> {
        if let Some(given) = &self.given {
            return Ok((given.share(), 0));
        }
        let failures = self.failures.load(Ordering::Acquire);
        let mut open = self.open.lock().await;
        let number = self.opened.load(Ordering::Acquire);
        if let Some(connection) = &*open
            && number > self.discarded.load(Ordering::Acquire)
        {
            return Ok((connection.share(), number));
        }
        *open = None;
        // Tasks that waited for an attempt that failed share its failure: with an attempt of its own,
        // each of them would wait one timeout longer than the one before.
        if self.failures.load(Ordering::Acquire) != failures
            && let Some(failure) = self.last_failure.lock().clone()
        {
            return Err(failure);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        // Boxed, so that the futures that find it open stay small.
        let client = self.client();
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        match Box::pin(opening).await {
            Ok(new) => {
                *open = Some(new.clone());
                let number = self.opened.fetch_add(1, Ordering::AcqRel) + 1;
                Ok((Box::new(new), number))
            }
            Err(failure) => {
                *self.last_failure.lock() = Some(failure.clone());
                self.failures.fetch_add(1, Ordering::AcqRel);
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// On the runtime's clock, which advances only while all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn tasks_that_wait_for_a_connection_share_its_failure() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let client = Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
        let connection = Connection::new(client, None, None);
        let ping = redis::cmd("PING");
        let replies = futures::future::join_all((0..8).map(|_| connection.send(&ping)));
        let replies = timeout(CONNECT_TIMEOUT * 2, replies).await.expect("not one after another");
        assert!(replies.iter().all(Result::is_err), "nobody answers: {replies:?}");
        let again = timeout(CONNECT_TIMEOUT / 2, connection.send(&ping)).await;
        assert!(again.is_err(), "a failure is not kept: {again:?}");
    }
}
