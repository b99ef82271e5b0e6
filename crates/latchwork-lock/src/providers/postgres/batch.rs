//! Requests of one process that share a message.
//!
//! A request that comes alone goes alone, at once. Those that come while others are under way go
//! together as soon as one of these is back: so a message and a commit carry more the busier it is,
//! and nobody waits for company.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::postgres::{Line, in_time};
use sqlx::PgConnection;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::error;
use super::release::Releases;
use super::scripts::{Ask, Asked, Give};
use super::store::{Store, is_broken, is_held_up};
use super::watcher::runtime;
use crate::Result;

/// How many messages of a kind are under way: while the server works on one, the next is made.
const UNDER_WAY: usize = 2;

/// The most that share a message: enough to save most of it, and little to ask for again.
const MOST: usize = 64;

/// How long a connection is kept for the next message. To give it back costs a round trip.
const LINGER: Duration = Duration::from_millis(20);

/// The smallest pool of which connections are kept for that.
const ROOMY: u32 = 8;

/// What became of a request. The inner error is a connection that died, perhaps long before:
/// whether it was heard is not known. None: the rules must decide.
pub(super) type Outcome<T> = Result<Result<Option<T>>>;

/// The ways to the server, and what they lead to.
pub(super) struct Lanes {
    pub(super) store: Arc<Store>,
    pub(super) releases: Releases,
    asks: UnboundedSender<Member<Ask>>,
    gives: UnboundedSender<Member<Give>>,
}

/// One kind of request.
pub(super) trait Message: Sized + Send + Sync + 'static {
    type Answer: Send + 'static;
    const DURING: &'static str;

    /// The number of its key's lock.
    fn turn(&self) -> i64;

    /// Sends all of them, and answers each in turn.
    fn send(
        members: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> impl Future<Output = sqlx::Result<Vec<Option<Self::Answer>>>> + Send;

    /// Whether it need not be sent when nobody waits for the answer.
    fn may_be_dropped(&self) -> bool;

    /// Nobody was there to hear the answer.
    fn unheard(self, answer: Self::Answer, store: &Arc<Store>);
}

type Received<M> = Arc<Mutex<UnboundedReceiver<Member<M>>>>;

struct Member<M: Message> {
    message: M,
    reply: oneshot::Sender<Outcome<M::Answer>>,
}

impl Lanes {
    /// The lanes end with the last of their users.
    pub(super) fn open(store: Store) -> Self {
        let store = Arc::new(store);
        let asks = lane(&store);
        let gives = lane(&store);
        Lanes { store, releases: Releases::new(), asks, gives }
    }

    /// Asks for a lease in a message that it may share.
    ///
    /// Cancel safe: what nobody is told of is given back.
    pub(super) async fn ask(&self, ask: Ask) -> Outcome<Asked> {
        self.through(&self.asks, ask).await
    }

    /// Gives a lease back in a message that it may share: whether it was held.
    ///
    /// Cancel safe: once begun, it is done.
    pub(super) async fn give(&self, give: Give) -> Outcome<bool> {
        self.through(&self.gives, give).await
    }

    async fn through<M: Message>(
        &self,
        lane: &UnboundedSender<Member<M>>,
        message: M,
    ) -> Outcome<M::Answer> {
        // A pooler might give the parts of one statement to two sessions.
        if !self.store.has_own_sessions() {
            return Ok(Ok(None));
        }
        let (reply, answer) = oneshot::channel();
        if lane.send(Member { message, reply }).is_err() {
            return Ok(Ok(None));
        }
        // Only a runtime that is shutting down answers nothing; the rules will find out.
        answer.await.unwrap_or(Ok(Ok(None)))
    }
}

fn lane<M: Message>(store: &Arc<Store>) -> UnboundedSender<Member<M>> {
    let (send, receive) = unbounded_channel();
    let receive = Arc::new(Mutex::new(receive));
    if let Ok(runtime) = runtime() {
        for _ in 0..UNDER_WAY {
            runtime.spawn(carry(store.clone(), receive.clone()));
        }
    }
    send
}

/// Carries messages, one at a time, until nobody can send any more.
async fn carry<M: Message>(store: Arc<Store>, receive: Received<M>) {
    let keeps = store.pool.options().get_max_connections() >= ROOMY;
    let mut kept: Option<Line> = None;
    let mut members = Vec::new();
    loop {
        let next = async { receive.lock().await.recv_many(&mut members, MOST).await };
        let got = match kept {
            None => next.await,
            Some(_) => match timeout(LINGER, next).await {
                Ok(got) => got,
                Err(_) => {
                    kept = None;
                    continue;
                }
            },
        };
        if got == 0 {
            return;
        }
        let line = match kept.take() {
            Some(line) => Ok(line),
            None => Line::open(&store.pool).await,
        };
        // More may have come meanwhile, and all that came meet the same fate.
        if let Ok(mut receive) = receive.try_lock() {
            let room = if line.is_ok() { MOST } else { usize::MAX };
            while members.len() < room
                && let Ok(member) = receive.try_recv()
            {
                members.push(member);
            }
        }
        members.retain(|m| !(m.reply.is_closed() && m.message.may_be_dropped()));
        // Stable: of those who want one key, the first to come is the first.
        members.sort_by_key(|member| member.message.turn());
        let members = std::mem::take(&mut members);
        match line {
            Ok(line) if members.is_empty() => kept = Some(line),
            Ok(line) => kept = deliver(&store, line, members).await,
            Err(error) => fail(&store, members, error),
        }
        kept = kept.filter(|_| keeps);
    }
}

/// Sends one message and answers its members. The connection comes back if it is still good.
async fn deliver<M: Message>(
    store: &Arc<Store>,
    mut line: Line,
    members: Vec<Member<M>>,
) -> Option<Line> {
    let messages: Vec<&M> = members.iter().map(|member| &member.message).collect();
    line.asks();
    let sent = in_time(M::send(&messages, store, &mut line)).await;
    line.heard(&sent);
    match sent {
        Ok(answers) => {
            for (Member { message, reply }, answer) in members.into_iter().zip(answers) {
                if let Err(Ok(Ok(Some(answer)))) = reply.send(Ok(Ok(answer))) {
                    message.unheard(answer, store);
                }
            }
            Some(line)
        }
        Err(error) => {
            fail(store, members, error);
            None
        }
    }
}

fn fail<M: Message>(store: &Store, members: Vec<Member<M>>, error: sqlx::Error) {
    let broken = is_broken(&error);
    let of_one = matches!(error, sqlx::Error::Database(_)) && members.len() > 1 && !broken;
    if store.learns_from(&error) || of_one || is_held_up(&error) {
        // Nothing was done, and perhaps for one of them only: alone each is told what is wrong.
        for member in members {
            let _ = member.reply.send(Ok(Ok(None)));
        }
        return;
    }
    let told = latchwork_sql::postgres::explain(error);
    for member in members {
        let error = error::shared(M::DURING, &told);
        let _ = member.reply.send(if broken { Ok(Err(error)) } else { Err(error) });
    }
}
