//! The lanes to the server: many requests of this process in one message.
//!
//! A runtime with several threads has a lane of its own, which it drives itself: to wake another
//! thread and be woken by it costs more than all the rest. All others share one on the provider's
//! own thread.
//!
//! Whoever asks while hardly anything is under way sends its own message; what comes otherwise is put
//! together by the lane's [pump](super::pump).
//! The order is kept, so a release never overtakes the request that it follows: who gives up before its
//! request was sent takes that back. Between lanes there is no order: a release
//! goes by the lane of the question that it follows.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures::future::BoxFuture;
use redis::Value;
use tokio::runtime::Handle;

use super::claim::Claim;
use super::connection::Line;
use super::pump::{DURING, Way};
use super::record::Asker;
use super::release::{Handing, Release};
use super::scripts::Operation;
use super::tell::{self, Tell, Told};
use super::watch::Standing;
use super::{error, watcher};
use crate::coordination::runtimes::PerRuntime;
use crate::rules::Id;
use crate::{Key, Result};

/// One operation on one lock; the head of the script says what its parts are.
pub(super) struct Member {
    pub(super) key: Key,
    pub(super) operation: Operation,
    pub(super) id: Id,
    pub(super) ttl: u64,
    pub(super) option: String,
    pub(super) asker: Option<Asker>,
}

impl Member {
    /// Writes what the script calls an asker.
    pub(super) fn write_asker(&self, out: &mut Vec<u8>) {
        if let Some(asker) = &self.asker {
            asker.write(out, self.ttl);
        }
    }
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
    Handing(Box<Handing>),
    Standing(Box<Standing>),
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
    way: Arc<Way>,
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
            return Question::Alone(Box::pin(asked.ask(during, member)));
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
        if let Some(back) = lane.way.put(job) {
            self.put_apart(back);
        }
    }

    /// The same on the lane of [`here`](Self::here), in a message that waits for no company: whoever puts
    /// it sends it if it can, and the answer is seen to where it arrives.
    pub(super) fn send_on(&self, lane: &Arc<Lane>, job: Job) {
        if Arc::ptr_eq(lane, &self.own) {
            self.put_apart(job); // it is driven by another thread
        } else if let Some(back) = lane.way.put_and_send(job) {
            self.put_apart(back);
        }
    }

    /// The same, on the lane that outlives every runtime of a caller.
    pub(super) fn put_apart(&self, job: Job) {
        if let Some(back) = self.own.way.put(job)
            && let Some(waker) = back.reply.answer(Err(error::gone(DURING)))
        {
            waker.wake();
        }
    }

    /// The lane of the runtime that we are in, or the one that outlives them all.
    pub(super) fn here(&self) -> Arc<Lane> {
        let way = &self.own.way;
        let make =
            |here: &Handle| Lane::open(here, Arc::new(way.line.another()), way.client.clone());
        let here = self.others.current(make, |lane| lane.way.is_over());
        here.unwrap_or_else(|| self.own.clone())
    }
}

impl Lane {
    fn open(runtime: &Handle, line: Arc<Line>, client: Arc<str>) -> Lane {
        let way = Arc::new(Way::new(line, client));
        runtime.spawn(way.clone().pump());
        Lane { way }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.way.end();
    }
}

impl Reply {
    pub(super) fn is_wanted(&self) -> bool {
        match self {
            Reply::Tell(tell) => tell.is_wanted(),
            Reply::Standing(standing) => standing.is_wanted(),
            Reply::Release(_) | Reply::Handing(_) | Reply::Claim(_) => true,
        }
    }

    /// Answers; and who is to be woken then, together with others.
    pub(super) fn answer(self, answer: Result<Answer>) -> Option<Waker> {
        match self {
            Reply::Tell(tell) => return tell.answer(answer),
            Reply::Handing(handing) => return handing.answered(answer),
            Reply::Release(release) => release.tried(answer),
            Reply::Standing(standing) => standing.answered(answer),
            Reply::Claim(claim) => claim.answered(answer),
        }
        None
    }
}
