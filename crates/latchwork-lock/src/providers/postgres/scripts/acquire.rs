//! The request of a lease, as a function of the schema takes it.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use super::super::message::{Answered, BatchOutcome, Message, Reply};
use super::super::open_requests::OpenRequest;
use super::super::store::{BACKGROUND, Query, Store, lock_number};
use super::super::{record, schema};
use crate::coordination::deferred_release::release_with_retry;
use crate::rules::Id;
use crate::{AcquireRequest, Grant, Holder, Mode, Owner};

/// A request for a lease.
pub(crate) struct AcquireCall {
    request: AcquireRequest,
    id: Id,
    /// How long it would still wait; none: without limit.
    patience: Option<Duration>,
    /// Whether it has waited: then it has probably been granted the key.
    waited: bool,
    lock_number: i64,
    /// Until it is answered, and a grant whose caller has gone is released.
    open: OpenRequest,
}

/// The answer to it.
pub(crate) enum AcquireReply {
    Granted(Grant),
    /// It is queued; for the first in the queue, how long until something ahead of it expires.
    Queued(Option<Duration>),
    /// Another holder has the key, and the request does not wait.
    Refused(Option<Box<Holder>>),
}

impl Message for AcquireCall {
    type Answer = AcquireReply;
    type News = ();
    const DURING: &'static str = "asking for a lease";

    fn lock_number(&self) -> i64 {
        self.lock_number
    }

    async fn send(
        calls: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Answered<Self>> {
        let answers: Vec<Option<AcquireReply>> = match calls {
            [one] => {
                let row = one.bind(store).fetch_one(on).await?;
                vec![AcquireRow::of_one(row.try_get(0)?)?.reply()]
            }
            _ => {
                let rows = AcquireCall::bind_all(calls, store).fetch_all(on).await?;
                let told = rows.iter().map(|row| Ok(AcquireRow::of(row)?.reply()));
                told.collect::<sqlx::Result<_>>()?
            }
        };
        for (call, answer) in calls.iter().zip(&answers) {
            if let Some(AcquireReply::Queued(_)) = answer {
                store.waiters.mark_queued(call.id);
            }
        }
        Ok((answers, ()))
    }

    fn notify((): (), _: &Store) -> String {
        String::new()
    }

    fn may_send_inline(&self, _: &Store) -> bool {
        true
    }

    fn is_cancellable(&self) -> bool {
        true
    }

    fn answered_in_vain(self, answer: AcquireReply, store: &Arc<Store>) {
        if matches!(answer, AcquireReply::Refused(_)) || !self.request.keep.is_zero() {
            return;
        }
        let (store, AcquireCall { request, id, open, .. }) = (store.clone(), self);
        let Ok(runtime) = BACKGROUND.handle() else { return };
        runtime.spawn(async move {
            release_with_retry(&*store, &request.key, id).await;
            drop(open);
        });
    }

    async fn recover(self, reply: Reply<Self>, store: &Store, was_sent: bool) {
        // A caller that still waits finds out by the rules.
        let is_given_up = reply.send(Ok(BatchOutcome::UseRules)).is_err() && was_sent;
        if is_given_up && self.request.keep.is_zero() {
            release_with_retry(store, &self.request.key, self.id).await;
        }
    }
}

impl AcquireCall {
    pub(crate) fn new(
        request: &AcquireRequest,
        id: Id,
        patience: Option<Duration>,
        waited: bool,
        open: OpenRequest,
    ) -> Self {
        AcquireCall {
            lock_number: lock_number(&request.key),
            request: request.clone(),
            id,
            patience,
            waited,
            open,
        }
    }

    fn bind<'q>(&'q self, store: &'q Store) -> Query<'q> {
        let request = &self.request;
        sqlx::query(if self.waited { schema::CLAIM_ONE } else { schema::ASK_ONE })
            .bind(&*store.client)
            .bind(&*store.process)
            .bind(self.lock_number)
            .bind(request.key.as_str())
            .bind(record::hex(self.id))
            .bind(request.mode == Mode::Shared)
            .bind(request.owner.as_ref().map(Owner::as_str))
            .bind(request.note.as_deref())
            .bind(record::ttl_micros(request.ttl))
            .bind(self.wait())
    }

    fn bind_all<'q>(calls: &[&'q Self], store: &'q Store) -> Query<'q> {
        let of = calls.iter().map(|call| &call.request);
        sqlx::query(schema::ASK)
            .bind(&*store.client)
            .bind(&*store.process)
            .bind(calls.iter().map(|call| call.lock_number).collect::<Vec<i64>>())
            .bind(of.clone().map(|r| r.key.as_str()).collect::<Vec<&str>>())
            .bind(calls.iter().map(|call| record::hex(call.id)).collect::<Vec<String>>())
            .bind(of.clone().map(|r| r.mode == Mode::Shared).collect::<Vec<bool>>())
            .bind(of.clone().map(|r| r.owner.as_ref().map(Owner::as_str)).collect::<Vec<_>>())
            .bind(of.clone().map(|r| r.note.as_deref()).collect::<Vec<Option<&str>>>())
            .bind(of.map(|r| record::ttl_micros(r.ttl)).collect::<Vec<i64>>())
            .bind(calls.iter().map(|call| call.wait()).collect::<Vec<Option<i64>>>())
    }

    /// As the server takes it: none for not at all, -1 for without limit.
    fn wait(&self) -> Option<i64> {
        match self.patience {
            None => Some(-1),
            Some(Duration::ZERO) => None,
            Some(left) => Some(record::ttl_micros(left)),
        }
    }
}

/// A row of the function's result.
#[derive(Default, Deserialize)]
struct AcquireRow {
    got: Option<i64>,
    before: Option<i64>,
    was_next: Option<bool>,
    due: Option<i64>,
    holder: Option<String>,
    seen_us: Option<i64>,
}

impl AcquireRow {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        Ok(AcquireRow {
            got: row.try_get(0)?,
            before: row.try_get(1)?,
            was_next: row.try_get(2)?,
            due: row.try_get(3)?,
            holder: row.try_get(4)?,
            seen_us: row.try_get(5)?,
        })
    }

    /// Of a message with one request.
    fn of_one(said: &str) -> sqlx::Result<Self> {
        match said.parse() {
            Ok(fence) => Ok(AcquireRow { got: Some(fence), ..AcquireRow::default() }),
            Err(_) => record::decode(said),
        }
    }

    fn reply(self) -> Option<AcquireReply> {
        match (self.got, self.due, self.holder) {
            (Some(fence), ..) => Some(AcquireReply::Granted(Grant {
                fence: record::fence_of(fence),
                previous_fence: self.before.map(record::fence_of),
                waited: self.was_next.unwrap_or(false),
                trusted_from: None,
            })),
            (None, Some(due), _) => {
                Some(AcquireReply::Queued(u64::try_from(due).ok().map(Duration::from_micros)))
            }
            (None, None, Some(holder)) => {
                Some(AcquireReply::Refused(record::holder(&holder, self.seen_us.unwrap_or(0))))
            }
            (None, None, None) => None,
        }
    }
}
