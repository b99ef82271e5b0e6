//! The port on a file.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::Clock;
use latchwork_sql::sqlite::boot::{Now, Stamp};
use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqlitePool};

use super::boot::Here;
use super::error::{self, NAME};
use super::record::{self, Record};
use super::schema::{
    CLAIM, DELETE, DUE, DUE_SUSPECTS, HEARTBEAT, LAYER, LIST, LIST_DUE, LIST_DUE_END, LIST_END,
    LIST_ENTITY, LIST_HELD, LIST_MACHINE, LIST_ORPHANED, LIST_QUARANTINED, LIST_STATUS, NEXT_DUE,
    PRUNE, STEPS, schema,
};
use crate::store::{
    Beat, CancelRequest, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest,
    ContextStore, DueClaim, GiveBack, Proof, RunClaim, Save, Saved, StoredContext, View,
};
use crate::stores::columns::{number, span, stored, summary, time, token_text};
use crate::{Contexts, Error, Result, Status, TransitionId};

const OPENING: &str = "opening the database";

/// Contexts in an SQLite file; clones share its connections.
///
/// It may be the file of the locks too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_flow::{Contexts, SqliteContextStore};
/// use latchwork_flow::store::{ContextFilter, ContextPageRequest};
///
/// # let dir = tempfile::tempdir()?;
/// # let file = dir.path().join("flows.db");
/// let contexts = Contexts::new(SqliteContextStore::open_file(file).await?);
/// let page = contexts.list(&ContextFilter::default(), &ContextPageRequest::default()).await?;
/// assert!(page.contexts.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteContextStore {
    sqlite: Sqlite,
    here: Here,
}

impl SqliteContextStore {
    /// Opens the file that `sqlite:///directory/file.db` names, with the parameters `mode=rwc` (the
    /// default) or `rw`, and `synchronous=full` (the default) or `normal`, with which a power cut
    /// may take back the last saves, and so run actions again.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`StoreBackend`](crate::ErrorKind::StoreBackend) for a file that cannot be used.
    pub async fn open(url: &str) -> Result<Self> {
        let options = Options::parse(url).map_err(|e| Error::invalid_argument("url", e.message))?;
        Self::of(Sqlite::open(&options).await).await
    }

    /// Opens a file, and makes it where it is missing; its directory must exist.
    ///
    /// # Errors
    /// [`StoreBackend`](crate::ErrorKind::StoreBackend) for a file that cannot be used.
    pub async fn open_file(path: impl Into<PathBuf>) -> Result<Self> {
        Self::of(Sqlite::open(&Options::at(path)).await).await
    }

    /// Contexts in the database of a pool. It opens connections of its own with the pool's settings,
    /// and so takes none away from it.
    ///
    /// # Errors
    /// [`StoreBackend`](crate::ErrorKind::StoreBackend) when the database is in memory or cannot be
    /// used.
    pub async fn from_pool(pool: &SqlitePool) -> Result<Self> {
        Self::of(Sqlite::from_pool(pool).await).await
    }

    /// The tables as SQL, to be looked at.
    pub fn schema() -> String {
        schema()
    }

    /// Closes the connections; later calls fail with `store_unavailable`.
    pub async fn close(&self) {
        self.sqlite.close().await;
    }

    async fn of(opened: latchwork_sql::Result<Sqlite>) -> Result<Self> {
        let wrong = |e| error::sql(OPENING, e);
        let sqlite = opened.map_err(wrong)?;
        migrate(&sqlite, LAYER, STEPS).await.map_err(wrong)?;
        Ok(SqliteContextStore { sqlite, here: Here::new() })
    }

    /// The same store by another clock, for tests that set the wall clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        SqliteContextStore { here: self.here.with_clock(clock), ..self }
    }

    /// A write must go to the file that others read …
    fn writer(&self, during: &'static str) -> Result<&SqlitePool> {
        self.sqlite.still_there().map_err(|e| error::sql(during, e))?;
        Ok(self.sqlite.writer())
    }

    /// … and read the one that others write: a new connection would make a new file.
    fn readers(&self, during: &'static str) -> Result<&SqlitePool> {
        self.sqlite.still_there().map_err(|e| error::sql(during, e))?;
        Ok(self.sqlite.readers())
    }

    /// One change of one row, by the rules; again while others come in between.
    async fn edit<T>(
        &self,
        during: &'static str,
        id: TransitionId,
        change: impl Fn(&mut StoredContext, DateTime<Utc>) -> Result<T>,
    ) -> Result<T> {
        let writer = self.writer(during)?;
        loop {
            let found = Record::load(during, self.sqlite.readers(), id, || self.here.now()).await?;
            let mut record = found.ok_or_else(|| Error::context_not_found(id))?;
            let now = wall(record.now());
            let out = change(&mut record.row, now)?;
            // Each turn that fails is one in which somebody else has got on.
            if record.put(during, writer).await? {
                return Ok(out);
            }
        }
    }
}

impl SqliteContextStore {
    /// What is due now, the longest due first: id and since when.
    async fn find_due(
        &self,
        during: &'static str,
        due: &DueClaim<'_>,
        now: Now,
    ) -> Result<Vec<(String, i64)>> {
        let readers = self.readers(during)?;
        let exclude = json_list(due.exclude.iter().map(ToString::to_string));
        let back_off = span(due.back_off).min(60_000_000);
        let ask = async |sql, limit: usize| -> Result<Vec<(String, i64)>> {
            let query = sqlx::query_as(sql).bind(due.machine).bind(now.wall);
            let query = query.bind(now.clock.0).bind(ns(now.ns)).bind(number(limit as u64));
            let query = query.bind(back_off).bind(&exclude);
            query.fetch_all(readers).await.map_err(|e| error::driver(during, e))
        };
        let mut found = Vec::new();
        if !due.beside_suspect {
            found = ask(DUE_SUSPECTS, due.limit.min(1)).await?;
        }
        found.extend(ask(DUE, due.limit - found.len()).await?);
        found.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        Ok(found)
    }

    /// Gives up what was claimed once too often, unless somebody else has it by now.
    async fn give_up(&self, during: &'static str, claimed: &StoredContext) -> Result<()> {
        let id = claimed.head.id;
        let given_up = self.edit(during, id, |row, now| {
            if row.head.revision == claimed.head.revision {
                row.give_up_claimed(now);
            }
            Ok(())
        });
        match given_up.await {
            Err(error) if error.code() == "context_not_found" => Ok(()),
            other => other,
        }
    }
}

impl ContextStore for SqliteContextStore {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn separate(&self) -> Result<Option<Contexts>> {
        let sqlite = self.sqlite.again().await.map_err(|e| error::sql(OPENING, e))?;
        Ok(Some(Contexts::new(SqliteContextStore { sqlite, here: self.here.clone() })))
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(wall(self.here.now()))
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        const DURING: &str = "storing a context";
        let now = self.here.now();
        let row = StoredContext::create(draft, run, wall(now));
        if record::create(DURING, self.writer(DURING)?, &row, now).await? {
            return Ok(1);
        }
        let there =
            Record::load(DURING, self.sqlite.readers(), draft.id, || self.here.now()).await?;
        let known = there.is_some_and(|there| there.row.is_repetition(draft, run));
        if known { Ok(1) } else { Err(Error::context_exists(draft.id)) }
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        const DURING: &str = "loading a context";
        let found = Record::load(DURING, self.readers(DURING)?, id, || self.here.now()).await?;
        Ok(found.map(|record| record.row))
    }

    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        self.edit("claiming a context", id, |row, now| {
            row.claim(revision, claim, now)?;
            Ok(row.clone())
        })
        .await
    }

    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        const DURING: &str = "claiming what is due";
        let now = self.here.now();
        let found = self.find_due(DURING, due, now).await?;
        // Most often nothing is, and then nobody need wait for a writer.
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let ids = json_list(found.iter().map(|(id, _)| id.clone()));
        let until = until(now, due.claim.ttl);
        let query = sqlx::query(CLAIM).bind(ids).bind(now.wall).bind(now.clock.0).bind(ns(now.ns));
        let query = query.bind(token_text(due.claim.token)).bind(&due.claim.runner);
        let query = query.bind(until.at).bind(until.ns);
        let wrong = |e| error::driver(DURING, e);
        let rows = query.fetch_all(self.writer(DURING)?).await.map_err(wrong)?;
        let mut claimed = Vec::with_capacity(rows.len());
        for row in rows {
            match stored(&row, wrong) {
                Ok(row) if row.head.attempts > due.max_attempts.max(1) => {
                    self.give_up(DURING, &row).await?;
                }
                Ok(row) => claimed.push(row),
                // It must not keep the others from their turn.
                Err(error) => tracing::warn!(%error, "a context that is due was passed over"),
            }
        }
        claimed.sort_by_key(|row| {
            let id = row.head.id.to_string();
            found.iter().position(|(found, _)| *found == id)
        });
        Ok(claimed)
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        const DURING: &str = "looking for what is due next";
        let now = self.here.now();
        let next = sqlx::query_scalar(NEXT_DUE).bind(machine).bind(now.wall);
        let next = next.bind(now.clock.0).bind(ns(now.ns));
        let left: Option<i64> =
            next.fetch_one(self.readers(DURING)?).await.map_err(|e| error::driver(DURING, e))?;
        Ok(left.map(|left| Duration::from_micros(left.max(0).unsigned_abs())))
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.edit("saving a context", save.draft.id, |row, now| row.save(save, now)).await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        const DURING: &str = "renewing a run-lease";
        let writer = self.writer(DURING)?;
        let now = self.here.now();
        let until = until(now, ttl);
        let query = sqlx::query_as(HEARTBEAT).bind(proof.id.to_string());
        let query = query.bind(token_text(proof.token)).bind(until.at);
        let query = query.bind(now.clock.0).bind(until.ns);
        let done: Option<(Option<String>, Option<i64>)> =
            query.fetch_optional(writer).await.map_err(|e| error::driver(DURING, e))?;
        let Some((reason, at)) = done else { return Ok(Beat::default()) };
        let at = at.and_then(time).unwrap_or_default();
        Ok(Beat { held: true, cancel: reason.map(|reason| CancelRequest { reason, at }) })
    }

    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        let change = |row: &mut StoredContext, now| Ok(row.release(proof.token, how, now));
        match self.edit("giving a run-lease back", proof.id, change).await {
            Err(error) if error.code() == "context_not_found" => Ok(false),
            other => other,
        }
    }

    async fn list(&self, filter: &ContextFilter, page: &ContextPageRequest) -> Result<ContextPage> {
        const DURING: &str = "listing contexts";
        let mut sql = LIST.to_owned();
        sql += filter.machine.as_ref().map_or("", |_| LIST_MACHINE);
        sql += filter.entity.as_ref().map_or("", |_| LIST_ENTITY);
        sql += match filter.status {
            None => "",
            Some(Status::Quarantined) => LIST_QUARANTINED,
            Some(_) => LIST_STATUS,
        };
        sql += match filter.view {
            View::All => "",
            View::Due => LIST_DUE,
            View::Orphaned => LIST_ORPHANED,
            View::Held => LIST_HELD,
        };
        sql += if filter.view == View::Due { LIST_DUE_END } else { LIST_END };
        let after = page.after.map(|id| id.to_string()).unwrap_or_default();
        // One more than wanted tells whether there is more.
        let limit = number(page.limit as u64).saturating_add(1);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(after).bind(limit);
        let query = query.bind(self.here.now().wall).bind(filter.machine.as_deref());
        let query = query.bind(filter.entity.as_deref()).bind(filter.status.map(Status::name));
        let wrong = |e| error::driver(DURING, e);
        let rows = query.fetch_all(self.readers(DURING)?).await.map_err(wrong)?;
        Ok(ContextPage::cut(rows.iter().map(summary), page.limit))
    }

    async fn signal(&self, id: TransitionId, name: &str, payload: &Value) -> Result<()> {
        self.edit("keeping a signal", id, |row, now| row.signal(name, payload, now)).await
    }

    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.edit("calling a transition off", id, |row, now| row.cancel(reason, now)).await
    }

    async fn wake(&self, id: TransitionId) -> Result<()> {
        self.edit("waking a context", id, |row, now| row.wake(now)).await
    }

    async fn retry(&self, id: TransitionId) -> Result<()> {
        self.edit("retrying a transition", id, |row, now| row.retry(now)).await
    }

    async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        const DURING: &str = "releasing a quarantined context";
        self.edit(DURING, id, |row, now| Ok(row.release_quarantined(now))).await
    }

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        const DURING: &str = "removing a context";
        let writer = self.writer(DURING)?;
        let done = sqlx::query(DELETE).bind(id.to_string()).execute(writer).await;
        Ok(done.map_err(|e| error::driver(DURING, e))?.rows_affected() == 1)
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        const DURING: &str = "removing what is over";
        let writer = self.writer(DURING)?;
        let since = self.here.now().wall.saturating_sub(span(over_for));
        let query = sqlx::query(PRUNE).bind(since).bind(number(limit as u64));
        let done = query.execute(writer).await.map_err(|e| error::driver(DURING, e))?;
        Ok(done.rows_affected())
    }
}

/// A reading of the clocks as the rules want it.
fn wall(now: Now) -> DateTime<Utc> {
    time(now.wall).unwrap_or_default()
}

/// The end of a run-lease that begins now, on both clocks.
fn until(now: Now, ttl: Duration) -> Stamp {
    let ttl = u64::try_from(span(ttl)).unwrap_or(0).saturating_mul(1_000);
    now.stamp(now.ns.saturating_add(ttl))
}

fn ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// Ids as `json_each` wants them; they have nothing to escape.
fn json_list(ids: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = ids.map(|id| Value::String(id).to_string()).collect();
    format!("[{}]", quoted.join(","))
}

impl fmt::Debug for SqliteContextStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteContextStore").finish_non_exhaustive()
    }
}
