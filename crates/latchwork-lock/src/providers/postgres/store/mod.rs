//! Where the truth lives: the rows of a key, edited under its advisory lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_sql::postgres::{JobConnection, in_time, is_broken, is_mixed_up};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::fence_gate::PostgresFenceGate;
use super::open_requests::OpenRequests;
use super::record::{self, ALIVE, RequesterInfo, Row};
use super::{error, schema};
use crate::coordination::background::Background;
use crate::coordination::liveness::Heartbeat;
use crate::coordination::server_clock::ServerClock;
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::{Id, Rules};
use crate::{Clock, Error, Fence, Inspection, Key, Moment, Page, PageRequest, Result, StaleFence};

pub(super) type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The shortest time between two heartbeats of a process that waits.
const BEAT: Duration = Duration::from_millis(700);

/// Does what may be repeated. A pooled connection may have been ended by the server while nobody used
/// it, and then it is done on the next one; each that fails is closed, so this ends.
macro_rules! on_open_connection {
    ($pool:expr, |$connection:ident| $job:block) => {{
        let mut left = ($pool).options().get_max_connections();
        loop {
            let mut $connection = JobConnection::open($pool).await?;
            let done = in_time(async { $job }).await;
            $connection.mark_answered(&done);
            match done {
                Err(error) if left > 0 && is_broken(&error) => left -= 1,
                done => break done,
            }
        }
    }};
}

/// Runs all work on the database that must run to its end.
pub(super) static BACKGROUND: Background = Background::new(error::NAME);

pub(super) struct Store {
    pub(super) pool: PgPool,
    /// Renewals have a connection of their own where the pool is the caller's: all of that pool's
    /// connections may be in use, or belong to a runtime that is blocked.
    renewals: PgPool,
    /// Whether a connection keeps its session; not so behind pgbouncer in transaction mode, where
    /// prepared statements must not outlive a transaction.
    own_sessions: AtomicBool,
    pub(super) clock: Arc<dyn Clock>,
    /// Random: names this provider among all that use the database.
    pub(super) client: Arc<str>,
    pub(super) process: Arc<str>,
    pub(super) waiters: Arc<WaiterRegistry>,
    /// Whether notifications arrive; else waiters poll.
    pub(super) is_notified: AtomicBool,
    pub(super) open_requests: Arc<OpenRequests>,
    pub(super) heartbeat: Heartbeat,
    server_clock: ServerClock,
}

/// What a change may use: the server's time, read under the lock, and fences.
pub(super) struct Edit {
    pub(super) now: Moment,
    fences: std::vec::IntoIter<i64>,
    last: Option<Fence>,
}

impl Edit {
    pub(super) fn fences(&mut self) -> impl FnMut() -> Fence {
        || {
            // One above the last is what is left if more was granted than anybody foresaw.
            let above = self.last.map_or(0, |last| last.get() + 1);
            let drawn = self.fences.next().map_or(0, |n| record::fence_of(n).get());
            let fence = Fence::new(drawn.max(above));
            self.last = Some(fence);
            fence
        }
    }
}

impl Store {
    pub(super) fn new(
        pool: PgPool,
        renewals: PgPool,
        own_sessions: bool,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Store {
            pool,
            renewals,
            own_sessions: AtomicBool::new(own_sessions),
            clock,
            client: record::hex(rand::random()).into(),
            process: crate::process_label().into(),
            waiters: Arc::default(),
            is_notified: AtomicBool::new(false),
            open_requests: OpenRequests::new(),
            heartbeat: Heartbeat::new(ALIVE, BEAT),
            server_clock: ServerClock::default(),
        }
    }

    /// A notice: an id, whose turn it is, or an id and the microseconds until something runs out.
    pub(super) fn on_notification(&self, notice: &str) {
        let (id, left) = notice.split_once(':').map_or((notice, None), |(id, l)| (id, Some(l)));
        let Ok(id) = Id::from_str_radix(id, 16) else { return };
        match left.and_then(|left| left.parse().ok()) {
            Some(left) => {
                self.waiters.set_due(id, self.clock.now().after(Duration::from_micros(left)));
            }
            None => self.waiters.wake(id),
        }
    }

    /// One change of a key, then grants the key to the next waiter. Returns what the change
    /// returned, the rules as they are now, and the server's time. A failure has changed nothing, or
    /// its answer was lost.
    pub(super) async fn edit<T>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment)> {
        self.edit_on(&self.pool, during, key, None, change).await
    }

    /// The same on behalf of a waiter that may have been queued by another process: from now on it is
    /// one of this process, so it is not passed over because that one is silent.
    pub(super) async fn edit_for<T>(
        &self,
        during: &'static str,
        key: &Key,
        returning: Option<Id>,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment)> {
        self.edit_on(&self.pool, during, key, returning, change).await
    }

    /// Starts a new ttl; false when the id holds nothing.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let renew = |rules: &mut Rules<_>, edit: &mut Edit| rules.renew(id, ttl, edit.now);
        Ok(self.edit_on(&self.renewals, during, key, None, renew).await?.0)
    }

    async fn edit_on<T>(
        &self,
        pool: &PgPool,
        during: &'static str,
        key: &Key,
        returning: Option<Id>,
        change: impl FnOnce(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment)> {
        let wrong = |e| error::driver(during, e);
        let number = lock_number(key);
        let (mut connection, row, sent_at) = loop {
            let mut connection = begin(pool, number).await.map_err(wrong)?;
            let sent_at = self.clock.now();
            let trusted = self.has_own_sessions();
            let load = self.query(schema::LOAD).bind(key.as_str());
            let loaded = in_time(load.fetch_one(&mut *connection)).await;
            match loaded {
                Ok(row) => break (connection, row, sent_at),
                Err(error) => {
                    let error = undo(connection, error).await;
                    // Once more, and from now on without what a session would have to remember.
                    if !(trusted && self.learns_from(&error)) {
                        return Err(wrong(error));
                    }
                }
            }
        };
        let (now, fences, before) = loaded(during, &row)?;
        self.observe_time(record::micros(now), sent_at);
        let mut seen = before.clone();
        if let Some(id) = returning {
            seen.iter_mut().for_each(|row| row.come_back(id, &self.client));
        }
        let (mut rules, mut absent) = record::rules(&seen, &self.client, now)
            .map_err(|what| error::unreadable(during, what))?;
        let first_expiry = rules.next_expiry();
        let mut edit = Edit { now, fences: fences.into_iter(), last: rules.last_fence };
        let out = change(&mut rules, &mut edit);
        rules.admit(now, &mut edit.fences(), |_| {});
        // One that was passed over may have queued again, or been granted the key.
        absent.silent.retain(|silent| {
            let is_queued = rules.queue.iter().any(|waiting| waiting.id == silent.id);
            !is_queued && !rules.holders.iter().any(|held| held.requester.id == silent.id)
        });
        let known: Vec<Fence> = before.iter().filter_map(Row::fence).collect();
        let (gone, new) = record::difference(&before, record::rows(key, &rules, &absent.silent));
        if gone.is_empty() && new.is_empty() {
            end(connection, schema::ROLLBACK).await.map_err(wrong)?;
            return Ok((out, rules, now));
        }
        let joins = new.iter().any(|row| row.waits_in(&self.client));
        let beats = joins && !self.heartbeat.is_alive(self.clock.now());
        let begun = self.clock.now();
        let new = serde_json::to_string(&new).map_err(|e| error::unreadable(during, e))?;
        let saved = in_time(async {
            if beats {
                let beat = AssertSqlSafe(schema::beat(&self.client, ALIVE.as_micros()));
                sqlx::raw_sql(beat).execute(&mut *connection).await?;
            }
            let save = self.query(schema::SAVE).bind(key.as_str()).bind(gone).bind(new);
            save.execute(&mut *connection).await
        });
        if let Err(error) = saved.await {
            let error = undo(connection, error).await;
            return Err(match self.learns_from(&error) {
                true => error::again(during, error),
                false => wrong(error),
            });
        }
        end(connection, schema::COMMIT).await.map_err(wrong)?;
        if beats {
            self.heartbeat.sent(begun);
        }
        doubt(pool, &absent.doubted, now).await;
        self.notify_waiters(pool, &rules, &known, first_expiry, now).await;
        Ok((out, rules, now))
    }

    /// Lifts the fences to the clock, where they are far below it. Gives the rights that the user
    /// lacks, for this or for anything else.
    pub(super) async fn raise_fences(&self) -> sqlx::Result<Option<String>> {
        let mut connection = JobConnection::open(&self.pool).await?;
        let raise = schema::raise(record::number_of("latchwork_lock_fence", ""));
        let raised = in_time(sqlx::raw_sql(AssertSqlSafe(raise)).fetch_all(&mut *connection)).await;
        let error = match raised {
            Ok(rows) => {
                connection.mark_answered(&Ok(()));
                connection.return_to_pool().await;
                return Ok(missing_of(&rows));
            }
            Err(error) => undo(connection, error).await,
        };
        // Whatever failed may have failed for want of a right.
        let rows = self.execute_raw(schema::missing_rights()).await?;
        missing_of(&rows).map_or(Err(error), |missing| Ok(Some(missing)))
    }

    /// A statement without parameters, which passes any pooler. It may be sent twice.
    pub(super) async fn execute_raw(&self, sql: String) -> sqlx::Result<Vec<PgRow>> {
        execute_raw(&self.pool, sql).await
    }

    /// Notifies the waiters that were granted the key, and the next one when something expires sooner
    /// than it knew. After the commit, since NOTIFY makes all committers of the database wait for
    /// each other. What is lost here, the next poll finds.
    async fn notify_waiters(
        &self,
        pool: &PgPool,
        rules: &Rules<RequesterInfo>,
        known: &[Fence],
        first_expiry: Moment,
        now: Moment,
    ) {
        let granted = rules.holders.iter().filter(|h| !h.claimed && !known.contains(&h.fence));
        let mut notices: Vec<(&str, String)> =
            granted.map(|h| (&*h.requester.extra.client, record::hex(h.requester.id))).collect();
        let next = rules.next_expiry();
        if let Some(first) = rules.queue.front()
            && (next < first_expiry || !notices.is_empty())
        {
            let left = next.since(now).as_micros();
            notices.push((&*first.extra.client, format!("{}:{left}", record::hex(first.id))));
        }
        let mut told = String::new();
        for (client, notice) in notices {
            if *client == *self.client {
                self.on_notification(&notice);
            } else {
                told.push_str(&schema::notify(client, &notice));
            }
        }
        if !told.is_empty()
            && let Err(error) = execute_raw(pool, told).await
        {
            tracing::debug!(%error, "a waiter was not notified of its grant; it finds it at its next poll");
        }
    }

    /// The rules of a key without changing anything, and the server's time.
    pub(super) async fn peek(
        &self,
        during: &'static str,
        key: &Key,
    ) -> Result<(Rules<RequesterInfo>, Moment)> {
        let query = || self.query(schema::PEEK).bind(key.as_str());
        let rows = self.read(query).await.map_err(|e| error::driver(during, e))?;
        let row = rows.first().ok_or_else(|| error::unreadable(during, "no answer"))?;
        self.viewed(during, row)
    }

    /// A page of the keys that begin like this.
    pub(super) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        // One more than wanted tells whether there is more.
        let limit = i64::try_from(page.limit.saturating_add(1)).unwrap_or(i64::MAX);
        let after = page.after.clone().unwrap_or_default();
        let query =
            || self.query(schema::LIST).bind(prefix.to_owned()).bind(after.clone()).bind(limit);
        let rows = self.read(query).await.map_err(|e| error::driver(during, e))?;
        let mut keys: Vec<Inspection> = Vec::new();
        for row in rows {
            let key: String = row.try_get(2).map_err(|e| error::driver(during, e))?;
            let (rules, now) = self.viewed(during, &row)?;
            keys.push(record::reporter(now).inspection(&key, &rules, RequesterInfo::label));
        }
        Ok(Page::cut(keys, page))
    }

    /// Keys with something that ran out, which nobody has asked for since.
    pub(super) async fn left_over(&self) -> sqlx::Result<Vec<Key>> {
        let rows = self.read(|| self.query(schema::SWEEP)).await?;
        let keys = rows.iter().filter_map(|row| row.try_get::<String, _>(0).ok());
        Ok(keys.filter_map(|key| Key::try_from(key).ok()).collect())
    }

    /// Lets a fence pass the gate, in a transaction of its own.
    pub(super) async fn check_fence(
        &self,
        name: &str,
        fence: Fence,
    ) -> sqlx::Result<Result<(), StaleFence>> {
        // To check the same fence again changes nothing.
        on_open_connection!(&self.pool, |connection| {
            let mut tx = connection.begin().await?;
            let checked = PostgresFenceGate::check(&mut tx, name, fence).await?;
            tx.commit().await?;
            Ok(checked)
        })
    }

    fn viewed(&self, during: &'static str, row: &PgRow) -> Result<(Rules<RequesterInfo>, Moment)> {
        let wrong = |e| error::driver(during, e);
        let now = record::moment(row.try_get(0).map_err(wrong)?);
        let rows = parsed(during, row.try_get(1).map_err(wrong)?)?;
        let rules = record::rules(&rows, &self.client, now);
        Ok((rules.map_err(|what| error::unreadable(during, what))?.0, now))
    }

    /// In a transaction where a pooler might else give the parts of a statement to two servers.
    async fn read<'q>(&self, query: impl Fn() -> Query<'q>) -> sqlx::Result<Vec<PgRow>> {
        on_open_connection!(&self.pool, |connection| {
            let mut tx = connection.begin().await?;
            let rows = query().fetch_all(&mut *tx).await?;
            tx.commit().await?;
            Ok(rows)
        })
    }

    /// A statement that the session remembers only where the session is ours. The driver would look
    /// for it by its text among those that are remembered, so the text differs too.
    fn query<'q>(&self, sql: &'static str) -> Query<'q> {
        match self.has_own_sessions() {
            true => sqlx::query(sql),
            false => sqlx::query(AssertSqlSafe(format!("{sql} -- once"))).persistent(false),
        }
    }

    /// Whether a connection keeps its session, as far as is known.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.own_sessions.load(Ordering::Acquire)
    }

    /// Whether this error gives a pooler away that looked honest when it was asked.
    pub(super) fn learns_from(&self, error: &sqlx::Error) -> bool {
        let mixed_up = is_mixed_up(error);
        if mixed_up {
            self.own_sessions.store(false, Ordering::Release);
        }
        mixed_up
    }

    /// Takes the server's time, in microseconds since 1970, from the answer to a message.
    pub(super) fn observe_time(&self, server_us: i64, sent_at: Moment) {
        self.server_clock.observe(error::NAME, server_us, sent_at, self.clock.now());
    }

    /// Ends a lease by the rules, or leaves the queue. True when it was held and had not expired.
    /// `lost` is the error of a message before this one whose answer was lost.
    pub(super) async fn release_by_rules(
        &self,
        key: &Key,
        id: Id,
        lost: Option<Error>,
    ) -> Result<bool> {
        let change = |rules: &mut Rules<_>, _: &mut _| {
            let held = rules.release(id).is_some();
            if !held {
                rules.leave(id);
            }
            held
        };
        let held = self.edit("releasing", key, change).await?.0;
        match lost {
            // Ended by the message whose answer was lost, or before: which of them is not known.
            Some(lost) if !held => Err(lost),
            _ => Ok(held),
        }
    }
}

/// The rights that are missing, among the rows of a message that asked for them.
fn missing_of(rows: &[PgRow]) -> Option<String> {
    rows.iter().find_map(|row| row.try_get::<Option<String>, _>("missing").ok()).flatten()
}

/// The number of a key's advisory lock.
pub(super) fn lock_number(key: &Key) -> i64 {
    record::number_of("latchwork_lock:", key.as_str())
}

/// Begins an edit. A pooled connection may have died since it was used, so a broken one is no
/// reason to give up: nothing was asked of it yet.
async fn begin(pool: &PgPool, number: i64) -> sqlx::Result<JobConnection> {
    let mut left = pool.options().get_max_connections();
    loop {
        let mut connection = JobConnection::open(pool).await?;
        let begin = sqlx::raw_sql(AssertSqlSafe(schema::begin(number)));
        match in_time(begin.execute(&mut *connection)).await {
            Ok(_) => return Ok(connection),
            Err(error) => match undo(connection, error).await {
                error if left > 0 && is_broken(&error) => left -= 1,
                error => return Err(error),
            },
        }
    }
}

/// Stores that some processes seem to be dead. Not with the edit, which must not wait for a row
/// that others write, too; if it is not stored, the next hand-off finds out again.
async fn doubt(pool: &PgPool, clients: &BTreeMap<Arc<str>, Moment>, now: Moment) {
    let doubts: String = clients
        .iter()
        .map(|(client, alive)| schema::doubt(client, record::micros(*alive), record::micros(now)))
        .collect();
    if !doubts.is_empty()
        && let Err(error) = execute_raw(pool, doubts).await
    {
        tracing::debug!(%error, "it is not stored that a process seems to be dead");
    }
}

async fn execute_raw(pool: &PgPool, sql: String) -> sqlx::Result<Vec<PgRow>> {
    on_open_connection!(pool, |connection| {
        sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_all(&mut *connection).await
    })
}

/// Ends a transaction by its last word.
async fn end(mut connection: JobConnection, word: &'static str) -> sqlx::Result<()> {
    let ended = in_time(sqlx::raw_sql(word).execute(&mut *connection)).await;
    connection.mark_answered(&ended);
    ended.map(drop)
}

/// Rolls back, if the server is still there to do it.
async fn undo(connection: JobConnection, error: sqlx::Error) -> sqlx::Error {
    if matches!(error, sqlx::Error::Database(_)) {
        let _ = end(connection, schema::ROLLBACK).await;
    }
    error
}

/// Whether somebody has been in the middle of an edit for longer than a message waits.
pub(super) fn is_held_up(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|told| told.code()).as_deref() == Some("55P03")
}

fn loaded(during: &'static str, row: &PgRow) -> Result<(Moment, Vec<i64>, Vec<Row>)> {
    let wrong = |e| error::driver(during, e);
    let now = record::moment(row.try_get(0).map_err(wrong)?);
    let fences = row.try_get(1).map_err(wrong)?;
    Ok((now, fences, parsed(during, row.try_get(2).map_err(wrong)?)?))
}

fn parsed(during: &'static str, text: &str) -> Result<Vec<Row>> {
    serde_json::from_str(text).map_err(|e| error::unreadable(during, e))
}
