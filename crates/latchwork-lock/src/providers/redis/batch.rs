//! The lane to the server: many requests of this process in one message.
//!
//! Nobody waits for company: as long as few messages are under way, a request is sent at once and
//! alone. What comes while many are under way goes out together, as soon as one of them is answered.
//! The order is kept, so a release never overtakes the request that it follows.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::release::Release;
use super::scripts::{self, Operation};
use super::watch::Claim;
use super::{error, watcher};
use crate::Result;

/// The most members of one message: others must not wait long for it inside the server.
pub(super) const LARGEST: usize = 64;

/// How many messages may be under way before what comes is held together.
const UNDER_WAY: usize = 4;

/// How long a server may take to answer, and to be reached.
const ANSWER: Duration = Duration::from_secs(3);
const REACH: Duration = Duration::from_secs(2);

const DURING: &str = "asking the server";

/// One operation on one lock; the head of the script says what its parts are.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) lock: String,
    pub(super) operation: Operation,
    pub(super) id: String,
    pub(super) ttl: u64,
    pub(super) option: String,
    pub(super) record: String,
}

/// What the server said to one member.
pub(super) struct Answer {
    pub(super) value: Value,
    /// Whether the same was asked before, and the answer got lost.
    pub(super) again: bool,
}

/// Who wants to know.
pub(super) enum Reply {
    Tell(oneshot::Sender<Result<Answer>>),
    Release(Release),
    Claim(Claim),
}

pub(super) struct Job {
    pub(super) member: Member,
    pub(super) reply: Reply,
}

/// Where to put requests. When all clones are gone, the lane ends.
#[derive(Clone)]
pub(super) struct Lane {
    jobs: UnboundedSender<Job>,
}

impl Lane {
    /// Opens a lane; its messages are sent by the provider's own thread.
    pub(super) fn open(line: Arc<Line>, client: Arc<str>) -> Result<Lane> {
        let (jobs, incoming) = unbounded_channel();
        watcher::runtime()?.spawn(pump(line, client, incoming));
        Ok(Lane { jobs })
    }

    /// Asks; dropping the future before it was sent takes the question back.
    pub(super) async fn ask(&self, during: &'static str, member: Member) -> Result<Answer> {
        let (tell, told) = oneshot::channel();
        self.put(Job { member, reply: Reply::Tell(tell) });
        told.await.map_err(|_| error::gone(during))?
    }

    /// Asks without waiting for the answer.
    pub(super) fn put(&self, job: Job) {
        if let Err(back) = self.jobs.send(job) {
            back.0.reply.answer(Err(error::gone(DURING)));
        }
    }
}

impl Reply {
    fn is_wanted(&self) -> bool {
        !matches!(self, Reply::Tell(tell) if tell.is_closed())
    }

    fn answer(self, answer: Result<Answer>) {
        match self {
            Reply::Tell(tell) => drop(tell.send(answer)),
            Reply::Release(release) => release.tried(answer),
            Reply::Claim(claim) => claim.answered(answer),
        }
    }
}

async fn pump(line: Arc<Line>, client: Arc<str>, mut incoming: UnboundedReceiver<Job>) {
    let mut under_way = FuturesUnordered::new();
    let mut jobs = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
            got = incoming.recv_many(&mut jobs, LARGEST), if under_way.len() < UNDER_WAY => {
                if got == 0 {
                    break;
                }
                jobs.retain(|job: &Job| job.reply.is_wanted());
                if !jobs.is_empty() {
                    under_way.push(message(&line, &client, std::mem::take(&mut jobs)));
                }
            }
        }
    }
    while under_way.next().await.is_some() {}
}

/// Sends one message and gives everybody an answer.
async fn message(line: &Line, client: &str, jobs: Vec<Job>) {
    let mut again = false;
    let answers = loop {
        let hash = line.script();
        let command = scripts::call(&hash, client, jobs.iter().map(|job| &job.member));
        match line.send(&command).await {
            Ok(Value::Array(answers)) if answers.len() == jobs.len() => break Ok(answers),
            Ok(_) => break Err(None),
            // A restart forgot the script. Nothing was done.
            Err(failure) if is_unknown_script(&failure) => {
                if let Err(failure) = line.load().await {
                    break Err(Some(failure));
                }
            }
            // The server may be back already. Every operation can be asked again: the token tells.
            Err(failure) if failure.is_connection_dropped() && !again => again = true,
            Err(failure) => break Err(Some(failure)),
        }
    };
    match answers {
        Ok(answers) => {
            for (job, value) in jobs.into_iter().zip(answers) {
                let answer = match said_wrong(&value) {
                    Some(said) => {
                        if said.contains("READONLY") {
                            line.forget().await;
                        }
                        Err(error::script(DURING, &said))
                    }
                    None => Ok(Answer { value, again }),
                };
                job.reply.answer(answer);
            }
        }
        Err(failure) => {
            for job in jobs {
                job.reply.answer(Err(match &failure {
                    Some(failure) => error::driver(DURING, failure.clone()),
                    None => error::unreadable(DURING),
                }));
            }
        }
    }
}

/// What the script says went wrong with one member.
fn said_wrong(value: &Value) -> Option<String> {
    match value.as_sequence()? {
        [Value::BulkString(mark), Value::BulkString(said)] if mark == b"!" => {
            Some(String::from_utf8_lossy(said).into())
        }
        _ => None,
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

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
    script: Mutex<Arc<str>>,
}

impl Line {
    pub(super) fn new(client: Client, given: Option<Box<dyn Connection>>) -> Self {
        Line { client, given, open: Default::default(), script: Mutex::new("".into()) }
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
    async fn forget(&self) {
        self.open.lock().await.1 = None;
    }

    /// Lets the server keep the script.
    pub(super) async fn load(&self) -> RedisResult<()> {
        let hash: String = redis::from_redis_value(self.send(&scripts::load()).await?)?;
        *self.script.lock() = hash.into();
        Ok(())
    }

    fn script(&self) -> Arc<str> {
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
        let new = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *open = (open.0 + 1, Some(new.clone()));
        Ok((Box::new(new), open.0))
    }
}
