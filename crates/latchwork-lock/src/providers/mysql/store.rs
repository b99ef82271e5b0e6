//! Where the truth lives: a key's row, and others under its lock.

use std::sync::Arc;
use std::time::Duration;

use latchwork_sql::mysql::{
    Line, Lines, in_time, is_broken, is_collision, is_duplicate, is_timeout,
};
use parking_lot::Mutex;
use sqlx::mysql::{MySql, MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Execute, Executor};

use super::record::{self, Asker, Record, Row};
use super::transaction::Transaction;
use super::{error, schema};
use crate::coordination::server_clock::ServerClock;
use crate::desk::Desk;
use crate::retry::Backoff;
use crate::rules::{Held, Id, Party, Rules};
use crate::{Clock, Error, Fence, Grant, Inspection, Key, Moment, Page, PageRequest, Result};

/// How long a process counts as alive after it said so; it says so often enough to miss some.
pub(super) const ALIVE: Duration = Duration::from_secs(6);

/// The shortest time between two signs of life of a process that waits.
const BEAT: Duration = Duration::from_millis(700);

/// How often an edit that collided with another is tried again.
const TRIES: usize = 8;

/// The longest label of a process that is stored.
const LABEL: usize = 512;

pub(super) struct Store {
    pub(super) lines: Lines,
    pub(super) clock: Arc<dyn Clock>,
    /// Random: names this provider among all that use the database.
    pub(super) client: Id,
    pub(super) process: Arc<str>,
    pub(super) desk: Arc<Desk>,
    /// Until when, by our own clock, the server surely counts this process as alive.
    alive_until: Mutex<Moment>,
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
    pub(super) fn new(lines: Lines, clock: Arc<dyn Clock>, desk: Arc<Desk>) -> Self {
        let label = crate::process_label();
        let label: String =
            label.char_indices().take_while(|(at, _)| at + 4 <= LABEL).map(|(_, c)| c).collect();
        Store {
            lines,
            clock,
            client: rand::random(),
            process: label.into(),
            desk,
            alive_until: Mutex::new(Moment::default()),
            server_clock: ServerClock::default(),
            swept: Mutex::default(),
        }
    }

    /// One change of a key, then hands the key on to whoever is next. Answers what the change
    /// said, the rules as they are now, and the server's time. A failure has changed nothing, or
    /// its answer was lost. A change may be asked more than once: what collided was undone.
    pub(super) async fn edit<T>(
        &self,
        during: &'static str,
        key: &Key,
        mut change: impl FnMut(&mut Rules<Asker>, &mut Edit) -> T,
    ) -> Result<(T, Rules<Asker>, Moment)> {
        let mut backoff = Backoff::new(Duration::from_millis(2));
        let mut left = TRIES;
        loop {
            match self.try_edit(key, &mut change).await {
                Ok(done) => return Ok(done),
                Err(Trouble::Driver(error)) if left > 0 && is_collision(&error) => {
                    // Who has waited for seconds already waits once more, not many times.
                    left = if is_timeout(&error) { 0 } else { left - 1 };
                    tokio::time::sleep(backoff.pause()).await;
                }
                Err(Trouble::Driver(error)) => return Err(error::driver(during, error)),
                Err(Trouble::Unreadable(what)) => return Err(error::unreadable(during, what)),
            }
        }
    }

    async fn try_edit<T>(
        &self,
        key: &Key,
        change: &mut impl FnMut(&mut Rules<Asker>, &mut Edit) -> T,
    ) -> Result<(T, Rules<Asker>, Moment), Trouble> {
        let name = key.as_str().as_bytes();
        let sent_at = self.clock.now();
        let (tx, now, before) = self.begin(name).await?;
        self.heard_time(record::micros(now), sent_at);
        let (mut rules, absent) = match before.rules(self.client, now) {
            Ok(read) => read,
            Err(what) => {
                tx.roll_back().await?;
                return Err(Trouble::Unreadable(what));
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
        let beats = joins && !self.is_alive();
        let begun = self.clock.now();
        if beats {
            words += &schema::beat(self.client, ALIVE.as_micros());
            words += "; ";
        }
        for (client, alive) in &absent.doubted {
            words += &schema::doubt(*client, record::micros(*alive), record::micros(now));
        }
        handed.iter().for_each(|(id, _)| self.desk.set_in_hand(*id, true));
        let committed = tx.commit(words).await;
        if committed.is_err() {
            handed.iter().for_each(|(id, _)| self.desk.set_in_hand(*id, false));
        }
        committed?;
        if beats {
            self.was_alive_at(begun);
        }
        for (id, grant) in handed {
            self.desk.deliver(id, grant, self.clock.now());
        }
        self.tell(&rules, &before, now);
        Ok((out, rules, now))
    }

    /// Begins an edit. A pooled connection may have died since it was used, so a broken one is no
    /// reason to give up: nothing was changed by it yet.
    async fn begin(&self, name: &[u8]) -> Result<(Transaction, Moment, Record), Trouble> {
        let mut left = self.lines.count();
        let mut made = false;
        loop {
            let (tx, rows) = match Transaction::begin(&self.lines, name).await {
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
                return Err(Trouble::Unreadable(what.into()));
            }
            // A row that nobody else can see yet would not be locked by others: it is made first.
            self.execute(sqlx::raw_sql(AssertSqlSafe(schema::create(name)))).await?;
        }
    }

    /// Takes a key that nobody uses, in one message if it was used lately, else in two.
    pub(super) async fn take(
        &self,
        during: &'static str,
        key: &Key,
        party: &Party<Asker>,
    ) -> Result<Taken> {
        let name = key.as_str().as_bytes();
        let row = Row::of(party);
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
            return Ok(Taken::Unknown);
        };
        match (found.rows_affected(), found.last_insert_id()) {
            (1.., fence) => return Ok(Taken::Granted(Fence::new(fence))),
            (0, schema::IN_USE) => return Ok(Taken::Unknown),
            (0, schema::IS_WRITTEN) => return Ok(Taken::ByWriter),
            (0, _) => {}
        }
        let insert = sqlx::raw_sql(AssertSqlSafe(schema::take_new(name, &row)));
        match self.execute(insert).await {
            // Somebody was faster.
            Err(error) if is_duplicate(&error) => Ok(Taken::Unknown),
            out => Ok(short(during, out)?
                .filter(|made| made.rows_affected() == 1)
                .map_or(Taken::Unknown, |made| Taken::Granted(Fence::new(made.last_insert_id())))),
        }
    }

    /// Gives back a key that nobody else uses, in one message: true when that was all. The inner
    /// error is a connection that died, perhaps long before: whether it was heard is not known.
    pub(super) async fn give_back(
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

    /// Renews the lease that most keys have, in one message; false where the rules must decide.
    pub(super) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let ttl = record::ttl_micros(ttl);
        let query = sqlx::query(schema::RENEW)
            .bind(ttl)
            .bind(ttl)
            .bind(key.as_str().as_bytes())
            .bind(id.to_be_bytes().to_vec());
        let sent_at = self.clock.now();
        let done = short(during, self.execute(query).await)?;
        let Some(done) = done.filter(|done| done.rows_affected() == 1) else { return Ok(false) };
        self.heard_time(i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX), sent_at);
        Ok(true)
    }

    /// Those of this process who wait here and whose turn has come need not claim it: the process
    /// [sees to it](crate::handed) that they take it up.
    fn begin_leases(
        &self,
        rules: &mut Rules<Asker>,
        before: &Record,
        now: Moment,
        sent_at: Moment,
    ) -> Vec<(Id, Grant)> {
        let is_ours = |held: &&mut Held<Asker>| {
            let (id, client) = (held.party.id, held.party.extra.client);
            !held.claimed && client == self.client && !before.holds(id) && self.desk.waits(id)
        };
        let begin = |held: &mut Held<Asker>| {
            held.claimed = true;
            held.expires = now.after(held.party.ttl);
            (held.party.id, held.grant(true, Some(sent_at)))
        };
        rules.holders.iter_mut().filter(is_ours).map(begin).collect()
    }

    /// Tells those of this process who may claim the key, and the next in line when something
    /// ahead runs out. Others look.
    fn tell(&self, rules: &Rules<Asker>, before: &Record, now: Moment) {
        for held in rules.holders.iter().filter(|held| !held.claimed) {
            if !before.holds(held.party.id) {
                self.desk.call(held.party.id);
            }
        }
        if let Some(first) = rules.queue.front() {
            let left = rules.next_expiry().since(now);
            self.desk.set_due(first.id, self.clock.now().after(left));
        }
    }

    /// The rules of a key without changing anything, and the server's time.
    pub(super) async fn peek(
        &self,
        during: &'static str,
        key: &Key,
    ) -> Result<(Rules<Asker>, Moment)> {
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
                    keys.push(record::reporter(now).inspection(&name, &rules, Asker::label));
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
        let mut left = self.lines.count();
        loop {
            let query = sqlx::raw_sql(AssertSqlSafe(sql.clone()));
            let mut line = Line::open(&self.lines).await?;
            let rows = in_time(line.fetch_all(query)).await;
            line.heard(&rows);
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
        let mut line = Line::open(&self.lines).await?;
        let done = in_time(line.execute(query)).await;
        line.heard(&done);
        done
    }

    fn is_ours_waiting(&self, row: &Row) -> bool {
        row.fence.is_none() && row.client == self.client
    }

    /// Takes the server's time, in microseconds since 1970, from the answer to a message.
    pub(super) fn heard_time(&self, server_us: i64, sent_at: Moment) {
        self.server_clock.observe(error::NAME, server_us, sent_at, self.clock.now());
    }

    /// Whether the server will count this process as alive for a while yet.
    pub(super) fn is_alive(&self) -> bool {
        self.alive_until.lock().since(self.clock.now()) > ALIVE / 2
    }

    /// Whether it is time for the next sign of life: in any claim window there must be one, or the
    /// process is [doubted](crate::coordination::liveness) when one of its tasks does not look.
    pub(super) fn must_beat(&self) -> bool {
        self.alive_until.lock().since(self.clock.now()) <= ALIVE - BEAT
    }

    pub(super) fn was_alive_at(&self, moment: Moment) {
        *self.alive_until.lock() = moment.after(ALIVE);
    }
}

/// What became of a key that was asked for on the short way.
pub(super) enum Taken {
    Granted(Fence),
    /// A writer holds it.
    ByWriter,
    /// The rules must decide.
    Unknown,
}

/// Why an edit did not come about.
enum Trouble {
    Driver(sqlx::Error),
    Unreadable(String),
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Decode(what) => Trouble::Unreadable(what.to_string()),
            error => Trouble::Driver(error),
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
