//! The connection to the server.

use std::sync::Arc;
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
    /// Ours, with a number by which it is forgotten once.
    open: tokio::sync::Mutex<(u64, Option<MultiplexedConnection>)>,
    /// The name that the server gave the script.
    script: Arc<Mutex<Arc<str>>>,
}

impl Line {
    pub(super) fn new(client: Client, given: Option<Box<dyn Connection>>) -> Self {
        let script = Arc::new(Mutex::new("".into()));
        Line { client, given, open: Default::default(), script }
    }

    /// One more to the same server, with the caller's connection or a new one.
    pub(super) fn another(&self) -> Self {
        let given = self.given.as_ref().map(|given| given.share());
        let (client, script) = (self.client.clone(), self.script.clone());
        Line { client, given, open: Default::default(), script }
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
            let mut open = self.open.lock().await;
            if open.0 == number {
                open.1 = None;
            }
        }
        answer
    }

    /// Whoever asks next opens another connection: behind the same address there may be another
    /// server by now.
    pub(super) async fn forget(&self) {
        self.open.lock().await.1 = None;
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

    async fn connection(&self) -> RedisResult<(Box<dyn Connection>, u64)> {
        if let Some(given) = &self.given {
            return Ok((given.share(), 0));
        }
        let mut open = self.open.lock().await;
        if let (number, Some(connection)) = &*open {
            return Ok((connection.share(), *number));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REACH))
            .set_response_timeout(Some(ANSWER));
        // Apart: whoever finds it open need not carry what it takes to open it.
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        let new = Box::pin(opening).await?;
        *open = (open.0 + 1, Some(new.clone()));
        Ok((Box::new(new), open.0))
    }
}
