//! The port on a file.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::{Clock, SystemClock};
use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqlitePool};

use super::error::{self, NAME};
use super::record::{self, Record};
use super::schema::{
    ANY_DUE, DELETE, DUE, HEARTBEAT, LAYER, LIST, LIST_DUE, LIST_DUE_END, LIST_END, LIST_ENTITY,
    LIST_HELD, LIST_MACHINE, LIST_ORPHANED, LIST_STATUS, NEXT_DUE, PRUNE, SCHEMA, STEPS,
};
use crate::store::{
    Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest, ContextStore, Proof,
    RunClaim, Save, Saved, StoredContext, View,
};
use crate::stores::columns::{micros, number, span, stored, time, token_text};
use crate::{Error, Result, Status, TransitionId};

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
    clock: Arc<dyn Clock>,
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
    pub fn schema() -> &'static str {
        SCHEMA
    }

    /// Closes the connections; whoever still uses the store is told that it is unavailable.
    pub async fn close(&self) {
        self.sqlite.close().await;
    }

    async fn of(opened: latchwork_sql::Result<Sqlite>) -> Result<Self> {
        let wrong = |e| error::sql(OPENING, e);
        let sqlite = opened.map_err(wrong)?;
        migrate(&sqlite, LAYER, STEPS).await.map_err(wrong)?;
        Ok(SqliteContextStore { sqlite, clock: SystemClock::shared() })
    }

    /// As finely as it is stored.
    fn time(&self) -> DateTime<Utc> {
        let now = self.clock.wall();
        time(micros(now)).unwrap_or(now)
    }

    /// Whoever writes must write to the file that others read …
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
            let found = Record::load(during, self.sqlite.readers(), id).await?;
            let mut record = found.ok_or_else(|| Error::context_not_found(id))?;
            let out = change(&mut record.row, self.time())?;
            // Each turn that fails is one in which somebody else has got on.
            if record.put(during, writer).await? {
                return Ok(out);
            }
        }
    }
}

impl ContextStore for SqliteContextStore {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.time())
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        const DURING: &str = "storing a context";
        let row = StoredContext::create(draft, run, self.time());
        if record::create(DURING, self.writer(DURING)?, &row).await? {
            return Ok(1);
        }
        let there = Record::load(DURING, self.sqlite.readers(), draft.id).await?;
        let known = there.is_some_and(|there| there.row.is_repetition(draft, run));
        if known { Ok(1) } else { Err(Error::context_exists(draft.id)) }
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        const DURING: &str = "loading a context";
        let found = Record::load(DURING, self.readers(DURING)?, id).await?;
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

    async fn claim_due(
        &self,
        machine: &str,
        limit: usize,
        claim: &RunClaim,
    ) -> Result<Vec<StoredContext>> {
        const DURING: &str = "claiming what is due";
        let wrong = |e| error::driver(DURING, e);
        // Most often nothing is, and then nobody need wait for a writer.
        let any = sqlx::query_scalar(ANY_DUE).bind(machine).bind(micros(self.time()));
        if !any.fetch_one(self.readers(DURING)?).await.map_err(wrong)? {
            return Ok(Vec::new());
        }
        let mut writing = self.sqlite.begin().await.map_err(|e| error::sql(DURING, e))?;
        let now = self.time();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let due = sqlx::query(DUE).bind(machine).bind(micros(now)).bind(limit);
        let due = due.fetch_all(&mut *writing).await.map_err(wrong)?;
        let mut claimed = Vec::with_capacity(due.len());
        for row in due {
            let mut record = match Record::read(DURING, &row) {
                Ok(record) => record,
                Err(error) => {
                    // It must not keep the others from their turn.
                    tracing::warn!(%error, "a context that is due was passed over");
                    continue;
                }
            };
            if record.row.claim(None, claim, now).is_ok() {
                record.put(DURING, &mut *writing).await?;
                claimed.push(record.row);
            }
        }
        writing.commit().await.map_err(wrong)?;
        Ok(claimed)
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        const DURING: &str = "looking for what is due next";
        let next = sqlx::query_scalar(NEXT_DUE).bind(machine);
        let next: Option<i64> = next
            .fetch_optional(self.readers(DURING)?)
            .await
            .map_err(|e| error::driver(DURING, e))?;
        let left = next.map(|at| at.saturating_sub(micros(self.time())).max(0));
        Ok(left.map(|left| Duration::from_micros(left.unsigned_abs())))
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.edit("saving a context", save.draft.id, |row, now| row.save(save, now)).await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<bool> {
        const DURING: &str = "renewing a run-lease";
        let writer = self.writer(DURING)?;
        let until = micros(self.time()).saturating_add(span(ttl));
        let query = sqlx::query(HEARTBEAT).bind(proof.id.to_string());
        let query = query.bind(token_text(proof.token)).bind(until);
        let done = query.execute(writer).await.map_err(|e| error::driver(DURING, e))?;
        Ok(done.rows_affected() == 1)
    }

    async fn release(&self, proof: Proof) -> Result<bool> {
        let change = |row: &mut StoredContext, _| Ok(row.release(proof.token));
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
        sql += filter.status.map_or("", |_| LIST_STATUS);
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
        let query = query.bind(micros(self.time())).bind(filter.machine.as_deref());
        let query = query.bind(filter.entity.as_deref()).bind(filter.status.map(Status::name));
        let wrong = |e| error::driver(DURING, e);
        let rows = query.fetch_all(self.readers(DURING)?).await.map_err(wrong)?;
        let found = rows.iter().map(|row| Ok(stored(row, wrong)?.head.summary()));
        Ok(ContextPage::cut(found.collect::<Result<_>>()?, page.limit))
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

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        const DURING: &str = "removing a context";
        let writer = self.writer(DURING)?;
        let done = sqlx::query(DELETE).bind(id.to_string()).execute(writer).await;
        Ok(done.map_err(|e| error::driver(DURING, e))?.rows_affected() == 1)
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        const DURING: &str = "removing what is over";
        let writer = self.writer(DURING)?;
        let since = micros(self.time()).saturating_sub(span(over_for));
        let query = sqlx::query(PRUNE).bind(since).bind(number(limit as u64));
        let done = query.execute(writer).await.map_err(|e| error::driver(DURING, e))?;
        Ok(done.rows_affected())
    }
}

impl fmt::Debug for SqliteContextStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteContextStore").finish_non_exhaustive()
    }
}
