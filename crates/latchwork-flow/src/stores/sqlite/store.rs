//! The port on a file.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::Clock;
use latchwork_sql::sqlite::{Options, Sqlite, migrate};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row, SqlitePool};

use super::boot::{DueStamp, Here, ns, until, wall};
use super::claim_due::{self, ClaimFound};
use super::error::{self, NAME};
use super::record::{self, Record};
use super::schema::{
    DELETE, HEARTBEAT, LAYER, LIST, LIST_DUE, LIST_DUE_END, LIST_END, LIST_ENTITY, LIST_HELD,
    LIST_MACHINE, LIST_ORPHANED, LIST_QUARANTINED, LIST_STATUS, LOAD, NEXT_DUE, PRUNE, STEPS,
    schema,
};
use super::writer::{Stop, Writer};
use crate::store::{
    Beat, CancelRequest, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest,
    ContextStore, DueClaim, GiveBack, Proof, RunClaim, Save, Saved, StoredContext, View,
};
use crate::stores::columns::{COUNT, number, span, stored, summary, time, token_text};
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
    writer: Arc<Writer>,
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

    /// Contexts in the database of a pool. It opens connections of its own, as durable as the pool's,
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
        self.writer.close().await;
        self.sqlite.close().await;
    }

    async fn of(opened: latchwork_sql::Result<Sqlite>) -> Result<Self> {
        let wrong = |e| error::sql(OPENING, e);
        let sqlite = opened.map_err(wrong)?;
        migrate(&sqlite, LAYER, STEPS).await.map_err(wrong)?;
        Self::migrated(sqlite, Here::new()).await
    }

    async fn migrated(sqlite: Sqlite, here: Here) -> Result<Self> {
        let direct = sqlite.direct().await.map_err(|e| error::sql(OPENING, e))?;
        let writer = Arc::new(Writer::new(sqlite.clone(), direct));
        Ok(SqliteContextStore { sqlite, writer, here })
    }

    /// The same store by another clock, for tests that set the wall clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        SqliteContextStore { here: self.here.with_clock(clock), ..self }
    }

    /// A read must see what others write, and so be of the file that they find.
    fn readers(&self, during: &'static str) -> Result<&SqlitePool> {
        self.sqlite.still_there().map_err(|e| error::sql(during, e))?;
        Ok(self.sqlite.readers())
    }

    /// One change of one row, by the rules.
    async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        id: TransitionId,
        change: impl Fn(&mut StoredContext, DateTime<Utc>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let here = self.here.clone();
        self.writer.change(during, move |on| edit_row(during, on, id, &here, &change)).await
    }
}

/// One change of one row, inside a transaction.
fn edit_row<T>(
    during: &'static str,
    on: &Connection,
    id: TransitionId,
    here: &Here,
    change: impl Fn(&mut StoredContext, DateTime<Utc>) -> Result<T>,
) -> Result<T, Stop> {
    let found = Record::load(during, on, id, here)?;
    let mut record = found.ok_or_else(|| Error::context_not_found(id))?;
    let now = wall(record.now());
    let out = change(&mut record.row, now)?;
    record.put(on)?;
    Ok(out)
}

impl ContextStore for SqliteContextStore {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn separate(&self) -> Result<Option<Contexts>> {
        let sqlite = self.sqlite.again().await.map_err(|e| error::sql(OPENING, e))?;
        Ok(Some(Contexts::new(Self::migrated(sqlite, self.here.clone()).await?)))
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(wall(self.here.now()))
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        const DURING: &str = "storing a context";
        let (draft, run, here) = (draft.clone(), run.cloned(), self.here.clone());
        self.writer
            .change(DURING, move |on| {
                let now = here.now();
                let row = StoredContext::create(&draft, run.as_ref(), wall(now));
                if record::create(on, &row, now)? {
                    return Ok(1);
                }
                let there = Record::load(DURING, on, draft.id, &here)?;
                let known = there.is_some_and(|it| it.row.is_repetition(&draft, run.as_ref()));
                if known { Ok(1) } else { Err(Error::context_exists(draft.id).into()) }
            })
            .await
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        const DURING: &str = "loading a context";
        let wrong = |e| error::driver(DURING, e);
        let found = sqlx::query(LOAD).bind(id.to_string());
        let found = found.fetch_optional(self.readers(DURING)?).await.map_err(wrong)?;
        let Some(found) = found else { return Ok(None) };
        let due = DueStamp {
            clock: found.try_get(COUNT).map_err(wrong)?,
            ns: found.try_get(COUNT + 1).map_err(wrong)?,
            of: found.try_get(COUNT + 2).map_err(wrong)?,
        };
        let record = Record::of(DURING, stored(&found, wrong)?, due, self.here.now())?;
        Ok(Some(record.row))
    }

    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        let claim = claim.clone();
        self.edit("claiming a context", id, move |row, now| {
            row.claim(revision, &claim, now)?;
            Ok(row.clone())
        })
        .await
    }

    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        const DURING: &str = ClaimFound::DURING;
        let found = claim_due::find(self.readers(DURING)?, due, self.here.now()).await?;
        // Most often nothing is, and then nobody need wait for the writer.
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let found = ClaimFound {
            ids: found.into_iter().map(|(id, _)| id).collect(),
            claim: due.claim.clone(),
            max_attempts: due.max_attempts,
            here: self.here.clone(),
        };
        self.writer.change(DURING, move |on| found.claim(on)).await
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
        let Save { revision, token, keep, used_signal, progress, .. } = *save;
        let draft = save.draft.clone();
        self.edit("saving a context", draft.id, move |row, now| {
            row.save(&Save { draft: &draft, revision, token, keep, used_signal, progress }, now)
        })
        .await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        let here = self.here.clone();
        self.writer
            .change("renewing a run-lease", move |on| {
                let now = here.now();
                let until = until(now, ttl);
                let mut statement = on.prepare_cached(HEARTBEAT)?;
                let (id, token) = (proof.id.to_string(), token_text(proof.token));
                let values = params![id, token, until.at, now.clock.0, until.ns];
                let cancel = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                let done: Option<(Option<String>, Option<i64>)> =
                    statement.query_row(values, cancel).optional()?;
                let Some((reason, at)) = done else { return Ok(Beat::default()) };
                let at = at.and_then(time).unwrap_or_default();
                Ok(Beat { held: true, cancel: reason.map(|reason| CancelRequest { reason, at }) })
            })
            .await
    }

    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        let GiveBack { postpone, counts, .. } = *how;
        let reason = how.reason.map(str::to_owned);
        let change = move |row: &mut StoredContext, now| {
            let how = GiveBack { postpone, counts, reason: reason.as_deref() };
            Ok(row.release(proof.token, &how, now))
        };
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
        let (name, payload) = (name.to_owned(), payload.clone());
        self.edit("keeping a signal", id, move |row, now| row.signal(&name, &payload, now)).await
    }

    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        let reason = reason.to_owned();
        self.edit("calling a transition off", id, move |row, now| row.cancel(&reason, now)).await
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
        let change =
            move |on: &Connection| Ok(on.prepare_cached(DELETE)?.execute([id.to_string()])?);
        Ok(self.writer.change("removing a context", change).await? == 1)
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        let since = self.here.now().wall.saturating_sub(span(over_for));
        let values = (since, number(limit as u64));
        let change = move |on: &Connection| Ok(on.prepare_cached(PRUNE)?.execute(values)?);
        Ok(self.writer.change("removing what is over", change).await? as u64)
    }
}

impl fmt::Debug for SqliteContextStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteContextStore").finish_non_exhaustive()
    }
}
