//! The port on a server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::{Arguments, Row};

use super::config;
use super::error::{self, NAME};
use super::record::{Again, Record, Rows, Statement, values};
use super::schema::{
    CLAIM_DUE, CREATE, DELETE, HEARTBEAT, LIST, LIST_DUE, LIST_DUE_END, LIST_END, LIST_ENTITY,
    LIST_HELD, LIST_MACHINE, LIST_ORPHANED, LIST_QUARANTINED, LIST_STATUS, MIGRATIONS, NEXT_DUE,
    NOW, PRUNE,
};
use crate::store::{
    Beat, CancelRequest, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest,
    ContextStore, DueClaim, GiveBack, Proof, RunClaim, Save, Saved, StoredContext, View,
};
use crate::stores::columns::{
    COUNT, Columns, micros, number, span, stored, summary, time, token_text,
};
use crate::{Contexts, Error, Result, Status, TransitionId};

/// Contexts in a PostgreSQL database; clones share its pool.
///
/// It may be the database of the locks too. The connections belong to the runtime that opened them:
/// use the store on that one.
///
/// ```no_run
/// # async fn example() -> latchwork_flow::Result<()> {
/// use latchwork_flow::{Contexts, PostgresContextStore};
///
/// let store = PostgresContextStore::connect("postgres://localhost/app").await?;
/// let contexts = Contexts::new(store);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresContextStore {
    rows: Arc<Rows>,
}

impl PostgresContextStore {
    /// Opens a database by its address, and makes the table where it is missing.
    ///
    /// The address is libpq's: `postgres://user:password@host:port/database?sslmode=verify-full`.
    /// That pgbouncer stands between in transaction mode is found out, or said with
    /// `statement-cache-capacity=0`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that is none,
    /// [`StoreBackend`](crate::ErrorKind::StoreBackend) for a server that cannot be used (wrong
    /// password, missing rights, a replica, too old),
    /// [`StoreUnavailable`](crate::ErrorKind::StoreUnavailable) when nobody answers.
    pub async fn connect(address: &str) -> Result<Self> {
        Ok(PostgresContextStore { rows: Arc::new(config::connect(address).await?) })
    }

    /// Uses the caller's own pool.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn from_pool(pool: PgPool) -> Result<Self> {
        Ok(PostgresContextStore { rows: Arc::new(config::from_pool(pool).await?) })
    }

    /// The table as SQL, for those who let nobody but themselves create any.
    pub fn schema() -> String {
        MIGRATIONS.iter().map(|step| step.sql).collect()
    }

    /// Closes the pool, also if it is the caller's own.
    pub async fn close(&self) {
        self.rows.pool.close().await;
    }

    /// One change of one row, by the rules; again while others come in between.
    async fn edit<T>(
        &self,
        during: &'static str,
        id: TransitionId,
        change: impl Fn(&mut StoredContext, DateTime<Utc>) -> Result<T>,
    ) -> Result<T> {
        let mut connection = self.rows.connection(during).await?;
        loop {
            let found = Record::load(during, &self.rows, &mut connection, id).await?;
            let mut record = found.ok_or_else(|| Error::context_not_found(id))?;
            let now = record.now;
            let out = change(&mut record.row, now)?;
            // Each turn that fails is one in which somebody else has got on.
            if record.put(during, &self.rows, &mut connection).await? {
                return Ok(out);
            }
        }
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

    async fn query(
        &self,
        during: &'static str,
        again: Again,
        sql: &'static str,
        fill: impl FnOnce(&mut PgArguments) -> Result<(), sqlx::error::BoxDynError>,
    ) -> Result<Vec<PgRow>> {
        let values = values(during, fill)?;
        self.rows.execute(Statement { during, sql: sql.into(), values, again }).await
    }
}

impl ContextStore for PostgresContextStore {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn separate(&self) -> Result<Option<Contexts>> {
        let rows = Arc::new(self.rows.separate());
        Ok(Some(Contexts::new(PostgresContextStore { rows })))
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        const DURING: &str = "asking for the time";
        let rows = self.query(DURING, Again::Yes, NOW, |_| Ok(())).await?;
        let row = rows.first().ok_or_else(|| error::no_answer(DURING))?;
        let now = row.try_get(0).map_err(|e| error::driver(DURING, e))?;
        time(now).ok_or_else(|| error::no_answer(DURING))
    }

    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        const DURING: &str = "storing a context";
        let row = StoredContext::create(draft, run, self.now().await?);
        let columns = Columns::of(&row)?;
        // Said twice it finds its own row, which is no error.
        if self.query(DURING, Again::Yes, CREATE, |to| columns.bind(to, true)).await?.len() == 1 {
            return Ok(1);
        }
        let there = self.load(draft.id).await?;
        let known = there.is_some_and(|there| there.is_repetition(draft, run));
        if known { Ok(1) } else { Err(Error::context_exists(draft.id)) }
    }

    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        const DURING: &str = "loading a context";
        let mut connection = self.rows.connection(DURING).await?;
        let found = Record::load(DURING, &self.rows, &mut connection, id).await?;
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
        let wrong = |e| error::driver(DURING, e);
        let claim = due.claim;
        let exclude: Vec<String> = due.exclude.iter().map(ToString::to_string).collect();
        // Said twice it may leave some that nobody goes on with, until their run-leases end.
        let found = self.query(DURING, Again::Yes, CLAIM_DUE, |to| {
            to.add(due.machine)?;
            to.add(number(due.limit as u64))?;
            to.add(token_text(claim.token))?;
            to.add(claim.runner.as_str())?;
            to.add(span(claim.ttl))?;
            to.add(i64::from(!due.beside_suspect))?;
            to.add(span(due.back_off).min(60_000_000))?;
            to.add(exclude)
        });
        let mut claimed: Vec<(i64, StoredContext)> = Vec::new();
        for row in found.await? {
            match stored(&row, wrong) {
                Ok(context) if context.head.attempts > due.max_attempts.max(1) => {
                    self.give_up(DURING, &context).await?;
                }
                Ok(context) => claimed.push((row.try_get(COUNT).map_err(wrong)?, context)),
                // It must not keep the others from their turn.
                Err(error) => tracing::warn!(%error, "a context that is due was passed over"),
            }
        }
        claimed.sort_by_key(|(since, context)| (*since, context.head.id));
        Ok(claimed.into_iter().map(|(_, context)| context).collect())
    }

    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        const DURING: &str = "looking for what is due next";
        let rows = self.query(DURING, Again::Yes, NEXT_DUE, |to| to.add(machine)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let left: i64 = row.try_get(0).map_err(|e| error::driver(DURING, e))?;
        Ok(Some(Duration::from_micros(left.max(0).unsigned_abs())))
    }

    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.edit("saving a context", save.draft.id, |row, now| row.save(save, now)).await
    }

    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        const DURING: &str = "renewing a run-lease";
        let done = self.query(DURING, Again::Yes, HEARTBEAT, |to| {
            to.add(proof.id.to_string())?;
            to.add(token_text(proof.token))?;
            to.add(span(ttl))
        });
        let done = done.await?;
        let Some(row) = done.first() else { return Ok(Beat::default()) };
        let wrong = |e| error::driver(DURING, e);
        let reason: Option<String> = row.try_get(0).map_err(wrong)?;
        let at: Option<i64> = row.try_get(1).map_err(wrong)?;
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
        let now = match filter.view {
            View::Due => Some(micros(self.now().await?)),
            _ => None,
        };
        let values = values(DURING, |to| {
            to.add(page.after.unwrap_or(TransitionId::LEAST).to_string())?;
            // One more than wanted tells whether there is more.
            to.add(number(page.limit as u64).saturating_add(1))?;
            let quarantined = filter.status == Some(Status::Quarantined);
            let status = filter.status.map(Status::name).filter(|_| !quarantined);
            sql += if quarantined { LIST_QUARANTINED } else { "" };
            let wanted = [
                (LIST_MACHINE, filter.machine.as_deref()),
                (LIST_ENTITY, filter.entity.as_deref()),
                (LIST_STATUS, status),
            ];
            for (condition, value) in wanted {
                let Some(value) = value else { continue };
                to.add(value)?;
                sql += &format!("{condition}{}", to.len());
            }
            if let Some(now) = now {
                to.add(now)?;
                sql += &format!("{LIST_DUE}{}", to.len());
            }
            Ok(())
        })?;
        sql += match filter.view {
            View::All | View::Due => "",
            View::Orphaned => LIST_ORPHANED,
            View::Held => LIST_HELD,
        };
        sql += if now.is_some() { LIST_DUE_END } else { LIST_END };
        let statement = Statement { during: DURING, sql: sql.into(), values, again: Again::Yes };
        let rows = self.rows.execute(statement).await?;
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
        let done = self.query("removing a context", Again::No, DELETE, |to| to.add(id.to_string()));
        Ok(done.await?.len() == 1)
    }

    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        let done = self.query("removing what is over", Again::No, PRUNE, |to| {
            to.add(span(over_for))?;
            to.add(number(limit as u64))
        });
        Ok(done.await?.len() as u64)
    }
}

impl fmt::Debug for PostgresContextStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresContextStore").finish_non_exhaustive()
    }
}
