//! A claim and a submission as one statement each, for what most of them are.
//!
//! By the general way they take ten messages. These do the same moves with the same events in one, and
//! only where no limit counts: a claim whose first items are in no lane, a submission whose lease counts
//! for nothing. Where that is not so they change nothing, and the general way decides. States are
//! compared in the statement that writes them, as everywhere; the caller hands in the moves, which only
//! the tables make.

use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_sql::postgres::{JobConnection, in_time, is_unheard};
use serde::Serialize;
use serde_json::Value;

use super::error;
use super::session::{bind, cells};
use super::statements::STATEMENTS;
use super::store::PostgresStore;
use crate::store::{Cells, Param, Statements, params, rows, span};
use crate::{Actor, EventId, Item, ItemMove, LeaseId, OrderState, Provenance, Result, Submitted};

/// A claim of items of one type.
pub(crate) struct PlainClaim<'a> {
    pub(crate) order_type: &'a str,
    pub(crate) min_priority: i64,
    pub(crate) meta: Option<String>,
    pub(crate) agent: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat_every: Duration,
    pub(crate) limit: usize,
    pub(crate) provenance: &'a Provenance,
    /// From queued to leased.
    pub(crate) step: ItemMove,
}

/// An item that was leased.
pub(crate) struct PlainLease {
    pub(crate) item: Item,
    pub(crate) id: LeaseId,
    pub(crate) leased_at: DateTime<Utc>,
    pub(crate) order_state: OrderState,
    pub(crate) input: Value,
}

/// A submission of one item.
pub(crate) struct PlainSubmission<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) agent: &'a str,
    pub(crate) actor: &'a Actor,
    pub(crate) result: String,
    pub(crate) evidence: Option<String>,
    pub(crate) notes: Option<&'a str>,
    pub(crate) provenance: &'a Provenance,
    /// From leased to in_progress, and from there to submitted.
    pub(crate) steps: [ItemMove; 2],
}

macro_rules! now {
    () => {
        "t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)"
    };
}

/// type (1), priority (2), meta (3), agent (4), ttl (5), heartbeat (6), ids as JSON rows (7), how many (8),
/// provenance (9), the move (10, 11).
const CLAIM: &str = concat!(
    "WITH ",
    now!(),
    ", picked AS MATERIALIZED (SELECT r.item_id, r.lane, o.state AS order_state \
     FROM latchwork_work_ready r JOIN latchwork_work_order o ON o.id = r.order_id \
     WHERE r.type = $1 AND r.hold = 0 AND r.priority >= $2 \
     AND o.state IN ('queued', 'checked_out', 'in_progress') \
     AND ($3::text IS NULL OR NOT EXISTS (SELECT 1 FROM jsonb_each($3::jsonb) w \
     WHERE o.meta -> w.key IS DISTINCT FROM w.value)) \
     ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT $8 FOR UPDATE OF r SKIP LOCKED), \
     plain AS MATERIALIZED (SELECT item_id, order_state, row_number() OVER () AS n FROM picked \
     WHERE NOT EXISTS (SELECT 1 FROM picked WHERE lane IS NOT NULL)), \
     gone AS (DELETE FROM latchwork_work_ready r USING plain p WHERE r.item_id = p.item_id), \
     leased AS (UPDATE latchwork_work_item i SET state = $11, version = i.version + 1, \
     attempts = i.attempts + 1, fence = i.fence + 1, leased_at = t.now, updated_at = t.now \
     FROM plain p, t WHERE i.id = p.item_id AND i.state = $10 \
     RETURNING i.*, p.n, p.order_state), \
     ids AS MATERIALIZED (SELECT * FROM json_to_recordset($7::json) AS x (n bigint, lease uuid, \
     event uuid)), \
     made AS (INSERT INTO latchwork_work_lease (id, item_id, order_id, type, agent, lane, counted, \
     fence, ttl, heartbeat_every, leased_at, expires_at, heartbeat_at, heartbeat_event_at) \
     SELECT ids.lease, i.id, i.order_id, i.type, $4, NULL, 0, i.fence, $5, $6, t.now, t.now + $5, \
     t.now, t.now FROM leased i JOIN ids USING (n), t), \
     told AS (INSERT INTO latchwork_work_event (id, order_id, item_id, event, actor_type, actor_id, \
     payload, provenance, created_at) SELECT ids.event, i.order_id, i.id, 'leased', 'agent', $4, \
     json_build_object('lease_id', ids.lease, 'fence', i.fence, 'lease_expires_at', \
     to_char(to_timestamp((t.now + $5) / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') \
     || '.' || lpad(((t.now + $5) % 1000000)::text, 6, '0') || 'Z', 'attempt', i.attempts)::text, \
     $9, t.now FROM leased i JOIN ids USING (n), t ORDER BY i.n) \
     SELECT i.id::text, i.order_id::text, i.seq, i.type, i.state, i.version, i.priority, i.attempts, \
     i.max_attempts, i.available_at, i.concurrency, i.fence, i.leased_at, i.accepted_at, i.error, \
     i.results, i.created_at, ids.lease::text, t.now, i.order_state, b.input \
     FROM leased i JOIN ids USING (n) JOIN latchwork_work_input b ON b.item_id = i.id, t ORDER BY i.n"
);

/// lease (1), agent (2), result (3), evidence as JSON (4), notes (5), provenance (6), two event ids (7, 8),
/// the states on the way (9, 10, 11), actor type (12).
const SUBMIT: &str = concat!(
    "WITH ",
    now!(),
    ", before AS MATERIALIZED (SELECT i.id, i.order_id, i.state AS was, i.version, i.results, \
     l.fence FROM latchwork_work_lease l JOIN latchwork_work_item i ON i.id = l.item_id \
     JOIN latchwork_work_order o ON o.id = l.order_id, t WHERE l.id = $1::uuid AND l.agent = $2 \
     AND l.expires_at > t.now AND l.counted = 0 AND i.state IN ($9, $10) \
     AND o.state IN ('queued', 'checked_out', 'in_progress', 'failed')), \
     done AS (UPDATE latchwork_work_item i SET state = $11, version = i.version + 1, \
     results = b.results + 1, error = NULL, updated_at = t.now FROM before b, t WHERE i.id = b.id \
     AND i.version = b.version AND i.state = b.was RETURNING i.id, i.order_id, i.results, b.was, \
     b.fence), \
     ended AS (DELETE FROM latchwork_work_lease l USING done d WHERE l.item_id = d.id), \
     kept AS (INSERT INTO latchwork_work_result (item_id, version, actor_type, actor_id, result, \
     created_at) SELECT d.id, d.results, $12, $2, $3, t.now FROM done d, t), \
     told AS (INSERT INTO latchwork_work_event (id, order_id, item_id, event, actor_type, actor_id, \
     payload, provenance, created_at) SELECT e.id, d.order_id, d.id, e.event, $12, $2, \
     CASE WHEN e.n = 2 THEN json_build_object('result_version', d.results, 'lease_id', $1::uuid, \
     'fence', d.fence, 'evidence', $4::json, 'notes', $5::text)::text END, $6, t.now \
     FROM done d, t, (VALUES (1, $7::uuid, $10), (2, $8::uuid, $11)) AS e (n, id, event) \
     WHERE e.n = 2 OR d.was = $9 ORDER BY e.n) \
     SELECT id::text, order_id::text, results FROM done"
);

#[derive(Serialize)]
struct Ids {
    n: usize,
    lease: LeaseId,
    event: EventId,
}

impl PostgresStore {
    /// Whether a statement may be asked by itself: behind a pooler its parts could meet two servers.
    pub(crate) fn has_scripts(&self) -> bool {
        !self.lends_sessions
    }

    pub(crate) fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    /// One statement, which is a transaction by itself.
    pub(crate) async fn once(&self, sql: &'static str, params: Vec<Param>) -> Result<Vec<Cells>> {
        let values = bind(params)?;
        let mut left = self.pool.options().get_max_connections();
        let answer = loop {
            let mut connection = JobConnection::open(&self.pool).await.map_err(error::driver)?;
            let query = sqlx::query_with(sql, values.clone());
            let answer = in_time(query.fetch_all(&mut *connection)).await;
            connection.mark_answered(&answer);
            match answer {
                // It idled for too long and was closed; nothing was done.
                Err(error) if left > 0 && is_unheard(&error) => left -= 1,
                answer => break answer,
            }
        };
        answer.map_err(error::driver)?.iter().map(cells).collect()
    }

    /// Leases items of one type: the first ones, if none of them is in a lane.
    pub(crate) async fn claim(
        &self,
        claim: &PlainClaim<'_>,
        at: DateTime<Utc>,
    ) -> Result<Vec<PlainLease>> {
        let ids = |n| Ids { n, lease: LeaseId::new(at), event: EventId::new(at) };
        let ids: Vec<_> = (1..=claim.limit).map(ids).collect();
        let values = params![
            claim.order_type,
            claim.min_priority,
            claim.meta.clone(),
            claim.agent,
            span(claim.ttl),
            span(claim.heartbeat_every),
            crate::store::json(&ids)?,
            i64::try_from(claim.limit).unwrap_or(i64::MAX),
            provenance(claim.provenance)?,
            claim.step.from().as_str(),
            claim.step.to().as_str(),
        ];
        let read = |mut row: Cells| {
            Ok(PlainLease {
                item: rows::item(&mut row)?,
                id: row.parse()?,
                leased_at: row.time()?,
                order_state: row.parse()?,
                input: row.json()?,
            })
        };
        self.once(CLAIM, values).await?.into_iter().map(read).collect()
    }

    /// Submits the result of a lease that counts for no limit; none if it is not such a one.
    pub(crate) async fn submit(
        &self,
        submission: &PlainSubmission<'_>,
        at: DateTime<Utc>,
    ) -> Result<Option<Submitted>> {
        let [first, second] = submission.steps;
        let values = params![
            submission.lease,
            submission.agent,
            submission.result.as_str(),
            submission.evidence.clone(),
            submission.notes.map(str::to_owned),
            provenance(submission.provenance)?,
            EventId::new(at),
            EventId::new(at),
            first.from().as_str(),
            second.from().as_str(),
            second.to().as_str(),
            submission.actor.actor_type.as_str(),
        ];
        let rows = self.once(SUBMIT, values).await?;
        let read = |mut row: Cells| {
            Ok(Submitted {
                item_id: row.parse()?,
                order_id: row.parse()?,
                state: second.to(),
                result_version: row.number()?,
            })
        };
        rows.into_iter().next().map(read).transpose()
    }
}

fn provenance(provenance: &Provenance) -> Result<Option<String>> {
    (!provenance.is_empty()).then(|| crate::store::json(provenance)).transpose()
}
