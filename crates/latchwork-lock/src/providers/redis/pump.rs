//! What gathers the requests of a lane into messages.
//!
//! Among few nobody waits for company. In a crowd a message goes out at once when none is under way; one
//! more when a good part of the crowd is there for it; and then the rest waits for an answer. So the
//! server has one to work at while the client sees to those who were answered, and what a message
//! costs by itself, which is more than a member of it does, is shared by many.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, Value};

use super::batch::{Answer, Job, Member, Reply};
use super::connection::Line;
use super::{error, scripts};
use crate::{Error, Result};

/// The most members of one message: others must not wait long for it inside the server.
pub(super) const LARGEST: usize = 100;
const _: () = assert!(LARGEST <= 100, "the script counts on two digits");

/// How many messages of a few may be under way.
const UNDER_WAY: usize = 6;

/// How many may be for one more that is in a hurry.
const HURRIED: usize = 3;

/// How many members may be under way for one more to be sent by whoever asks.
const FEW: usize = 4;

/// How many who ask at a time are a crowd.
const CROWD: usize = 8;

/// Which part of a crowd must be there for a second message: two of them take turns then, of nearly the
/// same size. With a half it would often be one too few, and the server idle until the first is answered.
const PART: (usize, usize) = (2, 5);

pub(super) const DURING: &str = "asking the server";

/// What those share who send on one lane.
pub(super) struct Way {
    pub(super) line: Arc<Line>,
    pub(super) client: Arc<str>,
    waiting: Mutex<Waiting>,
    /// The messages of the pump that are not answered. Locked before `waiting` by who wants both.
    under_way: Mutex<FuturesUnordered<BoxFuture<'static, ()>>>,
    /// Who is woken by their answers.
    pump: OnceLock<Waker>,
    /// How many members are under way.
    asked: AtomicUsize,
    /// How many jobs were put and are not answered. Whoever sends its own message would overtake
    /// those of them that the pump has in hand, and a release must not overtake its request.
    queued: AtomicUsize,
    /// How many of those there were at a time, lately.
    crowd: AtomicUsize,
}

/// What is to be sent.
#[derive(Default)]
struct Waiting {
    jobs: Vec<Job>,
    /// Who is to be woken with so many of them.
    pump: Option<(usize, Waker)>,
    /// They are not to wait for company.
    in_a_hurry: bool,
    /// Nothing more is taken.
    over: bool,
}

impl Way {
    pub(super) fn new(line: Arc<Line>, client: Arc<str>) -> Self {
        Way {
            line,
            client,
            waiting: Mutex::default(),
            under_way: Mutex::default(),
            pump: OnceLock::new(),
            asked: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            crowd: AtomicUsize::new(0),
        }
    }

    /// Gives the job back if nobody will send it.
    pub(super) fn put(&self, job: Job) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        if waiting.over {
            return Some(job);
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        waiting.jobs.push(job);
        waiting.ring();
        None
    }

    /// The same for one that is not to wait for company. It is sent from here if it can go at once: to
    /// wake the pump first is one task more between a turn and the next. To be called on the
    /// pump's own runtime.
    pub(super) fn put_and_send(self: &Arc<Self>, job: Job) -> Option<Job> {
        let Some(pump) = self.pump.get() else { return self.put(job) };
        // Whoever polls them now looks afterwards what there is to send.
        let under_way = self.under_way.try_lock().filter(|under_way| under_way.len() < HURRIED);
        {
            let mut waiting = self.waiting.lock();
            if waiting.over {
                return Some(job);
            }
            self.queued.fetch_add(1, Ordering::Relaxed);
            waiting.jobs.push(job);
            waiting.in_a_hurry = true;
            if under_way.is_none() {
                waiting.ring();
            }
        }
        let mut under_way = under_way?;
        self.send_all(&mut under_way);
        let messages = under_way.len();
        poll(&mut under_way, &mut Context::from_waker(pump));
        if under_way.len() < messages {
            // What waits for fewer to be under way may go.
            pump.wake_by_ref();
        }
        None
    }

    /// Leave to send a message by oneself, when next to nothing is under way.
    pub(super) fn alone(self: &Arc<Self>) -> Option<Asked> {
        let quiet = self.queued.load(Ordering::Relaxed) == 0
            && self.asked.load(Ordering::Relaxed) < FEW
            && !self.is_crowded();
        quiet.then(|| self.asked(1))
    }

    pub(super) fn is_over(&self) -> bool {
        self.waiting.lock().over
    }

    /// Nothing more is taken; what is there is still sent.
    pub(super) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.over = true;
        let pump = waiting.pump.take();
        drop(waiting);
        if let Some((_, pump)) = pump {
            pump.wake();
        }
    }

    /// Sends what is put, until nothing more is taken.
    pub(super) async fn pump(self: Arc<Self>) {
        let _rest = Rest(&self);
        loop {
            let go_on = poll_fn(|cx| {
                self.pump.get_or_init(|| cx.waker().clone());
                let mut under_way = self.under_way.lock();
                poll(&mut under_way, cx);
                self.poll_enough(under_way.len(), cx)
            });
            if !go_on.await {
                break;
            }
            // Those who were answered together ask again together: let them all come.
            if self.is_crowded() && self.under_way.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            self.send_all(&mut self.under_way.lock());
        }
        poll_fn(|cx| {
            let mut under_way = self.under_way.lock();
            poll(&mut under_way, cx);
            if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Makes a message of what waits. It is sent when it is polled.
    fn send_all(self: &Arc<Self>, under_way: &mut FuturesUnordered<BoxFuture<'static, ()>>) {
        let (members, replies) = self.take();
        if !members.is_empty() {
            under_way.push(Box::pin(send(self.clone(), members, replies)));
        }
    }

    /// How many must be there for one more message.
    fn enough(&self, messages: usize) -> usize {
        let most = if self.is_crowded() { 2 } else { UNDER_WAY };
        match messages {
            0 => 1,
            messages if messages >= most => usize::MAX,
            _ => (self.crowd.load(Ordering::Relaxed) * PART.0 / PART.1).clamp(1, LARGEST),
        }
    }

    /// Whether that many are there, or false when none will come.
    fn poll_enough(&self, messages: usize, cx: &mut Context<'_>) -> Poll<bool> {
        let enough = self.enough(messages);
        let mut waiting = self.waiting.lock();
        if waiting.jobs.len() >= enough || waiting.in_a_hurry && messages < HURRIED {
            return Poll::Ready(true);
        }
        if waiting.over && waiting.jobs.is_empty() {
            return Poll::Ready(false);
        }
        waiting.pump = Some((enough, cx.waker().clone()));
        Poll::Pending
    }

    /// What goes into the next message.
    fn take(&self) -> (Vec<Member>, Vec<Reply>) {
        let mut jobs = {
            let mut waiting = self.waiting.lock();
            let count = waiting.jobs.len().min(LARGEST);
            let rest = waiting.jobs.split_off(count);
            waiting.in_a_hurry &= !rest.is_empty();
            std::mem::replace(&mut waiting.jobs, rest)
        };
        self.count_the_crowd();
        let came = jobs.len();
        jobs.retain(|job| job.reply.is_wanted());
        self.queued.fetch_sub(came - jobs.len(), Ordering::Relaxed);
        jobs.sort_by_key(|job| job.member.operation.section());
        jobs.into_iter().map(|job| (job.member, job.reply)).unzip()
    }

    /// Those who wait behind a message that nobody answered: in the next ones they would wait as long
    /// again, some after the others. They were not asked for.
    fn turn_away(&self) -> Vec<Reply> {
        let jobs = {
            let mut waiting = self.waiting.lock();
            waiting.in_a_hurry = false;
            std::mem::take(&mut waiting.jobs)
        };
        self.queued.fetch_sub(jobs.len(), Ordering::Relaxed);
        jobs.into_iter().map(|job| job.reply).collect()
    }

    /// What is under way does not tell whether many ask at a time: between two messages there is
    /// nothing. So what was seen is forgotten little by little.
    fn count_the_crowd(&self) {
        let before = self.crowd.load(Ordering::Relaxed);
        let now = self.queued.load(Ordering::Relaxed);
        self.crowd.store(now.max(before - before.div_ceil(16)), Ordering::Relaxed);
    }

    fn is_crowded(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) >= CROWD
    }

    fn asked(self: &Arc<Self>, members: usize) -> Asked {
        self.asked.fetch_add(members, Ordering::Relaxed);
        Asked(self.clone(), members)
    }

    /// Sends one message, and gives an answer for each member that it has in the end: what is sent once
    /// more is `sift`ed before.
    async fn exchange(
        &self,
        members: &mut Vec<Member>,
        mut sift: impl FnMut(&mut Vec<Member>),
    ) -> Result<Vec<Result<Answer>>, Failure> {
        let (mut again, mut forgotten) = (false, false);
        let answers = loop {
            let hash = self.line.script();
            let script = (!forgotten).then_some(&*hash);
            let command = scripts::call(script, &self.client, members);
            match self.line.send(&command).await {
                Ok(answer) => break scripts::answers(answer, members).ok_or(Failure(None))?,
                // A restart forgot the script. Nothing was done. To load it first would let the next message,
                // right behind that, overtake this one.
                Err(failure) if is_unknown_script(&failure) && !forgotten => forgotten = true,
                // The server may be back already. All can be asked again: the token tells.
                Err(failure) if failure.is_connection_dropped() && !again => again = true,
                Err(failure) => return Err(Failure(Some(failure))),
            }
            sift(members);
            if members.is_empty() {
                return Ok(Vec::new());
            }
        };
        let mut told = Vec::with_capacity(answers.len());
        for value in answers {
            told.push(match said_wrong(&value) {
                None => Ok(Answer { value, again }),
                Some(said) => {
                    if said.contains("READONLY") {
                        self.line.forget();
                    }
                    Err(error::script(DURING, &said))
                }
            });
        }
        Ok(told)
    }
}

impl Waiting {
    /// Wakes the pump if what it waits for is there.
    fn ring(&mut self) {
        let count = self.jobs.len();
        let hurry = self.in_a_hurry;
        if let Some((_, pump)) = self.pump.take_if(|(enough, _)| count >= *enough || hurry) {
            pump.wake();
        }
    }
}

/// Gets on with all that is under way.
fn poll(under_way: &mut FuturesUnordered<BoxFuture<'static, ()>>, cx: &mut Context<'_>) {
    while let Poll::Ready(Some(())) = under_way.poll_next_unpin(cx) {}
}

/// What is left when the pump has ended, or its runtime has: it is dropped, and so everybody is told.
struct Rest<'a>(&'a Way);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.over = true;
        let jobs = std::mem::take(&mut waiting.jobs);
        drop(waiting);
        drop(jobs);
        let under_way = std::mem::take(&mut *self.0.under_way.lock());
        drop(under_way);
    }
}

/// Members that are under way, as long as this lives.
pub(super) struct Asked(Arc<Way>, usize);

impl Asked {
    /// Sends a message for one.
    pub(super) async fn ask(self, during: &'static str, member: Member) -> Result<Answer> {
        let mut answers = self.0.exchange(&mut vec![member], |_| ()).await;
        let answer = answers.as_mut().map_err(|failure| failure.told())?.pop();
        answer.unwrap_or_else(|| Err(error::unreadable(during)))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Sends one message and gives everybody an answer.
async fn send(way: Arc<Way>, mut members: Vec<Member>, mut replies: Vec<Reply>) {
    let count = members.len();
    let _asked = way.asked(count);
    // Whoever has gone meanwhile has let a release follow, which its request might come after.
    let sift = |members: &mut Vec<Member>| {
        let all = std::mem::take(members).into_iter().zip(std::mem::take(&mut replies));
        (*members, replies) = all.filter(|(_, reply)| reply.is_wanted()).unzip();
    };
    let answers = way.exchange(&mut members, sift).await;
    way.queued.fetch_sub(count, Ordering::Relaxed);
    let wakers: Vec<Waker> = match answers {
        Ok(answers) => {
            let told = replies.into_iter().zip(answers);
            told.filter_map(|(reply, answer)| reply.answer(answer)).collect()
        }
        Err(failure) => {
            if failure.is_silence() {
                replies.append(&mut way.turn_away());
            }
            let failed = |reply: Reply| reply.answer(Err(failure.told()));
            replies.into_iter().filter_map(failed).collect()
        }
    };
    wakers.into_iter().for_each(Waker::wake);
}

/// What concerns all members of a message: the driver's error, or an answer that is none.
struct Failure(Option<RedisError>);

impl Failure {
    /// Whether nobody answers, and not even says no.
    fn is_silence(&self) -> bool {
        self.0.as_ref().is_some_and(RedisError::is_timeout)
    }

    fn told(&self) -> Error {
        match &self.0 {
            Some(failure) => error::driver(DURING, failure.clone()),
            None => error::unreadable(DURING),
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

#[cfg(test)]
mod tests {
    use redis::Client;

    use super::*;
    use crate::providers::redis::scripts::Operation;
    use crate::providers::redis::store::member;
    use crate::providers::redis::tell;

    fn way() -> Arc<Way> {
        let client = Client::open("redis://localhost").expect("an address");
        Arc::new(Way::new(Arc::new(Line::new(client, None)), "somebody".into()))
    }

    fn job() -> (Job, tell::Told) {
        let key = crate::Key::try_from("job".to_owned()).expect("a key");
        let (tell, told) = tell::channel();
        let member = member(Operation::IsHeld, &key, 1);
        (Job { member, reply: Reply::Tell(tell) }, told)
    }

    #[test]
    fn among_few_nobody_waits_for_company() {
        let way = way();
        for messages in 0..UNDER_WAY {
            assert_eq!(way.enough(messages), 1, "{messages} under way");
        }
        assert_eq!(way.enough(UNDER_WAY), usize::MAX);
        assert!(way.alone().is_some());
    }

    #[test]
    fn in_a_crowd_a_second_message_waits_for_a_part_of_it() {
        let way = way();
        let told: Vec<_> = (0..64)
            .map(|_| {
                let (job, told) = job();
                assert!(way.put(job).is_none());
                told
            })
            .collect();
        assert!(way.alone().is_none(), "it would overtake what was put");
        assert_eq!(way.take().0.len(), told.len());
        assert_eq!(way.enough(0), 1, "nobody waits for nothing");
        assert_eq!(way.enough(1), 64 * PART.0 / PART.1);
        assert_eq!(way.enough(2), usize::MAX);
    }

    #[test]
    fn a_crowd_is_forgotten() {
        let way = way();
        way.crowd.store(1_000, Ordering::Relaxed);
        for _ in 0..200 {
            let (job, told) = job();
            way.put(job);
            drop(told);
            assert!(way.take().0.is_empty(), "nobody wants to know");
        }
        assert_eq!(way.crowd.load(Ordering::Relaxed), 1);
        assert!(!way.is_crowded());
    }

    #[test]
    fn a_message_has_no_more_than_the_script_can_count() {
        let way = way();
        let _told: Vec<_> = (0..LARGEST + 5)
            .map(|_| {
                let (job, told) = job();
                way.put(job);
                told
            })
            .collect();
        assert_eq!(way.take().0.len(), LARGEST);
        assert_eq!(way.take().0.len(), 5);
    }

    #[tokio::test]
    async fn who_need_not_wait_sends_by_itself_and_is_told_by_the_pump() {
        let client = Client::open("redis://127.0.0.1:1").expect("an address");
        let way = Arc::new(Way::new(Arc::new(Line::new(client, None)), "somebody".into()));
        let (first, _told) = job();
        assert!(way.put_and_send(first).is_none());
        assert_eq!(way.waiting.lock().jobs.len(), 1, "nobody is there yet to see to the answer");
        assert_eq!(way.take().0.len(), 1);
        tokio::spawn(way.clone().pump());
        tokio::task::yield_now().await;
        let (second, told) = job();
        assert!(way.put_and_send(second).is_none());
        assert!(way.waiting.lock().jobs.is_empty());
        assert_eq!(way.under_way.lock().len(), 1);
        assert!(told.await.expect("an answer").is_err(), "no server is there");
        way.end();
        assert!(way.put_and_send(job().0).is_some(), "nobody would see to the answer");
    }

    #[tokio::test]
    async fn whoever_is_left_over_is_told() {
        let way = way();
        let (first, told) = job();
        assert!(way.put(first).is_none());
        drop(Rest(&way));
        assert!(way.put(job().0).is_some(), "nobody would send it");
        assert!(told.await.is_none(), "no answer will come");
    }
}
