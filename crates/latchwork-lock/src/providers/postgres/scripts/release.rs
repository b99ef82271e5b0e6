//! The release of leases, as a function of the schema takes it.

use std::sync::Arc;

use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};

use super::super::message::{Answered, BatchOutcome, Message, Reply};
use super::super::store::{Query, Store, lock_number};
use super::super::{error, record, schema};
use crate::coordination::deferred_release::{Lease, release_with_retry};
use crate::rules::Id;
use crate::{Grant, Key, Moment};

/// The release of a lease.
pub(crate) struct ReleaseCall {
    key: Key,
    id: Id,
    lock_number: i64,
}

impl ReleaseCall {
    pub(crate) fn new(key: &Key, id: Id) -> Self {
        ReleaseCall { key: key.clone(), id, lock_number: lock_number(key) }
    }
}

impl Message for ReleaseCall {
    type Answer = bool;
    type News = Vec<HandOff>;
    const DURING: &'static str = "releasing";

    fn lock_number(&self) -> i64 {
        self.lock_number
    }

    async fn send(
        calls: &[&Self],
        store: &Store,
        on: &mut PgConnection,
    ) -> sqlx::Result<Answered<Self>> {
        // Every ttl that begins with this message begins after this moment.
        let sent_at = store.clock.now();
        let said: Vec<ReleaseRow> = match calls {
            [one] => {
                let row = one.bind(store).fetch_one(&mut *on).await?;
                vec![ReleaseRow::of_one(row.try_get(0)?)?]
            }
            _ => {
                let rows = ReleaseCall::bind_all(calls, store).fetch_all(&mut *on).await?;
                rows.iter().map(ReleaseRow::of).collect::<sqlx::Result<_>>()?
            }
        };
        let answers = said.iter().map(|row| row.was_held).collect();
        let news = said.into_iter().filter_map(|row| row.hand_off(sent_at)).collect();
        Ok((answers, news))
    }

    fn notify(news: Vec<HandOff>, store: &Store) -> String {
        news.into_iter().map(|news| news.notify(store)).collect()
    }

    fn may_send_inline(&self, store: &Store) -> bool {
        // Its caller would go on with its next request before the waiter that it has woken.
        !store.waiters.has_waiters(&self.key)
    }

    fn is_cancellable(&self) -> bool {
        false
    }

    fn answered_in_vain(self, _: bool, _: &Arc<Store>) {}

    async fn recover(self, reply: Reply<Self>, store: &Store, was_sent: bool) {
        // Done here even if its caller still waits, because that may be about to end with its runtime.
        let lost = was_sent.then(|| error::gone(Self::DURING));
        let done = store.release_by_rules(&self.key, self.id, lost).await;
        if done.is_err() {
            release_with_retry(store, &self.key, self.id).await;
        }
        let _ = reply.send(done.map(BatchOutcome::Done));
    }
}

impl ReleaseCall {
    fn bind<'q>(&'q self, store: &'q Store) -> Query<'q> {
        let waited_for = store.waiters.has_waiters(&self.key);
        sqlx::query(if waited_for { schema::HAND_ON } else { schema::GIVE_ONE })
            .bind(&*store.client)
            .bind(self.lock_number)
            .bind(self.key.as_str())
            .bind(record::hex(self.id))
    }

    fn bind_all<'q>(calls: &[&'q Self], store: &'q Store) -> Query<'q> {
        sqlx::query(schema::GIVE)
            .bind(&*store.client)
            .bind(calls.iter().map(|call| call.lock_number).collect::<Vec<i64>>())
            .bind(calls.iter().map(|call| call.key.as_str()).collect::<Vec<&str>>())
            .bind(calls.iter().map(|call| record::hex(call.id)).collect::<Vec<String>>())
    }
}

/// Releases leases in one message without parameters, which passes any pooler; returns those of
/// which the rules must decide.
pub(crate) async fn release_together(store: &Store, leases: &[Lease]) -> sqlx::Result<Vec<Lease>> {
    let mut leases: Vec<(i64, &Lease)> =
        leases.iter().map(|lease| (lock_number(&lease.0), lease)).collect();
    leases.sort_by_key(|(number, _)| *number);
    // Every ttl that begins with this message begins after this moment.
    let sent_at = store.clock.now();
    let rows = store.execute_raw(schema::release_all(&store.client, &leases)).await?;
    let (mut left, mut notices) = (Vec::new(), String::new());
    for ((_, lease), row) in leases.into_iter().zip(&rows) {
        let told = ReleaseRow::of(row)?;
        if told.was_held.is_none() {
            left.push(lease.clone());
        }
        notices.extend(told.hand_off(sent_at).map(|news| news.notify(store)));
    }
    if !notices.is_empty()
        && let Err(error) = store.execute_raw(notices).await
    {
        tracing::debug!(%error, "a waiter was not notified; it finds its grant by polling");
    }
    Ok(left)
}

/// A row of the function's result.
#[derive(Default, Deserialize)]
struct ReleaseRow {
    was_held: Option<bool>,
    /// The waiter that was granted the key, its process, and the fences.
    next_id: Option<String>,
    next_client: Option<String>,
    next_fence: Option<i64>,
    old_fence: Option<i64>,
    /// The first in the queue now, its process, and how long until something expires.
    first_id: Option<String>,
    first_client: Option<String>,
    due: Option<i64>,
}

impl ReleaseRow {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        Ok(ReleaseRow {
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

    /// Of a message with one release.
    fn of_one(said: &str) -> sqlx::Result<Self> {
        match said {
            "held" => Ok(ReleaseRow { was_held: Some(true), ..ReleaseRow::default() }),
            "over" => Ok(ReleaseRow { was_held: Some(false), ..ReleaseRow::default() }),
            _ => record::decode(said),
        }
    }

    fn hand_off(self, sent_at: Moment) -> Option<HandOff> {
        let next = match (self.next_id.as_deref().and_then(record::id_from_hex), self.next_client) {
            (Some(id), Some(client)) => Some((id, client)),
            _ => None,
        };
        let first =
            match (self.first_id.as_deref().and_then(record::id_from_hex), self.first_client) {
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
        Some(HandOff { next: (id, client, grant), first })
    }
}

/// The key was granted to the next waiter.
pub(crate) struct HandOff {
    /// The waiter, its process, and its grant.
    next: (Id, String, Grant),
    /// The first in the queue now, its process, and how many microseconds until something expires.
    first: Option<(Id, String, i64)>,
}

impl HandOff {
    /// Wakes waiters of this process; returns the statements that notify others.
    fn notify(self, store: &Store) -> String {
        let mut told = String::new();
        let (id, client, grant) = self.next;
        if *client == *store.client {
            store.waiters.deliver_grant(id, grant, store.clock.now());
        } else {
            told.push_str(&schema::notify(&client, &record::hex(id)));
        }
        if let Some((id, client, left)) = self.first {
            let notice = format!("{}:{left}", record::hex(id));
            if *client == *store.client {
                store.on_notification(&notice);
            } else {
                told.push_str(&schema::notify(&client, &notice));
            }
        }
        told
    }
}
