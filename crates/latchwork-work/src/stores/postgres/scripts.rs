//! Claims and submissions as one statement each, for many agents at once.
//!
//! By the general way they take a dozen messages. These do the same moves with the same events in one,
//! and count limits in it: the rows of all limits that concern it are locked in the order of their keys,
//! behind everything else, and what they leave room for is leased. Where a limit is unknown, or holds
//! something back, less is leased, and the general way decides about the rest. States are compared in
//! the statement that writes them, as everywhere; the caller hands in the moves, which only the tables
//! make.
//!
//! What a full limit of the type or of agents would refuse is not locked in the first place (`room`, by what
//! is committed), so that who waits for such a limit hinders nobody; the limit is counted under its lock
//! all the same.
//!
//! A statement sees the rows as they were when it began, and may wait for a limit after that. So what a
//! freed lane lets in is opened by a function, which looks anew (`latchwork_work_open_lanes`).

use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_sql::postgres::{JobConnection, in_time, is_unheard};
use serde::Serialize;
use serde_json::Value;
use sqlx::postgres::PgPool;

use super::error;
use super::session::{bind, cells};
use super::statements::STATEMENTS;
use crate::store::{Cells, Param, has_to_follow, json, params, progress_row, rows, span};
use crate::{EventId, Item, ItemMove, ItemState, LeaseId, OrderId, OrderState, Result, Submitted};

/// What claims that share a statement have in common.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) order_type: String,
    pub(crate) min_priority: i64,
    pub(crate) meta: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat_every: Duration,
    /// From queued to leased.
    pub(crate) step: ItemMove,
    /// How many leases the type may have.
    pub(crate) max_of_type: Option<u32>,
    /// How many leases an agent may have.
    pub(crate) max_of_agent: Option<u32>,
}

/// A lease that an agent wants.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Slot {
    /// Its turn.
    pub(crate) n: usize,
    pub(crate) agent: String,
    pub(crate) lease: LeaseId,
    pub(crate) event: EventId,
    pub(crate) provenance: Option<String>,
}

/// What a claim came to.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) leases: Vec<PlainLease>,
    /// Whether the general way may find more: a limit is unknown, or a lane that is full has items that
    /// are not put aside. If not, what is open has been leased, or others are about to.
    pub(crate) is_unsure: bool,
}

/// An item that was leased.
#[derive(Debug)]
pub(crate) struct PlainLease {
    pub(crate) item: Item,
    pub(crate) id: LeaseId,
    pub(crate) leased_at: DateTime<Utc>,
    pub(crate) order_state: OrderState,
    pub(crate) input: Value,
}

/// The result of one leased item.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlainSubmission {
    pub(crate) lease: LeaseId,
    pub(crate) agent: String,
    pub(crate) actor_type: &'static str,
    pub(crate) result: String,
    pub(crate) evidence: Option<String>,
    pub(crate) notes: Option<String>,
    pub(crate) provenance: Option<String>,
    pub(crate) first: EventId,
    pub(crate) second: EventId,
}

/// What a submission did.
#[derive(Debug)]
pub(crate) struct PlainSubmitted {
    /// The submission's own event, which tells it from another one of the same lease.
    pub(crate) event: EventId,
    pub(crate) submitted: Submitted,
    pub(crate) order_type: String,
    /// Whether its lease counted for a limit.
    pub(crate) was_counted: bool,
    /// Types of which something can be leased now that a lane held back.
    pub(crate) opened: Vec<String>,
}

macro_rules! now {
    () => {
        "t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)"
    };
}

/// type (1), priority (2), meta (3), ttl (4), heartbeat (5), slots as JSON rows (6), how many (7), the move
/// (8, 9), the limits of the type (10) and of an agent (11).
const CLAIM: &str = concat!(
    "WITH ",
    now!(),
    ", slot AS MATERIALIZED (SELECT * FROM json_to_recordset($6::json) AS x (n bigint, agent text, \
     lease uuid, event uuid, provenance text)), \
     room AS MATERIALIZED (SELECT least((SELECT count(*) FROM (SELECT agent, row_number() OVER \
     (PARTITION BY agent ORDER BY n) AS of_agent FROM slot) s LEFT JOIN latchwork_work_limit m \
     ON m.key = 'agent:' || s.agent AND m.max = $11 WHERE m.key IS NULL OR s.of_agent <= m.max - m.held), \
     coalesce((SELECT greatest(m.max - m.held, 0) FROM latchwork_work_limit m \
     WHERE m.key = 'type:' || $1 AND m.max = $10), $7)) AS n), \
     picked AS MATERIALIZED (SELECT r.item_id, r.lane, o.state AS order_state \
     FROM latchwork_work_ready r JOIN latchwork_work_order o ON o.id = r.order_id \
     WHERE r.type = $1 AND r.hold = 0 AND r.priority >= $2 \
     AND o.state IN ('queued', 'checked_out', 'in_progress') \
     AND ($3::text IS NULL OR NOT EXISTS (SELECT 1 FROM jsonb_each($3::jsonb) w \
     WHERE o.meta -> w.key IS DISTINCT FROM w.value)) \
     ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT (SELECT n FROM room) FOR UPDATE OF r SKIP LOCKED), \
     numbered AS MATERIALIZED (SELECT item_id, lane, order_state, row_number() OVER () AS n \
     FROM picked), \
     counting AS (SELECT lane AS key FROM picked WHERE lane IS NOT NULL \
     UNION SELECT 'type:' || $1 FROM picked WHERE $10::bigint IS NOT NULL \
     UNION SELECT 'agent:' || agent FROM slot WHERE $11::bigint IS NOT NULL \
     AND EXISTS (SELECT 1 FROM picked)), \
     lim AS MATERIALIZED (SELECT m.key, m.max, m.max - m.held AS room FROM latchwork_work_limit m \
     WHERE m.key IN (SELECT key FROM counting) ORDER BY m.key FOR UPDATE OF m), \
     free AS (SELECT p.item_id, p.order_state, row_number() OVER (ORDER BY p.n) AS n \
     FROM (SELECT *, row_number() OVER (PARTITION BY lane ORDER BY n) AS in_lane FROM numbered) p \
     LEFT JOIN lim ON lim.key = p.lane WHERE p.lane IS NULL OR p.in_lane <= lim.room), \
     place AS (SELECT s.agent, s.lease, s.event, s.provenance, row_number() OVER (ORDER BY s.n) AS n \
     FROM (SELECT *, row_number() OVER (PARTITION BY agent ORDER BY n) AS of_agent FROM slot) s \
     LEFT JOIN lim ON lim.key = 'agent:' || s.agent \
     WHERE $11::bigint IS NULL OR lim.max = $11 AND s.of_agent <= lim.room), \
     given AS MATERIALIZED (SELECT f.item_id, f.order_state, p.* FROM free f JOIN place p USING (n) \
     LEFT JOIN lim ON lim.key = 'type:' || $1 \
     WHERE $10::bigint IS NULL OR lim.max = $10 AND p.n <= lim.room), \
     gone AS (DELETE FROM latchwork_work_ready r USING given g WHERE r.item_id = g.item_id), \
     leased AS (UPDATE latchwork_work_item i SET state = $9, version = i.version + 1, \
     attempts = i.attempts + 1, fence = i.fence + 1, leased_at = t.now, updated_at = t.now \
     FROM given g, t WHERE i.id = g.item_id AND i.state = $8 \
     RETURNING i.*, g.n, g.order_state, g.agent, g.lease, g.event, g.provenance), \
     counted AS (UPDATE latchwork_work_limit m SET held = m.held + c.more FROM (SELECT key, \
     count(*) AS more FROM (SELECT lane AS key FROM leased WHERE lane IS NOT NULL \
     UNION ALL SELECT 'type:' || $1 FROM leased WHERE $10::bigint IS NOT NULL \
     UNION ALL SELECT 'agent:' || agent FROM leased WHERE $11::bigint IS NOT NULL) k GROUP BY key) c \
     WHERE m.key = c.key), \
     made AS (INSERT INTO latchwork_work_lease (id, item_id, order_id, type, agent, lane, counted, \
     fence, ttl, heartbeat_every, leased_at, expires_at, heartbeat_at, heartbeat_event_at) \
     SELECT i.lease, i.id, i.order_id, i.type, i.agent, i.lane, \
     CASE WHEN $11::bigint IS NULL THEN 0 ELSE 1 END + CASE WHEN $10::bigint IS NULL THEN 0 ELSE 2 END \
     + CASE WHEN i.lane IS NULL THEN 0 ELSE 4 END, \
     i.fence, $4, $5, t.now, t.now + $4, t.now, t.now FROM leased i, t), \
     told AS (INSERT INTO latchwork_work_event (id, order_id, item_id, event, actor_type, actor_id, \
     payload, provenance, created_at) SELECT i.event, i.order_id, i.id, 'leased', 'agent', i.agent, \
     json_build_object('lease_id', i.lease, 'fence', i.fence, 'lease_expires_at', \
     to_char(to_timestamp((t.now + $4) / 1000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') \
     || '.' || lpad(((t.now + $4) % 1000000)::text, 6, '0') || 'Z', 'attempt', i.attempts)::text, \
     i.provenance, t.now FROM leased i, t ORDER BY i.n), \
     unsure AS (SELECT EXISTS (SELECT 1 FROM (SELECT lane, row_number() OVER (PARTITION BY lane \
     ORDER BY n) AS in_lane FROM numbered) p LEFT JOIN lim ON lim.key = p.lane \
     WHERE p.lane IS NOT NULL AND (lim.key IS NULL OR p.in_lane > lim.room)) \
     OR EXISTS (SELECT 1 FROM picked) AND ($10::bigint IS NOT NULL AND NOT EXISTS (SELECT 1 FROM lim \
     WHERE key = 'type:' || $1 AND max = $10) OR $11::bigint IS NOT NULL AND EXISTS (SELECT 1 FROM slot s \
     WHERE NOT EXISTS (SELECT 1 FROM lim WHERE key = 'agent:' || s.agent AND max = $11))) AS it) \
     SELECT u.it::int::bigint, (i.id IS NOT NULL)::int::bigint, i.id::text, i.order_id::text, i.seq, \
     i.type, i.state, i.version, i.priority, i.attempts, i.max_attempts, i.available_at, i.concurrency, \
     i.fence, i.leased_at, i.accepted_at, i.error, i.results, i.created_at, i.lease::text, t.now, \
     i.order_state, b.input \
     FROM unsure u CROSS JOIN t LEFT JOIN (leased i JOIN latchwork_work_input b ON b.item_id = i.id) \
     ON true ORDER BY i.n"
);

/// Submissions as JSON rows (1), the states on the way (2, 3, 4).
const SUBMIT: &str = concat!(
    "WITH ",
    now!(),
    ", given AS MATERIALIZED (SELECT * FROM json_to_recordset($1::json) AS x (lease uuid, agent text, \
     actor_type text, result text, evidence text, notes text, provenance text, first uuid, \
     second uuid)), \
     before AS MATERIALIZED (SELECT g.*, i.id, i.order_id, i.state AS was, i.version, \
     i.results AS had, l.fence, l.counted, l.lane, l.type FROM given g \
     JOIN latchwork_work_lease l ON l.id = g.lease AND l.agent = g.agent \
     JOIN latchwork_work_item i ON i.id = l.item_id JOIN latchwork_work_order o ON o.id = l.order_id, \
     t WHERE l.expires_at > t.now AND i.state IN ($2, $3) \
     AND o.state IN ('queued', 'checked_out', 'in_progress', 'failed')), \
     done AS (UPDATE latchwork_work_item i SET state = $4, version = i.version + 1, \
     results = b.had + 1, error = NULL, updated_at = t.now FROM before b, t WHERE i.id = b.id \
     AND i.version = b.version AND i.state = b.was RETURNING b.*), \
     ended AS (DELETE FROM latchwork_work_lease l USING done d WHERE l.item_id = d.id), \
     kept AS (INSERT INTO latchwork_work_result (item_id, version, actor_type, actor_id, result, \
     created_at) SELECT d.id, d.had + 1, d.actor_type, d.agent, d.result, t.now FROM done d, t), \
     told AS (INSERT INTO latchwork_work_event (id, order_id, item_id, event, actor_type, actor_id, \
     payload, provenance, created_at) SELECT e.id, d.order_id, d.id, e.event, d.actor_type, d.agent, \
     CASE WHEN e.n = 2 THEN json_build_object('result_version', d.had + 1, 'lease_id', d.lease, \
     'fence', d.fence, 'evidence', d.evidence::json, 'notes', d.notes)::text END, d.provenance, t.now \
     FROM done d, t, LATERAL (VALUES (1, d.first, $3), (2, d.second, $4)) AS e (n, id, event) \
     WHERE e.n = 2 OR d.was = $2 ORDER BY d.id, e.n), \
     freed AS MATERIALIZED (SELECT key, count(*) AS less FROM (SELECT lane AS key FROM done \
     WHERE counted & 4 <> 0 UNION ALL SELECT 'type:' || type FROM done WHERE counted & 2 <> 0 \
     UNION ALL SELECT 'agent:' || agent FROM done WHERE counted & 1 <> 0) k GROUP BY key), \
     lim AS MATERIALIZED (SELECT m.key FROM latchwork_work_limit m \
     WHERE m.key IN (SELECT key FROM freed) ORDER BY m.key FOR UPDATE OF m), \
     counted AS (UPDATE latchwork_work_limit m SET held = greatest(m.held - f.less, 0) FROM freed f \
     WHERE m.key = f.key AND m.key IN (SELECT key FROM lim) RETURNING m.key) \
     SELECT d.second::text, d.id::text, d.order_id::text, d.had + 1, d.type, d.counted, \
     (SELECT latchwork_work_open_lanes(json_agg(key)) FROM counted \
     WHERE key >= 'key:' AND key < 'key;' HAVING count(*) > 0) FROM done d"
);

/// Single statements, each of which is a transaction by itself.
#[derive(Clone)]
pub(crate) struct Scripts {
    pool: PgPool,
}

impl Scripts {
    pub(super) fn new(pool: PgPool) -> Self {
        Scripts { pool }
    }

    /// One statement.
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

    /// Leases the first items, as many as there are slots and as limits leave.
    pub(super) async fn claim(&self, wanted: &Wanted, slots: &[Slot]) -> Result<Claimed> {
        let max = |max: Option<u32>| max.map(i64::from);
        let values = params![
            wanted.order_type.as_str(),
            wanted.min_priority,
            wanted.meta.clone(),
            span(wanted.ttl),
            span(wanted.heartbeat_every),
            json(&slots)?,
            i64::try_from(slots.len()).unwrap_or(i64::MAX),
            wanted.step.from().as_str(),
            wanted.step.to().as_str(),
            max(wanted.max_of_type),
            max(wanted.max_of_agent),
        ];
        let read = |mut row: Cells| -> Result<PlainLease> {
            Ok(PlainLease {
                item: rows::item(&mut row)?,
                id: row.parse()?,
                leased_at: row.time()?,
                order_state: row.parse()?,
                input: row.json()?,
            })
        };
        let mut claimed = Claimed::default();
        for mut row in self.once(CLAIM, values).await? {
            claimed.is_unsure = row.int()? != 0;
            if row.int()? != 0 {
                claimed.leases.push(read(row)?);
            }
        }
        Ok(claimed)
    }

    /// Submits results of leases that are not over; those that are missing in the answer were not
    /// submitted. Of several for one lease the database takes one, and says which.
    pub(super) async fn submit(
        &self,
        submissions: &[&PlainSubmission],
        steps: [ItemMove; 2],
    ) -> Result<Vec<PlainSubmitted>> {
        let [first, second] = steps;
        let values = params![
            json(&submissions)?,
            first.from().as_str(),
            second.from().as_str(),
            second.to().as_str(),
        ];
        let read = |mut row: Cells| {
            let event = row.parse()?;
            let submitted = Submitted {
                item_id: row.parse()?,
                order_id: row.parse()?,
                state: second.to(),
                result_version: row.number()?,
            };
            let (order_type, was_counted) = (row.text()?, row.int()? != 0);
            let opened = row.opt_json()?.unwrap_or_default();
            Ok(PlainSubmitted { event, submitted, order_type, was_counted, opened })
        };
        self.once(SUBMIT, values).await?.into_iter().map(read).collect()
    }

    /// Those of the orders that have to follow their items (see `manager::follow`).
    pub(super) async fn lagging(&self, orders: &[OrderId]) -> Result<Vec<OrderId>> {
        let found = self.once(STATEMENTS.order_progress, params![json(&orders)?]).await?;
        let mut lagging = Vec::new();
        for mut row in found {
            let (order, state, has_open_items) = progress_row(&mut row)?;
            if has_to_follow(state, has_open_items) {
                lagging.push(order);
            }
        }
        Ok(lagging)
    }
}

/// The moves of a submission: from leased to in_progress, and from there to submitted.
pub(crate) fn submission_steps(tables: &crate::TransitionTables) -> Result<[ItemMove; 2]> {
    Ok([
        tables.item_move(ItemState::Leased, ItemState::InProgress)?,
        tables.item_move(ItemState::InProgress, ItemState::Submitted)?,
    ])
}
