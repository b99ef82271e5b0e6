//! What one message can ask of the server: see the functions in the [schema](super::schema).

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use tokio::sync::mpsc::UnboundedSender;

use super::batch::{Heard, Lane, Member, Message, Reply};
use super::store::{BACKGROUND, Query, Store, turn};
use super::unanswered::Open;
use super::{error, record, release, schema};
use crate::coordination::deferred_release::{Lease, patiently};
use crate::rules::Id;
use crate::{AcquireRequest, Grant, Holder, Key, Mode, Moment, Owner};

/// A request for a lease.
pub(super) struct Ask {
    request: AcquireRequest,
    id: Id,
    /// How long it would wait yet; none: for ever.
    patience: Option<Duration>,
    /// Whether it has waited: then its turn has probably come.
    waited: bool,
    turn: i64,
    /// Until it is answered, and what nobody wants of it is given back.
    open: Open,
}

/// What the server said to it.
pub(super) enum Asked {
    Granted(Grant),
    /// It stands in the queue; for the first in line, how long until something ahead runs out.
    Queued(Option<Duration>),
    /// Somebody has it, and it would not wait.
    Refused(Option<Box<Holder>>),
}

/// A lease to be given back.
pub(super) struct Give {
    key: Key,
    id: Id,
    turn: i64,
}

impl Give {
    pub(super) fn new(key: &Key, id: Id) -> Self {
        Give { key: key.clone(), id, turn: turn(key) }
    }
}

impl Message for Ask {
    type Answer = Asked;
    type News = ();
    const DURING: &'static str = "asking for a lease";

    fn door(lane: &Lane) -> &UnboundedSender<Member<Self>> {
        &lane.asks
    }

    fn turn(&self) -> i64 {
        self.turn
    }

    async fn send(
        asks: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Heard<Self>> {
        let answers: Vec<Option<Asked>> = match asks {
            [one] => {
                let row = one.bound(store).fetch_one(on).await?;
                vec![ToldAsk::alone(row.try_get(0)?)?.understood()]
            }
            _ => {
                let rows = Ask::bound_together(asks, store).fetch_all(on).await?;
                let told = rows.iter().map(|row| Ok(ToldAsk::of(row)?.understood()));
                told.collect::<sqlx::Result<_>>()?
            }
        };
        for (ask, answer) in asks.iter().zip(&answers) {
            if let Some(Asked::Queued(_)) = answer {
                store.desk.queued(ask.id);
            }
        }
        Ok((answers, ()))
    }

    fn tell((): (), _: &Store) -> String {
        String::new()
    }

    fn may_go_alone(&self, _: &Store) -> bool {
        true
    }

    fn may_be_dropped(&self) -> bool {
        true
    }

    fn unheard(self, answer: Asked, store: &Arc<Store>) {
        if let Asked::Refused(_) = answer {
            return;
        }
        let (store, Ask { request, id, open, .. }) = (store.clone(), self);
        let Ok(runtime) = BACKGROUND.handle() else { return };
        runtime.spawn(async move {
            patiently(&*store, &request.key, id).await;
            drop(open);
        });
    }

    async fn stranded(self, reply: Reply<Self>, store: &Store, was_sent: bool) {
        // Who still waits finds out by the rules.
        if reply.send(Ok(Ok(None))).is_err() && was_sent {
            patiently(store, &self.request.key, self.id).await;
        }
    }
}

impl Ask {
    pub(super) fn new(
        request: &AcquireRequest,
        id: Id,
        patience: Option<Duration>,
        waited: bool,
        open: Open,
    ) -> Self {
        Ask { turn: turn(&request.key), request: request.clone(), id, patience, waited, open }
    }

    fn bound<'q>(&'q self, store: &'q Store) -> Query<'q> {
        let request = &self.request;
        sqlx::query(if self.waited { schema::CLAIM_ONE } else { schema::ASK_ONE })
            .bind(&*store.client)
            .bind(&*store.process)
            .bind(self.turn)
            .bind(request.key.as_str())
            .bind(record::hex(self.id))
            .bind(request.mode == Mode::Shared)
            .bind(request.owner.as_ref().map(Owner::as_str))
            .bind(request.note.as_deref())
            .bind(record::ttl_micros(request.ttl))
            .bind(self.wait())
    }

    fn bound_together<'q>(asks: &[&'q Self], store: &'q Store) -> Query<'q> {
        let of = asks.iter().map(|ask| &ask.request);
        sqlx::query(schema::ASK)
            .bind(&*store.client)
            .bind(&*store.process)
            .bind(asks.iter().map(|ask| ask.turn).collect::<Vec<i64>>())
            .bind(of.clone().map(|r| r.key.as_str()).collect::<Vec<&str>>())
            .bind(asks.iter().map(|ask| record::hex(ask.id)).collect::<Vec<String>>())
            .bind(of.clone().map(|r| r.mode == Mode::Shared).collect::<Vec<bool>>())
            .bind(of.clone().map(|r| r.owner.as_ref().map(Owner::as_str)).collect::<Vec<_>>())
            .bind(of.clone().map(|r| r.note.as_deref()).collect::<Vec<Option<&str>>>())
            .bind(of.map(|r| record::ttl_micros(r.ttl)).collect::<Vec<i64>>())
            .bind(asks.iter().map(|ask| ask.wait()).collect::<Vec<Option<i64>>>())
    }

    /// As the server takes it: none not at all, -1 for ever.
    fn wait(&self) -> Option<i64> {
        match self.patience {
            None => Some(-1),
            Some(Duration::ZERO) => None,
            Some(left) => Some(record::ttl_micros(left)),
        }
    }
}

/// What the server said to a request, as the function names it.
#[derive(Default, Deserialize)]
struct ToldAsk {
    got: Option<i64>,
    before: Option<i64>,
    was_next: Option<bool>,
    due: Option<i64>,
    holder: Option<String>,
    seen_us: Option<i64>,
}

impl ToldAsk {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        Ok(ToldAsk {
            got: row.try_get(0)?,
            before: row.try_get(1)?,
            was_next: row.try_get(2)?,
            due: row.try_get(3)?,
            holder: row.try_get(4)?,
            seen_us: row.try_get(5)?,
        })
    }

    /// To a request that came alone.
    fn alone(said: &str) -> sqlx::Result<Self> {
        match said.parse() {
            Ok(fence) => Ok(ToldAsk { got: Some(fence), ..ToldAsk::default() }),
            Err(_) => parsed(said),
        }
    }

    fn understood(self) -> Option<Asked> {
        match (self.got, self.due, self.holder) {
            (Some(fence), ..) => Some(Asked::Granted(Grant {
                fence: record::fence_of(fence),
                previous_fence: self.before.map(record::fence_of),
                waited: self.was_next.unwrap_or(false),
                trusted_from: None,
            })),
            (None, Some(due), _) => {
                Some(Asked::Queued(u64::try_from(due).ok().map(Duration::from_micros)))
            }
            (None, None, Some(holder)) => {
                Some(Asked::Refused(record::holder(&holder, self.seen_us.unwrap_or(0))))
            }
            (None, None, None) => None,
        }
    }
}

fn parsed<T: for<'a> Deserialize<'a>>(said: &str) -> sqlx::Result<T> {
    serde_json::from_str(said).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

impl Message for Give {
    type Answer = bool;
    type News = Vec<News>;
    const DURING: &'static str = "releasing";

    fn door(lane: &Lane) -> &UnboundedSender<Member<Self>> {
        &lane.gives
    }

    fn turn(&self) -> i64 {
        self.turn
    }

    async fn send(
        gives: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Heard<Self>> {
        // Every ttl that begins with this message begins after this moment.
        let sent_at = store.clock.now();
        let said: Vec<ToldGive> = match gives {
            [one] => {
                let row = one.bound(store).fetch_one(&mut *on).await?;
                vec![ToldGive::alone(row.try_get(0)?)?]
            }
            _ => {
                let rows = Give::bound_together(gives, store).fetch_all(&mut *on).await?;
                rows.iter().map(ToldGive::of).collect::<sqlx::Result<_>>()?
            }
        };
        let answers = said.iter().map(|given| given.was_held).collect();
        let news = said.into_iter().filter_map(|given| given.news(sent_at)).collect();
        Ok((answers, news))
    }

    fn tell(news: Vec<News>, store: &Store) -> String {
        news.into_iter().map(|news| news.tell(store)).collect()
    }

    fn may_go_alone(&self, store: &Store) -> bool {
        // Else it would go on with what it does next before the one that it has woken.
        !store.desk.waits_for(&self.key)
    }

    fn may_be_dropped(&self) -> bool {
        false
    }

    fn unheard(self, _: bool, _: &Arc<Store>) {}

    async fn stranded(self, reply: Reply<Self>, store: &Store, was_sent: bool) {
        // Done here, also where somebody waits: that may be about to end with its runtime.
        let lost = was_sent.then(|| error::gone(Self::DURING));
        let done = release::by_rules(store, &self.key, self.id, lost).await;
        if done.is_err() {
            patiently(store, &self.key, self.id).await;
        }
        let _ = reply.send(done.map(|held| Ok(Some(held))));
    }
}

impl Give {
    fn bound<'q>(&'q self, store: &'q Store) -> Query<'q> {
        let waited_for = store.desk.waits_for(&self.key);
        sqlx::query(if waited_for { schema::HAND_ON } else { schema::GIVE_ONE })
            .bind(&*store.client)
            .bind(self.turn)
            .bind(self.key.as_str())
            .bind(record::hex(self.id))
    }

    fn bound_together<'q>(gives: &[&'q Self], store: &'q Store) -> Query<'q> {
        sqlx::query(schema::GIVE)
            .bind(&*store.client)
            .bind(gives.iter().map(|give| give.turn).collect::<Vec<i64>>())
            .bind(gives.iter().map(|give| give.key.as_str()).collect::<Vec<&str>>())
            .bind(gives.iter().map(|give| record::hex(give.id)).collect::<Vec<String>>())
    }
}

/// Gives leases back in one message without parameters, which passes any pooler; gives those of which
/// the rules must decide.
pub(super) async fn give_together(store: &Store, leases: &[Lease]) -> sqlx::Result<Vec<Lease>> {
    let mut leases: Vec<(i64, &Lease)> =
        leases.iter().map(|lease| (turn(&lease.0), lease)).collect();
    leases.sort_by_key(|(turn, _)| *turn);
    // Every ttl that begins with this message begins after this moment.
    let sent_at = store.clock.now();
    let rows = store.tell_server(schema::give(&store.client, &leases)).await?;
    let (mut left, mut notices) = (Vec::new(), String::new());
    for ((_, lease), row) in leases.into_iter().zip(&rows) {
        let told = ToldGive::of(row)?;
        if told.was_held.is_none() {
            left.push(lease.clone());
        }
        notices.extend(told.news(sent_at).map(|news| news.tell(store)));
    }
    if !notices.is_empty()
        && let Err(error) = store.tell_server(notices).await
    {
        tracing::debug!(%error, "a waiter was not told of its turn: it will look itself");
    }
    Ok(left)
}

/// What became of a lease that was given back, as the function names it.
#[derive(Default, Deserialize)]
struct ToldGive {
    was_held: Option<bool>,
    /// Whom it was handed to, of which process, and with which fences.
    next_id: Option<String>,
    next_client: Option<String>,
    next_fence: Option<i64>,
    old_fence: Option<i64>,
    /// Who is first in line now, of which process, and how long until something runs out.
    first_id: Option<String>,
    first_client: Option<String>,
    due: Option<i64>,
}

impl ToldGive {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        Ok(ToldGive {
            was_held: row.try_get(0)?,
            next_id: row.try_get(1)?,
            next_client: row.try_get(2)?,
            next_fence: row.try_get(3)?,
            old_fence: row.try_get(4)?,
            first_id: row.try_get(5)?,
            first_client: row.try_get(6)?,
            due: row.try_get(7)?,
        })
    }

    /// Of one that was given back alone.
    fn alone(said: &str) -> sqlx::Result<Self> {
        match said {
            "held" => Ok(ToldGive { was_held: Some(true), ..ToldGive::default() }),
            "over" => Ok(ToldGive { was_held: Some(false), ..ToldGive::default() }),
            _ => parsed(said),
        }
    }

    fn news(self, sent_at: Moment) -> Option<News> {
        let next = match (self.next_id.as_deref().and_then(id_of), self.next_client) {
            (Some(id), Some(client)) => Some((id, client)),
            _ => None,
        };
        let first = match (self.first_id.as_deref().and_then(id_of), self.first_client) {
            (Some(id), Some(client)) => Some((id, client, self.due?)),
            _ => None,
        };
        let (id, client) = next?;
        let grant = Grant {
            fence: record::fence_of(self.next_fence?),
            previous_fence: self.old_fence.map(record::fence_of),
            waited: true,
            trusted_from: Some(sent_at),
        };
        Some(News { next: (id, client, grant), first })
    }
}

/// A key was handed on.
pub(super) struct News {
    /// To whom, and of which process.
    next: (Id, String, Grant),
    /// Who is first in line now, of which process, and how many microseconds until something runs
    /// out.
    first: Option<(Id, String, i64)>,
}

impl News {
    /// Tells whoever waits here; gives what others must be told.
    fn tell(self, store: &Store) -> String {
        let mut told = String::new();
        let (id, client, grant) = self.next;
        if *client == *store.client {
            store.desk.deliver(id, grant, store.clock.now());
        } else {
            told.push_str(&schema::notify(&client, &record::hex(id)));
        }
        if let Some((id, client, left)) = self.first {
            let notice = format!("{}:{left}", record::hex(id));
            if *client == *store.client {
                store.hear(&notice);
            } else {
                told.push_str(&schema::notify(&client, &notice));
            }
        }
        told
    }
}

fn id_of(hex: &str) -> Option<Id> {
    Id::from_str_radix(hex, 16).ok()
}
