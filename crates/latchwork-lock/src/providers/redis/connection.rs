//! The connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};

use super::scripts;

/// How long a server may take to answer, and to be reached.
const ANSWER: Duration = Duration::from_secs(3);
const REACH: Duration = Duration::from_secs(2);

/// A connection that can be used by several at a time.
pub(super) trait Connection: ConnectionLike + Send + Sync {
    fn share(&self) -> Box<dyn Connection>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn share(&self) -> Box<dyn Connection> {
        Box::new(self.clone())
    }
}

/// The connection to the server, opened again when it is lost.
pub(super) struct Line {
    pub(super) client: Client,
    /// The caller's own, which opens itself again.
    given: Option<Box<dyn Connection>>,
    /// Ours. Whoever sends has it in the order in which they came, also while it is opened: a release
    /// must not overtake its request.
    open: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    /// How many of ours were opened, and which of them nobody is to use any more.
    opened: AtomicU64,
    forgotten: AtomicU64,
    /// How often none could be opened, and why.
    failures: AtomicU64,
    failure: Mutex<Option<RedisError>>,
    /// The name that the server gave the script.
    script: Arc<Mutex<Arc<str>>>,
}

impl Line {
    pub(super) fn new(client: Client, given: Option<Box<dyn Connection>>) -> Self {
        Line::with(client, given, Arc::new(Mutex::new("".into())))
    }

    /// One more to the same server, with the caller's connection or a new one.
    pub(super) fn another(&self) -> Self {
        let given = self.given.as_ref().map(|given| given.share());
        Line::with(self.client.clone(), given, self.script.clone())
    }

    fn with(
        client: Client,
        given: Option<Box<dyn Connection>>,
        script: Arc<Mutex<Arc<str>>>,
    ) -> Self {
        Line {
            client,
            given,
            open: Default::default(),
            opened: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failure: Mutex::default(),
            script,
        }
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let (mut connection, number) = self.connection().await?;
        let answer = connection.req_packed_command(command).await.and_then(Value::extract_error);
        // What was cut may look alive for long: whoever is silent is not asked again. A demoted
        // server stays what it is; behind its address there may be another one.
        let forget = |e: &RedisError| {
            e.is_unrecoverable_error() || e.is_io_error() || e.code() == Some("READONLY")
        };
        if answer.as_ref().is_err_and(forget) {
            self.forgotten.fetch_max(number, Ordering::AcqRel);
        }
        answer
    }

    /// Whoever asks next opens another connection: behind the same address there may be another
    /// server by now.
    pub(super) fn forget(&self) {
        self.forgotten.fetch_max(self.opened.load(Ordering::Acquire), Ordering::AcqRel);
    }

    /// Lets the server keep the script.
    pub(super) async fn load(&self) -> RedisResult<()> {
        let hash: String = redis::from_redis_value(self.send(&scripts::load()).await?)?;
        *self.script.lock() = hash.into();
        Ok(())
    }

    pub(super) fn script(&self) -> Arc<str> {
        self.script.lock().clone()
    }

    /// An open connection, and its number.
    async fn connection(&self) -> RedisResult<(Box<dyn Connection>, u64)> {
        if let Some(given) = &self.given {
            return Ok((given.share(), 0));
        }
        let failures = self.failures.load(Ordering::Acquire);
        let mut open = self.open.lock().await;
        let number = self.opened.load(Ordering::Acquire);
        if let Some(connection) = &*open
            && number > self.forgotten.load(Ordering::Acquire)
        {
            return Ok((connection.share(), number));
        }
        *open = None;
        // Who has waited for an attempt that failed does not make another one: a silent server would
        // let each of a crowd wait longer than the one before.
        if self.failures.load(Ordering::Acquire) != failures
            && let Some(failure) = self.failure.lock().clone()
        {
            return Err(failure);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REACH))
            .set_response_timeout(Some(ANSWER));
        // Apart: whoever finds it open need not carry what it takes to open it.
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        match Box::pin(opening).await {
            Ok(new) => {
                *open = Some(new.clone());
                let number = self.opened.fetch_add(1, Ordering::AcqRel) + 1;
                Ok((Box::new(new), number))
            }
            Err(failure) => {
                *self.failure.lock() = Some(failure.clone());
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

    /// On the clock of the runtime, which stands still unless all wait.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_connection_is_told_with_the_first_that_there_is_none() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let client = Client::open(format!("redis://127.0.0.1:{port}")).expect("an address");
        let line = Line::new(client, None);
        let ping = redis::cmd("PING");
        let asked = futures::future::join_all((0..8).map(|_| line.send(&ping)));
        let asked = timeout(REACH * 2, asked).await.expect("not one after another");
        assert!(asked.iter().all(Result::is_err), "nobody answers: {asked:?}");
        let again = timeout(REACH / 2, line.send(&ping)).await;
        assert!(again.is_err(), "a failure is not kept: {again:?}");
    }
}
