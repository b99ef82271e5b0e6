//! What one message can ask of the server: see the functions in the [schema](super::schema).

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::batch::Message;
use super::release;
use super::store::{Store, turn};
use super::watcher::runtime;
use super::{record, schema};
use crate::rules::Id;
use crate::{AcquireRequest, Grant, Holder, Key, Mode, Owner};

/// A request for a lease.
pub(super) struct Ask {
    request: AcquireRequest,
    id: Id,
    /// How long it would wait yet; none: for ever.
    patience: Option<Duration>,
    turn: i64,
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
    const DURING: &'static str = "asking for a lease";

    fn turn(&self) -> i64 {
        self.turn
    }

    async fn send(
        asks: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Vec<Option<Asked>>> {
        let of = asks.iter().map(|ask| &ask.request);
        let query = sqlx::query(schema::ASK)
            .bind(&*store.client)
            .bind(&*store.process)
            .bind(asks.iter().map(|ask| ask.turn).collect::<Vec<i64>>())
            .bind(of.clone().map(|r| r.key.as_str()).collect::<Vec<&str>>())
            .bind(asks.iter().map(|ask| record::hex(ask.id)).collect::<Vec<String>>())
            .bind(of.clone().map(|r| r.mode == Mode::Shared).collect::<Vec<bool>>())
            .bind(of.clone().map(|r| r.owner.as_ref().map(Owner::as_str)).collect::<Vec<_>>())
            .bind(of.clone().map(|r| r.note.as_deref()).collect::<Vec<Option<&str>>>())
            .bind(of.map(|r| record::ttl_micros(r.ttl)).collect::<Vec<i64>>())
            .bind(asks.iter().map(|ask| ask.wait()).collect::<Vec<Option<i64>>>());
        let rows = query.fetch_all(on).await?;
        let answers: Vec<_> = rows.iter().map(asked).collect::<sqlx::Result<_>>()?;
        for (ask, answer) in asks.iter().zip(&answers) {
            if let Some(Asked::Queued(_)) = answer {
                store.desk.queued(ask.id);
            }
        }
        Ok(answers)
    }

    fn may_be_dropped(&self) -> bool {
        true
    }

    fn unheard(self, answer: Asked, store: &Arc<Store>) {
        if let Asked::Refused(_) = answer {
            return;
        }
        // The release that followed the dropped question may have been there before it.
        let (store, Ask { request, id, .. }) = (store.clone(), self);
        let Ok(runtime) = runtime() else { return };
        runtime.spawn(async move { release::patiently(&store, &request.key, id).await });
    }
}

impl Ask {
    pub(super) fn new(request: &AcquireRequest, id: Id, patience: Option<Duration>) -> Self {
        Ask { turn: turn(&request.key), request: request.clone(), id, patience }
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

fn asked(row: &PgRow) -> sqlx::Result<Option<Asked>> {
    let fence: Option<i64> = row.try_get(0)?;
    let previous: Option<i64> = row.try_get(1)?;
    let due: Option<i64> = row.try_get(3)?;
    let holder: Option<&str> = row.try_get(4)?;
    Ok(match (fence, due) {
        (Some(fence), _) => Some(Asked::Granted(Grant {
            fence: record::fence_of(fence),
            previous_fence: previous.map(record::fence_of),
            waited: row.try_get::<Option<bool>, _>(2)?.unwrap_or(false),
            trusted_from: None,
        })),
        (None, Some(due)) => {
            Some(Asked::Queued(u64::try_from(due).ok().map(Duration::from_micros)))
        }
        (None, None) => match holder {
            Some(holder) => Some(Asked::Refused(record::holder(holder, row.try_get(5)?))),
            None => None,
        },
    })
}

impl Message for Give {
    type Answer = bool;
    const DURING: &'static str = "releasing";

    fn turn(&self) -> i64 {
        self.turn
    }

    async fn send(
        gives: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Vec<Option<bool>>> {
        let query = sqlx::query(schema::GIVE)
            .bind(&*store.client)
            .bind(gives.iter().map(|give| give.turn).collect::<Vec<i64>>())
            .bind(gives.iter().map(|give| give.key.as_str()).collect::<Vec<&str>>())
            .bind(gives.iter().map(|give| record::hex(give.id)).collect::<Vec<String>>());
        // Every ttl that begins with this message begins after this moment.
        let sent_at = store.clock.now();
        let rows = query.fetch_all(&mut *on).await?;
        let mut told = String::new();
        let mut answers = Vec::with_capacity(rows.len());
        for row in &rows {
            let given = Given::of(row)?;
            answers.push(given.was_held);
            given.tell(store, sent_at, &mut told);
        }
        if !told.is_empty()
            && let Err(error) = sqlx::raw_sql(AssertSqlSafe(told)).execute(on).await
        {
            tracing::debug!(%error, "a waiter was not told of its turn: it will look itself");
        }
        Ok(answers)
    }

    fn may_be_dropped(&self) -> bool {
        false
    }

    fn unheard(self, _: bool, _: &Arc<Store>) {}
}

/// What became of a lease that was given back.
struct Given {
    was_held: Option<bool>,
    /// Whom it was handed to: its id, its process, and the grant.
    next: Option<(Id, String, Grant)>,
    /// Who is first in line now, of which process, and how long until something runs out.
    first: Option<(Id, String, i64)>,
}

impl Given {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        let id: Option<String> = row.try_get(1)?;
        let next = match id.and_then(|id| Id::from_str_radix(&id, 16).ok()) {
            None => None,
            Some(id) => {
                let grant = Grant {
                    fence: record::fence_of(row.try_get(3)?),
                    previous_fence: row.try_get::<Option<i64>, _>(4)?.map(record::fence_of),
                    waited: true,
                    trusted_from: None,
                };
                Some((id, row.try_get(2)?, grant))
            }
        };
        let first: Option<String> = row.try_get(5)?;
        let first = match first.and_then(|id| Id::from_str_radix(&id, 16).ok()) {
            None => None,
            Some(id) => Some((id, row.try_get(6)?, row.try_get(7)?)),
        };
        Ok(Given { was_held: row.try_get(0)?, next, first })
    }

    /// Tells whoever waits here, and adds to `told` what others must be told. That is sent after
    /// the commit, since NOTIFY makes all committers of the database wait for each other.
    fn tell(self, store: &Store, sent_at: crate::Moment, told: &mut String) {
        if let Some((id, client, grant)) = self.next {
            if *client == *store.client {
                let grant = Grant { trusted_from: Some(sent_at), ..grant };
                store.desk.deliver(id, grant, store.clock.now());
            } else {
                told.push_str(&schema::notify(&client, &record::hex(id)));
            }
        }
        if let Some((id, client, left)) = self.first {
            let notice = format!("{}:{left}", record::hex(id));
            if *client == *store.client {
                store.desk.hear(&notice, &*store.clock);
            } else {
                told.push_str(&schema::notify(&client, &notice));
            }
        }
    }
}
