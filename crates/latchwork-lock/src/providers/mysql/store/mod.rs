//! Where the truth lives: a key's row, and others under its lock.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::mysql::{
    JobConnection, JobConnections, in_time, is_broken, is_collision, is_duplicate, is_timeout,
};
use parking_lot::Mutex;
use sqlx::mysql::{MySql, MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Execute, Executor};

use super::record::{self, ALIVE, Record, RequesterInfo, Row};
use super::transaction::Transaction;
use super::{error, schema};
use crate::coordination::background::Background;
use crate::coordination::liveness::Heartbeat;
use crate::coordination::server_clock::ServerClock;
use crate::coordination::waiters::WaiterRegistry;
use crate::retry::Backoff;
use crate::rules::{HolderState, Id, Requester, Rules};
use crate::{Clock, Error, Fence, Grant, Inspection, Key, Moment, Page, PageRequest, Result};

/// The shortest time between two heartbeats of a process that waits.
const BEAT: Duration = Duration::from_millis(700);

/// How often an edit that collided with another is tried again.
const TRIES: usize = 8;

/// The longest label of a process that is stored.
const LABEL: usize = 512;

/// Runs all work on the database that must run to its end.
pub(super) static BACKGROUND: Background = Background::new(error::NAME);

pub(super) struct Store {
    pub(super) connections: JobConnections,
    /// Renewals have a connection of their own where the pool is the caller's: all of that pool's
    /// connections may be in use, or belong to a runtime that is blocked.
    renewals: JobConnections,
    pub(super) clock: Arc<dyn Clock>,
    /// Random: names this provider among all that use the database.
    pub(super) client: Id,
    pub(super) process: Arc<str>,
    pub(super) waiters: Arc<WaiterRegistry>,
    pub(super) heartbeat: Heartbeat,
    server_clock: ServerClock,
    /// How far the last [sweep](super::sweep) came.
    pub(super) swept: Mutex<Vec<u8>>,
}

/// What a change may use: the server's time, read under the lock, and fences.
pub(super) struct Edit {
    pub(super) now: Moment,
    last: Fence,
}

impl Edit {
    /// Above the last one of the key, and not below the clock.
    pub(super) fn fences(&mut self) -> impl FnMut() -> Fence {
        || {
            let clock = record::micros(self.now).unsigned_abs();
            self.last = Fence::new(clock.max(self.last.get() + 1));
            self.last
        }
    }
}

impl Store {
    pub(super) fn new(
        connections: JobConnections,
        renewals: JobConnections,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let label = crate::process_label();
        let label: String =
            label.char_indices().take_while(|(at, _)| at + 4 <= LABEL).map(|(_, c)| c).collect();
        Store {
            connections,
            renewals,
            clock,
            client: rand::random(),
            process: label.into(),
            waiters: Arc::default(),
            heartbeat: Heartbeat::new(ALIVE, BEAT),
            server_clock: ServerClock::default(),
            swept: Mutex::default(),
        }
    }

    /// One change of a key, then grants the key to the next waiter. Returns what the change
    /// returned, the rules as they are now, and the server's time. A failure has changed nothing, or
    /// its answer was lost. A change may be asked more than once: what collided was undone.
    pub(super) async fn edit<T>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnMut(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment)> {
        self.edit_on(&self.connections, during, key, change).await
    }

    async fn edit_on<T>(
        &self,
        connections: &JobConnections,
        during: &'static str,
        key: &Key,
        mut change: impl FnMut(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment)> {
        let mut backoff = Backoff::new(Duration::from_millis(2));
        let mut left = TRIES;
        loop {
            match self.try_edit(connections, key, &mut change).await {
                Ok(done) => return Ok(done),
                Err(EditError::Driver(error)) if left > 0 && is_collision(&error) => {
                    // Who has waited for seconds already waits once more, not many times.
                    left = if is_timeout(&error) { 0 } else { left - 1 };
                    tokio::time::sleep(backoff.pause()).await;
                }
                Err(EditError::Driver(error)) => return Err(error::driver(during, error)),
                Err(EditError::Unreadable(what)) => return Err(error::unreadable(during, what)),
            }
        }
    }

    async fn try_edit<T>(
        &self,
        connections: &JobConnections,
        key: &Key,
        change: &mut impl FnMut(&mut Rules<RequesterInfo>, &mut Edit) -> T,
    ) -> Result<(T, Rules<RequesterInfo>, Moment), EditError> {
        let name = key.as_str().as_bytes();
        let sent_at = self.clock.now();
        let (tx, now, before) = begin(connections, name).await?;
        self.observe_time(record::micros(now), sent_at);
        let (mut rules, absent) = match before.rules(self.client, now) {
            Ok(read) => read,
            Err(what) => {
                tx.roll_back().await?;
                return Err(EditError::Unreadable(what));
            }
        };
        let mut edit = Edit { now, last: record::fence_of(before.fence) };
        let out = change(&mut rules, &mut edit);
        rules.admit(now, &mut edit.fences(), |_| {});
        let handed = self.begin_leases(&mut rules, &before, now, sent_at);
        let after = before.after(&rules, &absent.silent, edit.last);
        if before.is(&after) {
            tx.roll_back().await?;
            return Ok((out, rules, now));
        }
        let mut words = schema::save(name, &before, &after);
        let joins = before.difference(&after).1.iter().any(|row| self.is_ours_waiting(row));
        let beats = joins && !self.heartbeat.is_alive(self.clock.now());
        let begun = self.clock.now();
        if beats {
            words += &schema::beat(self.client, ALIVE.as_micros());
            words += "; ";
        }
        for (client, alive) in &absent.doubted {
            words += &schema::doubt(*client, record::micros(*alive), record::micros(now));
        }
        handed.iter().for_each(|(id, _)| self.waiters.set_grant_in_flight(*id, true));
        let committed = tx.commit(words).await;
        if committed.is_err() {
            handed.iter().for_each(|(id, _)| self.waiters.set_grant_in_flight(*id, false));
        }
        committed?;
        if beats {
            self.heartbeat.sent(begun);
        }
        for (id, grant) in handed {
            self.waiters.deliver_grant(id, grant, self.clock.now());
        }
        self.wake_local_waiters(&rules, &before, now);
        Ok((out, rules, now))
    }

    /// Takes a key that nobody uses, in one message if it was used lately, else in two.
    pub(super) async fn take(
        &self,
        during: &'static str,
        key: &Key,
        requester: &Requester<RequesterInfo>,
    ) -> Result<TakeOutcome> {
        let name = key.as_str().as_bytes();
        let row = Row::of(requester);
        let query = sqlx::query(schema::TAKE)
            .bind(row.id.to_be_bytes().to_vec())
            .bind(i8::from(row.shared))
            .bind(row.owner.as_deref().map(str::as_bytes))
            .bind(row.note.as_deref().map(str::as_bytes))
            .bind(row.process.as_bytes())
            .bind(row.client.to_be_bytes().to_vec())
            .bind(row.ttl_us)
            .bind(row.ttl_us)
            .bind(name);
        // Whether a lost question was heard, the rules will see by its id.
        let Some(found) = short(during, self.execute(query).await)? else {
            return Ok(TakeOutcome::Unknown);
        };
        match (found.rows_affected(), found.last_insert_id()) {
            (1.., fence) => return Ok(TakeOutcome::Granted(Fence::new(fence))),
            (0, schema::IN_USE) => return Ok(TakeOutcome::Unknown),
            (0, schema::IS_WRITTEN) => return Ok(TakeOutcome::ByWriter),
            (0, _) => {}
        }
        let insert = sqlx::raw_sql(AssertSqlSafe(schema::take_new(name, &row)));
        match self.execute(insert).await {
            // Somebody was faster.
            Err(error) if is_duplicate(&error) => Ok(TakeOutcome::Unknown),
            out => Ok(short(during, out)?
                .filter(|made| made.rows_affected() == 1)
                .map_or(TakeOutcome::Unknown, |made| {
                    TakeOutcome::Granted(Fence::new(made.last_insert_id()))
                })),
        }
    }

    /// Gives back a key that nobody else uses, in one message: true when that was all. The inner
    /// error is a connection that died, perhaps long before: whether it was heard is not known.
    pub(super) async fn release_uncontended(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<Result<bool>> {
        let query = sqlx::query(schema::GIVE_BACK)
            .bind(key.as_str().as_bytes())
            .bind(id.to_be_bytes().to_vec());
        match self.execute(query).await {
            Ok(done) => Ok(Ok(done.rows_affected() == 1)),
            Err(error) if is_collision(&error) => Ok(Ok(false)),
            Err(error) if is_broken(&error) => Ok(Err(error::driver(during, error))),
            Err(error) => Err(error::driver(during, error)),
        }
    }

    /// Starts a new ttl, in one message for the lease that most keys have; false when the id holds
    /// nothing.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let micros = record::ttl_micros(ttl);
        let query = sqlx::query(schema::RENEW)
            .bind(micros)
            .bind(micros)
            .bind(key.as_str().as_bytes())
            .bind(id.to_be_bytes().to_vec());
        let sent_at = self.clock.now();
        let done = short(during, execute(&self.renewals, query).await)?;
        if let Some(done) = done.filter(|done| done.rows_affected() == 1) {
            self.observe_time(i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX), sent_at);
            return Ok(true);
        }
        let renew = |rules: &mut Rules<_>, edit: &mut Edit| rules.renew(id, ttl, edit.now);
        Ok(self.edit_on(&self.renewals, during, key, renew).await?.0)
    }

    /// Those of this process who wait here and whose turn has come need not claim it: the process
    /// [sees to it](crate::coordination::grant_slot) that they take it up.
    fn begin_leases(
        &self,
        rules: &mut Rules<RequesterInfo>,
        before: &Record,
        now: Moment,
        sent_at: Moment,
    ) -> Vec<(Id, Grant)> {
        let is_ours = |held: &&mut HolderState<RequesterInfo>| {
            let (id, client) = (held.requester.id, held.requester.extra.client);
            !held.claimed
                && client == self.client
                && !before.holds(id)
                && self.waiters.is_waiting(id)
        };
        let begin = |held: &mut HolderState<RequesterInfo>| {
            held.claimed = true;
            held.expires = now.after(held.requester.ttl);
            (held.requester.id, held.grant(true, Some(sent_at)))
        };
        rules.holders.iter_mut().filter(is_ours).map(begin).collect()
    }

    /// Tells those of this process who may claim the key, and the next in the queue when something
    /// ahead runs out. Others look.
    fn wake_local_waiters(&self, rules: &Rules<RequesterInfo>, before: &Record, now: Moment) {
        for held in rules.holders.iter().filter(|held| !held.claimed) {
            if !before.holds(held.requester.id) {
                self.waiters.wake(held.requester.id);
            }
        }
        if let Some(first) = rules.queue.front() {
            let left = rules.next_expiry().since(now);
            self.waiters.set_due(first.id, self.clock.now().after(left));
        }
    }

    /// The rules of a key without changing anything, and the server's time.
    pub(super) async fn peek(
        &self,
        during: &'static str,
        key: &Key,
    ) -> Result<(Rules<RequesterInfo>, Moment)> {
        let rows = self.read(schema::peek(key.as_str().as_bytes())).await;
        let rows = rows.map_err(|e| error::driver(during, e))?;
        match record::read(&rows).map_err(|e| error::driver(during, e))?.pop() {
            None => Ok((Rules::default(), Moment::default())),
            Some((_, now, record)) => {
                let rules = record.rules(self.client, now);
                Ok((rules.map_err(|what| error::unreadable(during, what))?.0, now))
            }
        }
    }

    /// A page of the keys that begin like this.
    pub(super) async fn list(
        &self,
        during: &'static str,
        prefix: &str,
        page: &PageRequest,
    ) -> Result<Page> {
        // One more than wanted tells whether there is more.
        let limit = page.limit.saturating_add(1);
        let mut after = page.after.clone().unwrap_or_default().into_bytes();
        let mut keys: Vec<Inspection> = Vec::new();
        while keys.len() < limit {
            let rows = self.read(schema::list(prefix.as_bytes(), &after, limit)).await;
            let rows = rows.map_err(|e| error::driver(during, e))?;
            let found = record::read(&rows).map_err(|e| error::driver(during, e))?;
            let is_last = found.len() < limit;
            for (name, now, record) in found {
                after.clone_from(&name);
                let name = String::from_utf8(name).map_err(|e| error::unreadable(during, e))?;
                let rules = record.rules(self.client, now);
                let (rules, _) = rules.map_err(|what| error::unreadable(during, what))?;
                // Only the dead may be left there.
                if !rules.is_empty() {
                    keys.push(record::reporter(now).inspection(
                        &name,
                        &rules,
                        RequesterInfo::label,
                    ));
                }
            }
            if is_last {
                break;
            }
        }
        keys.truncate(limit);
        Ok(Page::cut(keys, page))
    }

    /// A connection that died while nobody used it is no reason to give up reading.
    pub(super) async fn read(&self, sql: String) -> sqlx::Result<Vec<MySqlRow>> {
        let mut left = self.connections.count();
        loop {
            let query = sqlx::raw_sql(AssertSqlSafe(sql.clone()));
            let mut connection = JobConnection::open(&self.connections).await?;
            let rows = in_time(connection.fetch_all(query)).await;
            connection.mark_answered(&rows);
            match rows {
                Err(error) if left > 0 && is_broken(&error) => left -= 1,
                out => return out,
            }
        }
    }

    /// A statement that is a transaction of its own.
    pub(super) async fn execute<'q>(
        &self,
        query: impl Execute<'q, MySql> + 'q,
    ) -> sqlx::Result<MySqlQueryResult> {
        execute(&self.connections, query).await
    }

    fn is_ours_waiting(&self, row: &Row) -> bool {
        row.fence.is_none() && row.client == self.client
    }

    /// Takes the server's time, in microseconds since 1970, from the answer to a message.
    pub(super) fn observe_time(&self, server_us: i64, sent_at: Moment) {
        self.server_clock.observe(error::NAME, server_us, sent_at, self.clock.now());
    }
}

/// Begins an edit. A pooled connection may have died since it was used, so a broken one is no
/// reason to give up: nothing was changed by it yet.
async fn begin(
    connections: &JobConnections,
    name: &[u8],
) -> Result<(Transaction, Moment, Record), EditError> {
    let mut left = connections.count();
    let mut made = false;
    loop {
        let (tx, rows) = match Transaction::begin(connections, name).await {
            Err(error) if left > 0 && is_broken(&error) => {
                left -= 1;
                continue;
            }
            begun => begun?,
        };
        if let Some((_, now, record)) = record::read(&rows)?.pop() {
            return Ok((tx, now, record));
        }
        tx.roll_back().await?;
        if std::mem::replace(&mut made, true) {
            let what = "a key's row is not kept; is latchwork_lock_floor empty?";
            return Err(EditError::Unreadable(what.into()));
        }
        // A row that nobody else can see yet would not be locked by others: it is made first.
        execute(connections, sqlx::raw_sql(AssertSqlSafe(schema::create(name)))).await?;
    }
}

async fn execute<'q>(
    connections: &JobConnections,
    query: impl Execute<'q, MySql> + 'q,
) -> sqlx::Result<MySqlQueryResult> {
    let mut connection = JobConnection::open(connections).await?;
    let done = in_time(connection.execute(query)).await;
    connection.mark_answered(&done);
    done
}

/// What became of a key that was asked for on the short way.
pub(super) enum TakeOutcome {
    Granted(Fence),
    /// A writer holds it.
    ByWriter,
    /// The rules must decide.
    Unknown,
}

/// Why an edit did not come about.
enum EditError {
    Driver(sqlx::Error),
    Unreadable(String),
}

impl From<sqlx::Error> for EditError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Decode(what) => EditError::Unreadable(what.to_string()),
            error => EditError::Driver(error),
        }
    }
}

/// A statement that is a transaction of its own; none where it collided with another or its
/// connection died, perhaps long before: the rules will see whether it was heard.
fn short(
    during: &'static str,
    out: sqlx::Result<MySqlQueryResult>,
) -> Result<Option<MySqlQueryResult>, Error> {
    match out {
        Ok(done) => Ok(Some(done)),
        Err(error) if is_collision(&error) || is_broken(&error) => Ok(None),
        Err(error) => Err(error::driver(during, error)),
    }
}
