//! The lanes to the server: requests of one process that share a message.
//!
//! A runtime with several threads has a lane of its own, which it drives itself, over connections
//! that it has opened: to wake another thread and be woken by it costs as much as the message. All
//! others share one on the provider's own thread. When such a runtime ends, that thread sees to
//! what it leaves behind.
//!
//! A request that comes alone goes alone, at once, and whoever asks carries it itself. Those that
//! come while others are under way go together as soon as one of these is back: so a message and a
//! commit carry more the busier it is, and nobody waits for company.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use latchwork_sql::postgres::{Line, in_time};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tokio::time::sleep;

use super::error;
use super::scripts::{Ask, Asked, Give};
use super::store::{BACKGROUND, Store, is_broken, is_held_up};
use crate::coordination::deferred_release::DeferredReleases;
use crate::runtimes::PerRuntime;
use crate::{Moment, Result};

/// How many messages of a kind are under way: while the server works on one, the next is made.
const UNDER_WAY: usize = 2;

/// The most connections of a runtime's lane: one for each message that is under way, and for one
/// that its asker carries.
const CONNECTIONS: u32 = 2 * UNDER_WAY as u32 + 1;

/// How long such a connection stays open unused.
const IDLE: Duration = Duration::from_secs(30);

/// The most that share a message: enough to save most of it, and little to ask for again.
const MOST: usize = 64;

/// How long a connection is kept for the next message. To give it back costs a round trip.
const LINGER: Duration = Duration::from_millis(20);

/// The smallest pool of which connections are kept for that. Whoever has less of them is not
/// burdened with a runtime's own either.
const ROOMY: u32 = 8;

/// How long after it was sent a message is surely done: longer than it waits for a key.
const DONE: Duration = Duration::from_millis(500);

/// What became of a request. The inner error is a connection that died, perhaps long before:
/// whether it was heard is not known. None: the rules must decide.
pub(super) type Outcome<T> = Result<Result<Option<T>>>;

/// The ways to the server, and what they lead to.
pub(super) struct Lanes {
    pub(super) store: Arc<Store>,
    pub(super) releases: DeferredReleases<Store>,
    /// On the provider's own thread.
    own: Lane,
    /// Those of the caller's runtimes.
    others: PerRuntime<Lane>,
}

/// Where to put requests. With it, its carriers end.
pub(super) struct Lane {
    pub(super) asks: UnboundedSender<Member<Ask>>,
    pub(super) gives: UnboundedSender<Member<Give>>,
    way: Arc<Way>,
}

/// One kind of request.
pub(super) trait Message: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;
    /// What others are to be told after it.
    type News: Send;
    const DURING: &'static str;

    /// Where on a lane it goes.
    fn door(lane: &Lane) -> &UnboundedSender<Member<Self>>;

    /// The number of its key's lock.
    fn turn(&self) -> i64;

    /// Sends all of them, and answers each in turn.
    fn send(
        members: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> impl Future<Output = sqlx::Result<Heard<Self>>> + Send;

    /// Tells those of this process; gives the statements that tell those of others.
    fn tell(news: Self::News, store: &Store) -> String;

    /// Whether its asker may carry it.
    fn may_go_alone(&self, store: &Store) -> bool;

    /// Whether it need not be sent when nobody waits for the answer.
    fn may_be_dropped(&self) -> bool;

    /// Nobody was there to hear the answer.
    fn unheard(self, answer: Self::Answer, store: &Arc<Store>);

    /// Its runtime has ended before it was answered, and perhaps it was sent.
    fn stranded(
        self,
        reply: Reply<Self>,
        store: &Store,
        was_sent: bool,
    ) -> impl Future<Output = ()> + Send;
}

/// An answer for each member of a message, and what others are to be told.
pub(super) type Heard<M> = (Vec<Option<<M as Message>::Answer>>, <M as Message>::News);

pub(super) type Reply<M> = oneshot::Sender<Outcome<<M as Message>::Answer>>;

pub(super) struct Member<M: Message> {
    message: M,
    reply: Reply<M>,
}

impl Lanes {
    /// The lanes end with the last of their users.
    pub(super) fn open(store: Store) -> Self {
        let store = Arc::new(store);
        let own = Lane::open(Way::new(&store, store.pool.clone(), BACKGROUND.handle().ok()));
        let releases = DeferredReleases::new(&store);
        Lanes { store, releases, own, others: PerRuntime::default() }
    }

    /// Asks for a lease in a message that it may share.
    ///
    /// Cancel safe: what nobody is told of is given back.
    pub(super) async fn ask(&self, ask: Ask) -> Outcome<Asked> {
        self.through(ask).await
    }

    /// Gives a lease back in a message that it may share: whether it was held.
    ///
    /// Cancel safe: once begun, it is done.
    pub(super) async fn give(&self, give: Give) -> Outcome<bool> {
        self.through(give).await
    }

    async fn through<M: Message>(&self, message: M) -> Outcome<M::Answer> {
        // A pooler might give the parts of one statement to two sessions.
        if !self.store.has_own_sessions() {
            return Ok(Ok(None));
        }
        let (reply, mut answer) = oneshot::channel();
        let mut member = Member { message, reply };
        if let Some(here) = self.here() {
            if member.message.may_go_alone(&self.store)
                && let Some(place) = UnderWay::alone(&here.way)
            {
                let mut carried = Carried(Some(Box::pin(carry_alone(place, member))), here);
                let answered = poll_fn(|cx| {
                    carried.poll(cx);
                    Pin::new(&mut answer).poll(cx)
                });
                return answered.await.unwrap_or(Ok(Ok(None)));
            }
            match M::door(&here).send(member) {
                Ok(()) => return answer.await.unwrap_or(Ok(Ok(None))),
                Err(back) => member = back.0, // that runtime is about to end
            }
        }
        if M::door(&self.own).send(member).is_err() {
            return Ok(Ok(None));
        }
        // Only what panics answers nothing; the rules will find out.
        answer.await.unwrap_or(Ok(Ok(None)))
    }

    /// The lane of the runtime that we are in, where it has one.
    fn here(&self) -> Option<Arc<Lane>> {
        let pool = &self.store.pool;
        if pool.options().get_max_connections() < ROOMY {
            return None;
        }
        let make = |here: &Handle| {
            // A connection belongs to the runtime that opened it, so it has some of its own.
            let options = pool.options().clone().min_connections(0).max_connections(CONNECTIONS);
            let options = options.idle_timeout(IDLE).test_before_acquire(false);
            let own = options.connect_lazy_with((*pool.connect_options()).clone());
            Lane::open(Way::new(&self.store, own, Some(here)))
        };
        self.others.here(make, |lane| lane.asks.is_closed())
    }
}

impl Lane {
    /// Without a runtime it takes nothing.
    fn open(way: Way) -> Self {
        let way = Arc::new(way);
        Lane { asks: carriers(&way), gives: carriers(&way), way }
    }
}

fn carriers<M: Message>(way: &Arc<Way>) -> UnboundedSender<Member<M>> {
    let (send, receive) = unbounded_channel();
    let queue = Arc::new(Mutex::new(Queue { receive, store: way.store.clone() }));
    if let Some(runtime) = &way.runtime {
        for _ in 0..UNDER_WAY {
            runtime.spawn(carry(way.clone(), queue.clone()));
        }
    }
    send
}

/// What the carriers of a lane share.
struct Way {
    store: Arc<Store>,
    pool: PgPool,
    runtime: Option<Handle>,
    keeps: bool,
    kept: parking_lot::Mutex<Kept>,
    /// How many messages are under way.
    under_way: AtomicUsize,
}

/// Connections that are kept for the next message.
#[derive(Default)]
struct Kept {
    /// And since when. The last one that was used is the next to be: the server's side of it is
    /// still warm.
    lines: Vec<(Line, Moment)>,
    /// Whether a task sees to it that they are not kept for ever.
    minded: bool,
}

impl Way {
    fn new(store: &Arc<Store>, pool: PgPool, runtime: Option<&Handle>) -> Self {
        let keeps = store.pool.options().get_max_connections() >= ROOMY;
        let (store, runtime) = (store.clone(), runtime.cloned());
        Way { store, pool, runtime, keeps, kept: Default::default(), under_way: 0.into() }
    }

    async fn line(&self) -> sqlx::Result<Line> {
        let kept = self.kept.lock().lines.pop();
        match kept {
            Some((line, _)) => Ok(line),
            None => Line::open(&self.pool).await,
        }
    }

    fn keep(self: &Arc<Self>, line: Line) {
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.keeps) else { return };
        let mut kept = self.kept.lock();
        kept.lines.push((line, self.store.clock.now()));
        if !std::mem::replace(&mut kept.minded, true) {
            runtime.spawn(mind(self.clone()));
        }
    }

    /// Gives back what nobody has used for a while; false when nothing is left.
    fn let_go(&self) -> bool {
        let now = self.store.clock.now();
        let mut kept = self.kept.lock();
        let unused = kept.lines.iter().take_while(|(_, since)| now.since(*since) >= LINGER).count();
        let unused: Vec<_> = kept.lines.drain(..unused).collect();
        kept.minded = !kept.lines.is_empty();
        let any = kept.minded;
        drop(kept);
        drop(unused);
        any
    }
}

/// Gives back the connections that are kept and not used.
async fn mind(way: Arc<Way>) {
    loop {
        sleep(LINGER).await;
        if !way.let_go() {
            return;
        }
    }
}

/// A message that is under way.
struct UnderWay(Arc<Way>);

impl UnderWay {
    fn new(way: &Arc<Way>) -> Self {
        way.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(way.clone())
    }

    /// If nothing else is. So at most one connection is in the hands of somebody who may not look
    /// after it for long.
    fn alone(way: &Arc<Way>) -> Option<Self> {
        let alone = way.under_way.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        alone.is_ok().then(|| UnderWay(way.clone()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message that its asker carries: to hand it to a task and be woken by that would cost more than
/// all else here. Dropped, it goes on as a task.
struct Carried(Option<BoxFuture<'static, ()>>, Arc<Lane>);

impl Carried {
    fn poll(&mut self, cx: &mut std::task::Context<'_>) {
        if let Some(carrying) = &mut self.0
            && carrying.as_mut().poll(cx).is_ready()
        {
            self.0 = None;
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let (Some(carrying), Some(runtime)) = (self.0.take(), &self.1.way.runtime) {
            runtime.spawn(carrying);
        }
    }
}

/// What waits to be carried.
struct Queue<M: Message> {
    receive: UnboundedReceiver<Member<M>>,
    store: Arc<Store>,
}

impl<M: Message> Drop for Queue<M> {
    fn drop(&mut self) {
        self.receive.close();
        while let Ok(member) = self.receive.try_recv() {
            strand(&self.store, member, false);
        }
    }
}

/// What a carrier has in hand.
struct Hand<M: Message> {
    members: Vec<Member<M>>,
    are_sent: bool,
    store: Arc<Store>,
}

impl<M: Message> Hand<M> {
    fn drop_unwanted(&mut self) {
        self.members.retain(|m| !(m.reply.is_closed() && m.message.may_be_dropped()));
    }
}

impl<M: Message> Drop for Hand<M> {
    fn drop(&mut self) {
        for member in self.members.drain(..) {
            strand(&self.store, member, self.are_sent);
        }
    }
}

/// Sees to a request whose carrier is gone, on the provider's own thread.
fn strand<M: Message>(store: &Arc<Store>, member: Member<M>, was_sent: bool) {
    let Ok(runtime) = BACKGROUND.handle() else { return };
    let (store, Member { message, reply }) = (store.clone(), member);
    runtime.spawn(async move {
        if was_sent {
            sleep(DONE).await;
        }
        message.stranded(reply, &store, was_sent).await;
    });
}

/// Carries messages, one at a time, until nobody can send any more.
async fn carry<M: Message>(way: Arc<Way>, queue: Arc<Mutex<Queue<M>>>) {
    let mut hand = Hand { members: Vec::new(), are_sent: false, store: way.store.clone() };
    loop {
        let got = queue.lock().await.receive.recv_many(&mut hand.members, MOST).await;
        if got == 0 {
            return;
        }
        let _under_way = UnderWay::new(&way);
        let line = way.line().await;
        // More may have come meanwhile, and all that came meet the same fate.
        if let Ok(mut queue) = queue.try_lock() {
            let room = if line.is_ok() { MOST } else { usize::MAX };
            while hand.members.len() < room
                && let Ok(member) = queue.receive.try_recv()
            {
                hand.members.push(member);
            }
        }
        hand.drop_unwanted();
        // Stable: of those who want one key, the first to come is the first.
        hand.members.sort_by_key(|member| member.message.turn());
        match line {
            Ok(line) if hand.members.is_empty() => way.keep(line),
            Ok(line) => deliver(&way, line, &mut hand).await,
            Err(error) => fail(&mut hand, error),
        }
    }
}

/// Carries one message by itself.
async fn carry_alone<M: Message>(place: UnderWay, member: Member<M>) {
    let way = &place.0;
    let mut hand = Hand { members: vec![member], are_sent: false, store: way.store.clone() };
    let line = way.line().await;
    hand.drop_unwanted();
    match line {
        Ok(line) if hand.members.is_empty() => way.keep(line),
        Ok(line) => deliver(way, line, &mut hand).await,
        Err(error) => fail(&mut hand, error),
    }
}

/// Sends one message and answers its members. The connection is kept if it is still good.
async fn deliver<M: Message>(way: &Arc<Way>, mut line: Line, hand: &mut Hand<M>) {
    let messages: Vec<&M> = hand.members.iter().map(|member| &member.message).collect();
    line.asks();
    hand.are_sent = true;
    let sent = in_time(M::send(&messages, &way.store, &mut line)).await;
    hand.are_sent = false;
    line.heard(&sent);
    match sent {
        Ok((answers, news)) => {
            for (Member { message, reply }, answer) in hand.members.drain(..).zip(answers) {
                if let Err(Ok(Ok(Some(answer)))) = reply.send(Ok(Ok(answer))) {
                    message.unheard(answer, &way.store);
                }
            }
            // After the answers, so that whoever is next runs first and its own release is not
            // held up by the question that often follows this one; and after the commit, since
            // NOTIFY makes all committers of the database wait for each other.
            let notices = M::tell(news, &way.store);
            if !notices.is_empty() {
                line.asks();
                let told = sqlx::raw_sql(AssertSqlSafe(notices)).execute(&mut *line);
                let told = in_time(told).await;
                line.heard(&told);
                if let Err(error) = told {
                    tracing::debug!(%error, "a waiter was not told of its turn: it will look itself");
                    return;
                }
            }
            way.keep(line);
        }
        Err(error) => fail(hand, error),
    }
}

fn fail<M: Message>(hand: &mut Hand<M>, error: sqlx::Error) {
    let broken = is_broken(&error);
    let of_one = matches!(error, sqlx::Error::Database(_)) && hand.members.len() > 1 && !broken;
    if hand.store.learns_from(&error) || of_one || is_held_up(&error) {
        // Nothing was done, and perhaps for one of them only: alone each is told what is wrong.
        for member in hand.members.drain(..) {
            let _ = member.reply.send(Ok(Ok(None)));
        }
        return;
    }
    let told = latchwork_sql::postgres::explain(error);
    for member in hand.members.drain(..) {
        let error = error::shared(M::DURING, &told);
        let _ = member.reply.send(if broken { Ok(Err(error)) } else { Err(error) });
    }
}
