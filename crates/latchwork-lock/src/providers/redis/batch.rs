//! The lanes to the server: many requests of this process in one message.
//!
//! A runtime with several threads has a lane of its own, which it drives itself: to wake another
//! thread and be woken by it costs more than all the rest. All others share one on the provider's
//! own thread.
//!
//! Nobody waits for company: while hardly anything is under way, whoever asks sends its own message.
//! What comes while much is under way goes out together, as soon as one message is answered.
//! The order is kept, so a release never overtakes the request that it follows: who gives up before its
//! request was sent takes that back. Between lanes there is no order: a release
//! goes by the lane of the question that it follows.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::record::Asker;
use super::release::Release;
use super::scripts::{self, Operation};
use super::tell::{self, Tell, Told};
use super::watch::Claim;
use super::{error, watcher};
use crate::rules::Id;
use crate::runtimes::PerRuntime;
use crate::{Error, Key, Result};

/// The most members of one message: others must not wait long for it inside the server.
pub(super) const LARGEST: usize = 100;
const _: () = assert!(LARGEST <= 100, "the script counts on two digits");

/// How many messages may be under way before what comes is held together.
const UNDER_WAY: usize = 6;

/// With how many members under way two messages are enough: one for the server to work at, and one for
/// the client. What a message costs by itself is shared by more then.
const MANY: usize = 64;

/// How many members may be under way for one more to be sent by whoever asks.
const FEW: usize = 2;

/// From how many members of a message on those who come are let gather before the next one is sent,
/// and those who are answered are woken together.
const CROWD: usize = 8;

/// How long a server may take to answer, and to be reached.
const ANSWER: Duration = Duration::from_secs(3);
const REACH: Duration = Duration::from_secs(2);

const DURING: &str = "asking the server";

/// One operation on one lock; the head of the script says what its parts are.
pub(super) struct Member {
    pub(super) key: Key,
    pub(super) operation: Operation,
    pub(super) id: Id,
    pub(super) ttl: u64,
    pub(super) option: String,
    pub(super) asker: Option<Asker>,
}

/// What the server said to one member.
pub(super) struct Answer {
    pub(super) value: Value,
    /// Whether the same was asked before, and the answer got lost.
    pub(super) again: bool,
}

/// Who wants to know.
pub(super) enum Reply {
    Tell(Tell),
    Release(Box<Release>),
    Claim(Box<Claim>),
}

pub(super) struct Job {
    pub(super) member: Member,
    pub(super) reply: Reply,
}

/// An answer that is yet to come. Small, since whoever asks carries it.
pub(super) enum Question {
    /// In a message of its own, sent by whoever asks.
    Alone(BoxFuture<'static, Result<Answer>>),
    /// In one that is shared; and what it is asked for.
    Put(&'static str, Told),
}

impl Future for Question {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Question::Alone(answer) => answer.as_mut().poll(cx),
            Question::Put(during, told) => {
                let told = ready!(Pin::new(told).poll(cx));
                Poll::Ready(told.unwrap_or_else(|| Err(error::gone(during))))
            }
        }
    }
}

/// Where to put requests. With it, its lanes end.
pub(super) struct Lanes {
    own: Arc<Lane>,
    /// Those of the caller's runtimes.
    others: PerRuntime<Lane>,
}

/// One connection, and what is to be sent on it in this order.
pub(super) struct Lane {
    jobs: UnboundedSender<Job>,
    way: Arc<Way>,
}

/// What those share who send on one lane.
struct Way {
    line: Arc<Line>,
    client: Arc<str>,
    /// How many members are under way.
    asked: AtomicUsize,
    /// How many jobs were put and are not answered. Whoever sends its own message would overtake
    /// those of them that the pump has in hand, and a release must not overtake its request.
    queued: AtomicUsize,
    /// How many the last message was sent for.
    last: AtomicUsize,
}

impl Lanes {
    pub(super) fn open(line: Arc<Line>, client: Arc<str>) -> Result<Lanes> {
        Ok(Lanes {
            own: Arc::new(Lane::open(watcher::runtime()?, line, client)),
            others: PerRuntime::default(),
        })
    }

    /// Asks; dropping the answer before it was sent takes the question back.
    pub(super) fn ask(&self, during: &'static str, member: Member) -> Question {
        self.ask_on(&self.here(), during, member)
    }

    /// The same, on the lane of [`here`](Self::here).
    pub(super) fn ask_on(
        &self,
        lane: &Arc<Lane>,
        during: &'static str,
        member: Member,
    ) -> Question {
        if !Arc::ptr_eq(lane, &self.own)
            && let Some(asked) = lane.way.alone()
        {
            return Question::Alone(Box::pin(async move {
                let mut answers = asked.0.exchange(std::slice::from_ref(&member)).await;
                let answer = answers.as_mut().map_err(|failure| failure.told())?.pop();
                answer.unwrap_or_else(|| Err(error::unreadable(during)))
            }));
        }
        let (tell, told) = tell::channel();
        self.put_on(lane, Job { member, reply: Reply::Tell(tell) });
        Question::Put(during, told)
    }

    /// Asks without waiting for the answer.
    pub(super) fn put(&self, job: Job) {
        self.put_on(&self.here(), job);
    }

    /// The same, behind all that one of the lanes has in hand.
    pub(super) fn put_on(&self, lane: &Lane, job: Job) {
        // Its runtime may be about to end.
        if let Some(back) = lane.put(job) {
            self.put_apart(back);
        }
    }

    /// The same, on the lane that outlives every runtime of a caller.
    pub(super) fn put_apart(&self, job: Job) {
        if let Some(back) = self.own.put(job) {
            back.reply.answer(Err(error::gone(DURING)), false);
        }
    }

    /// The lane of the runtime that we are in, or the one that outlives them all.
    pub(super) fn here(&self) -> Arc<Lane> {
        let way = &self.own.way;
        let make =
            |here: &Handle| Lane::open(here, Arc::new(way.line.another()), way.client.clone());
        let here = self.others.here(make, |lane| lane.jobs.is_closed());
        here.unwrap_or_else(|| self.own.clone())
    }
}

impl Lane {
    fn open(runtime: &Handle, line: Arc<Line>, client: Arc<str>) -> Lane {
        let (jobs, incoming) = unbounded_channel();
        let way = Way {
            line,
            client,
            asked: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
        };
        let way = Arc::new(way);
        runtime.spawn(pump(way.clone(), incoming));
        Lane { jobs, way }
    }

    /// Gives the job back if nobody will send it.
    fn put(&self, job: Job) -> Option<Job> {
        self.way.queued.fetch_add(1, Ordering::Relaxed);
        self.jobs.send(job).err().map(|back| back.0)
    }
}

/// Members that are under way, as long as this lives.
struct Asked(Arc<Way>, usize);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Way {
    /// Leave to send a message by oneself, when next to nothing is under way.
    fn alone(self: &Arc<Self>) -> Option<Asked> {
        let quiet = self.queued.load(Ordering::Relaxed) == 0
            && self.asked.load(Ordering::Relaxed) < FEW
            && !self.is_crowded();
        quiet.then(|| self.asked(1))
    }

    /// Whether one more message may go, with so many of them under way.
    fn has_room(&self, messages: usize) -> bool {
        let most = if self.asked.load(Ordering::Relaxed) < MANY { UNDER_WAY } else { 2 };
        messages < most
    }

    /// Whether many ask at a time. What is under way does not tell: between two messages there is
    /// nothing.
    fn is_crowded(&self) -> bool {
        self.last.load(Ordering::Relaxed) >= CROWD
    }

    fn asked(self: &Arc<Self>, members: usize) -> Asked {
        self.asked.fetch_add(members, Ordering::Relaxed);
        Asked(self.clone(), members)
    }

    /// Sends one message, and gives an answer for each member.
    async fn exchange(&self, members: &[Member]) -> Result<Vec<Result<Answer>>, Failure> {
        let mut again = false;
        let answers = loop {
            let hash = self.line.script();
            let command = scripts::call(&hash, &self.client, members);
            match self.line.send(&command).await {
                Ok(answer) => break scripts::answers(answer, members).ok_or(Failure(None))?,
                // A restart forgot the script. Nothing was done.
                Err(failure) if is_unknown_script(&failure) => {
                    self.line.load().await.map_err(|failure| Failure(Some(failure)))?;
                }
                // The server may be back already. All can be asked again: the token tells.
                Err(failure) if failure.is_connection_dropped() && !again => again = true,
                Err(failure) => return Err(Failure(Some(failure))),
            }
        };
        let mut told = Vec::with_capacity(answers.len());
        for value in answers {
            told.push(match said_wrong(&value) {
                None => Ok(Answer { value, again }),
                Some(said) => {
                    if said.contains("READONLY") {
                        self.line.forget().await;
                    }
                    Err(error::script(DURING, &said))
                }
            });
        }
        Ok(told)
    }
}

impl Reply {
    fn is_wanted(&self) -> bool {
        !matches!(self, Reply::Tell(tell) if !tell.is_wanted())
    }

    /// Answers; `crowd` when many are answered at once.
    fn answer(self, answer: Result<Answer>, crowd: bool) {
        match self {
            Reply::Tell(tell) => {
                if let Some(waker) = tell.answer(answer) {
                    tell::wake(&waker, crowd);
                }
            }
            Reply::Release(release) => release.tried(answer),
            Reply::Claim(claim) => claim.answered(answer),
        }
    }
}

/// What concerns all members of a message: the driver's error, or an answer that is none.
struct Failure(Option<RedisError>);

impl Failure {
    fn told(&self) -> Error {
        match &self.0 {
            Some(failure) => error::driver(DURING, failure.clone()),
            None => error::unreadable(DURING),
        }
    }
}

async fn pump(way: Arc<Way>, mut incoming: UnboundedReceiver<Job>) {
    let mut under_way = FuturesUnordered::new();
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
            got = incoming.recv_many(&mut jobs, LARGEST), if way.has_room(under_way.len()) => {
                if got == 0 {
                    break;
                }
                // Those who were answered together ask again together: let them all come.
                if got < LARGEST && way.is_crowded() {
                    tokio::task::yield_now().await;
                }
            }
        }
        while jobs.len() < LARGEST
            && let Ok(job) = incoming.try_recv()
        {
            jobs.push(job);
        }
        if jobs.is_empty() {
            continue;
        }
        let came = jobs.len();
        way.last.store(came, Ordering::Relaxed);
        jobs.retain(|job| job.reply.is_wanted());
        way.queued.fetch_sub(came - jobs.len(), Ordering::Relaxed);
        jobs.sort_by_key(|job| job.member.operation.section());
        let (members, replies): (Vec<_>, Vec<_>) =
            jobs.drain(..).map(|job| (job.member, job.reply)).unzip();
        if !members.is_empty() {
            under_way.push(send(&way, members, replies));
        }
    }
    while under_way.next().await.is_some() {}
}

/// Sends one message and gives everybody an answer.
async fn send(way: &Arc<Way>, members: Vec<Member>, replies: Vec<Reply>) {
    let _asked = way.asked(members.len());
    let crowd = replies.len() >= CROWD;
    let answers = way.exchange(&members).await;
    way.queued.fetch_sub(members.len(), Ordering::Relaxed);
    match answers {
        Ok(answers) => {
            replies.into_iter().zip(answers).for_each(|(reply, told)| reply.answer(told, crowd));
        }
        Err(failure) => {
            replies.into_iter().for_each(|reply| reply.answer(Err(failure.told()), crowd));
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
    script: Arc<Mutex<Arc<str>>>,
}

impl Line {
    pub(super) fn new(client: Client, given: Option<Box<dyn Connection>>) -> Self {
        let script = Arc::new(Mutex::new("".into()));
        Line { client, given, open: Default::default(), script }
    }

    /// One more to the same server, with the caller's connection or a new one.
    fn another(&self) -> Self {
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
        // Apart: whoever finds it open need not carry what it takes to open it.
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        let new = Box::pin(opening).await?;
        *open = (open.0 + 1, Some(new.clone()));
        Ok((Box::new(new), open.0))
    }
}
