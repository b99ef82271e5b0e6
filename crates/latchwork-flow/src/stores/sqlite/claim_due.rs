//! What a runner claims: found by reading, and claimed by one statement if it is still due then.

use latchwork_sql::sqlite::boot::Now;
use latchwork_sql::sqlite::explain_direct;
use rusqlite::{Connection, params};
use serde_json::Value;
use sqlx::SqlitePool;

use super::boot::{DueStamp, Here, ns, until, wall};
use super::error;
use super::record::Record;
use super::schema::{CLAIM, DUE, DUE_SUSPECTS};
use super::writer::Stop;
use crate::Result;
use crate::store::{DueClaim, RunClaim, StoredContext};
use crate::stores::columns::{Columns, number, span, token_text};

/// What is due now, the longest due first: id and since when.
pub(super) async fn find(
    readers: &SqlitePool,
    due: &DueClaim<'_>,
    now: Now,
) -> Result<Vec<(String, i64)>> {
    let exclude = json_list(due.exclude.iter().map(ToString::to_string));
    let back_off = span(due.back_off).min(60_000_000);
    let ask = async |sql, limit: usize| -> Result<Vec<(String, i64)>> {
        let query = sqlx::query_as(sql).bind(due.machine).bind(now.wall);
        let query = query.bind(now.clock.0).bind(ns(now.ns)).bind(number(limit as u64));
        let query = query.bind(back_off).bind(&exclude);
        query.fetch_all(readers).await.map_err(|e| error::driver(ClaimFound::DURING, e))
    };
    let mut found = Vec::new();
    if !due.beside_suspect {
        found = ask(DUE_SUSPECTS, due.limit.min(1)).await?;
    }
    found.extend(ask(DUE, due.limit - found.len()).await?);
    found.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    Ok(found)
}

/// What claims what is due, as the writer's thread needs it.
pub(super) struct ClaimFound {
    /// In which order they are due.
    pub(super) ids: Vec<String>,
    pub(super) claim: RunClaim,
    pub(super) max_attempts: u32,
    pub(super) here: Here,
}

impl ClaimFound {
    pub(super) const DURING: &str = "claiming what is due";

    /// Claims those that are still due, and gives up those that were claimed once too often.
    pub(super) fn claim(&self, on: &Connection) -> Result<Vec<StoredContext>, Stop> {
        let now = self.here.now();
        let until = until(now, self.claim.ttl);
        let ids = json_list(self.ids.iter().cloned());
        let token = token_text(self.claim.token);
        let (ns, runner) = (ns(now.ns), &self.claim.runner);
        let mut statement = on.prepare_cached(CLAIM)?;
        let values = params![ids, now.wall, now.clock.0, ns, token, runner, until.at, until.ns];
        let mut rows = statement.query(values)?;
        let mut claimed = Vec::with_capacity(self.ids.len());
        while let Some(row) = rows.next()? {
            let read = Columns::read_direct(row)
                .map_err(|e| error::sql(Self::DURING, explain_direct(e)))
                .and_then(Columns::stored);
            match read {
                Ok(row) => claimed.push(row),
                // It must not keep the others from their turn.
                Err(error) => tracing::warn!(%error, "a context that is due was passed over"),
            }
        }
        let most = self.max_attempts.max(1);
        let (mut claimed, too_often): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|row| row.head.attempts <= most);
        for row in too_often {
            let mut record = Record::of(Self::DURING, row, DueStamp::default(), now)?;
            record.row.give_up_claimed(wall(now));
            record.put(on)?;
        }
        claimed.sort_by_key(|row| {
            let id = row.head.id.to_string();
            self.ids.iter().position(|found| *found == id)
        });
        Ok(claimed)
    }
}

/// Ids as `json_each` wants them; they have nothing to escape.
fn json_list(ids: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = ids.map(|id| Value::String(id).to_string()).collect();
    format!("[{}]", quoted.join(","))
}
