//! The table, and every statement on it.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "flow";

/// The steps, oldest first. Released ones never change.
pub(super) const MIGRATIONS: [Migration; 3] = [
    Migration { version: 1, name: "contexts", sql: FIRST },
    Migration { version: 2, name: "attempts", sql: ATTEMPTS },
    Migration { version: 3, name: "suspects", sql: SUSPECTS },
];

const FIRST: &str = r#"
-- One row for each transition that was stored. Times are microseconds of the server's clock. The
-- body and the token of the run-lease are secrets: who has them can act for the process that is at
-- the context.
CREATE TABLE latchwork_flow_context (
    id uuid PRIMARY KEY,
    machine text COLLATE "C" NOT NULL,
    entity text COLLATE "C",
    status text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    details text NOT NULL,
    wake_at bigint,
    signal text,
    timeout_at bigint,
    renew_at bigint,
    holds_lock boolean NOT NULL,
    run_token text COLLATE "C",
    run_runner text,
    run_expires_at bigint,
    signals text NOT NULL,
    cancel_reason text,
    cancel_at bigint,
    due_at bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    changes bigint NOT NULL,
    body text NOT NULL
);

-- For runners: what is due, without a look at anything that is not.
CREATE INDEX latchwork_flow_context_due ON latchwork_flow_context (machine, due_at, id)
    WHERE due_at IS NOT NULL;

-- For listings.
CREATE INDEX latchwork_flow_context_status ON latchwork_flow_context (status, id);
CREATE INDEX latchwork_flow_context_entity ON latchwork_flow_context (entity, id)
    WHERE entity IS NOT NULL;

-- For pruning.
CREATE INDEX latchwork_flow_context_over ON latchwork_flow_context (updated_at)
    WHERE status NOT IN ('pending', 'running', 'paused') AND NOT holds_lock;
"#;

const ATTEMPTS: &str = r#"
-- How often a context was claimed since it last got on, why that came to nothing, until when runners
-- leave it alone, since when it is quarantined, and when somebody asked for it to go on.
ALTER TABLE latchwork_flow_context
    ADD COLUMN attempts bigint NOT NULL DEFAULT 0,
    ADD COLUMN last_error text,
    ADD COLUMN retry_at bigint,
    ADD COLUMN quarantined_at bigint,
    ADD COLUMN woken_at bigint;

-- For runners: those of which a process is at one at a time.
CREATE INDEX latchwork_flow_context_suspect ON latchwork_flow_context (machine, due_at, id)
    WHERE due_at IS NOT NULL AND attempts >= 2;

-- For listings.
CREATE INDEX latchwork_flow_context_quarantined ON latchwork_flow_context (id)
    WHERE quarantined_at IS NOT NULL;
"#;

const SUSPECTS: &str = r#"
-- A process is at one at a time of all that were tried before, not only of those tried twice.
DROP INDEX latchwork_flow_context_suspect;
CREATE INDEX latchwork_flow_context_suspect ON latchwork_flow_context (machine, due_at, id)
    WHERE due_at IS NOT NULL AND attempts >= 1;
"#;

/// The server's time. In a select of its own where an index is searched by it: of a function that
/// gives something else each time no index can be asked.
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// All columns of a head, in the order of [`Columns`](crate::stores::columns::Columns).
macro_rules! head {
    ($id:literal) => {
        concat!(
            $id,
            ", machine, entity, status, revision, details, wake_at, signal, timeout_at, renew_at, \
             holds_lock, run_token, run_runner, run_expires_at, signals, cancel_reason, cancel_at, \
             due_at, created_at, updated_at, attempts, last_error, retry_at, quarantined_at, \
             woken_at"
        )
    };
}

/// The values of a head, numbered as they are bound.
macro_rules! values {
    () => {
        "$1::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, \
         $19, $20, $21, $22, $23, $24, $25"
    };
}

/// That it is over and has no lock to give back.
macro_rules! over {
    () => {
        "status NOT IN ('pending', 'running', 'paused') AND status <> 'quarantined' \
         AND NOT holds_lock"
    };
}

pub(super) const NOW: &str = concat!("SELECT ", now!());

/// Values: a row with its body.
pub(super) const CREATE: &str = concat!(
    "INSERT INTO latchwork_flow_context (",
    head!("id"),
    ", body, changes) VALUES (",
    values!(),
    ", $26, 0) ON CONFLICT (id) DO NOTHING RETURNING true"
);

/// One row (1), how often it was changed, and the time.
pub(super) const LOAD: &str = concat!(
    "SELECT ",
    head!("id::text"),
    ", body, changes, ",
    now!(),
    " FROM latchwork_flow_context WHERE id = $1::uuid"
);

/// A row without its body, and how often it was changed (26), if that is still so.
pub(super) const PUT: &str = concat!(
    "UPDATE latchwork_flow_context SET (",
    head!("id"),
    ", changes) = (",
    values!(),
    ", $26 + 1) WHERE id = $1::uuid AND changes = $26 RETURNING true"
);

/// The same with its body (26) and the changes behind it (27).
pub(super) const PUT_WITH_BODY: &str = concat!(
    "UPDATE latchwork_flow_context SET (",
    head!("id"),
    ", body, changes) = (",
    values!(),
    ", $26, $27 + 1) WHERE id = $1::uuid AND changes = $27 RETURNING true"
);

/// What [`StoredContext::claim_due`](crate::store::StoredContext::claim_due) says of all that is due
/// of a machine (1), the longest due first, this many (2), for a token (3), a runner (4) and a ttl
/// (5): one suspect or none (6) that has been left alone for the back-off (7), and what nobody has
/// tried yet; not these (8). What is due belongs to nobody: its
/// run-lease is over, if it ever had one. A context that was tried too often is given up by its claimer.
///
/// A revision or number of changes that nobody counts so far up is damaged, and must not end the
/// statement.
pub(super) const CLAIM_DUE: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT ",
    now!(),
    " AS now_us), suspect AS (SELECT id AS due_id, due_at AS since FROM latchwork_flow_context \
     WHERE machine = $1 AND due_at <= (SELECT now_us FROM t) AND attempts >= 1 \
     AND quarantined_at IS NULL AND (status IN ('pending', 'running', 'paused') OR holds_lock) \
     AND (run_expires_at IS NULL OR run_expires_at <= (SELECT now_us FROM t) \
     - CASE WHEN attempts < 2 THEN 0 \
     ELSE least($7 << least(attempts - 2, 16)::int, 60000000) END) AND NOT id = ANY($8::text[]::uuid[]) \
     ORDER BY due_at, id LIMIT $6 FOR UPDATE SKIP LOCKED), \
     fresh AS (SELECT id AS due_id, due_at AS since FROM latchwork_flow_context \
     WHERE machine = $1 AND due_at <= (SELECT now_us FROM t) AND attempts < 1 \
     AND quarantined_at IS NULL AND (status IN ('pending', 'running', 'paused') OR holds_lock) \
     AND NOT id = ANY($8::text[]::uuid[]) \
     ORDER BY due_at, id LIMIT $2 - (SELECT count(*) FROM suspect) FOR UPDATE SKIP LOCKED), \
     due AS (SELECT * FROM suspect UNION ALL SELECT * FROM fresh) \
     UPDATE latchwork_flow_context SET \
     last_error = CASE WHEN run_token IS NULL THEN last_error END, run_token = $3, run_runner = $4, \
     run_expires_at = t.now_us + $5, due_at = t.now_us + $5, \
     revision = least(revision, 9223372036854775806) + 1, attempts = greatest(attempts, 0) + 1, \
     retry_at = NULL, updated_at = t.now_us, \
     changes = least(changes, 9223372036854775806) + 1 FROM due, t WHERE id = due_id RETURNING ",
    head!("id::text"),
    ", body, since"
);

/// How long until the next of a machine (1) is due.
pub(super) const NEXT_DUE: &str = concat!(
    "SELECT due_at - ",
    now!(),
    " FROM latchwork_flow_context WHERE machine = $1 AND due_at IS NOT NULL \
     ORDER BY due_at LIMIT 1"
);

/// What the rule of a heartbeat says: the run-lease of (1) with the token (2) lasts as long as (3)
/// from now.
pub(super) const HEARTBEAT: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT ",
    now!(),
    " + $3 AS until) UPDATE latchwork_flow_context SET run_expires_at = t.until, \
     due_at = t.until, changes = changes + 1 FROM t WHERE id = $1::uuid AND run_token = $2 \
     RETURNING cancel_reason, cancel_at"
);

/// One that is over.
pub(super) const DELETE: &str = concat!(
    "DELETE FROM latchwork_flow_context WHERE id = $1::uuid AND ",
    over!(),
    " RETURNING true"
);

/// Some (2) that have been over for so long (1).
pub(super) const PRUNE: &str = concat!(
    "DELETE FROM latchwork_flow_context WHERE id = ANY(ARRAY(SELECT id FROM latchwork_flow_context \
     WHERE updated_at <= (SELECT ",
    now!(),
    " - $1) AND ",
    over!(),
    " ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING true"
);

/// The beginning of a listing: behind an id (1), so many (2); no body is read.
pub(super) const LIST: &str =
    concat!("SELECT ", head!("id::text"), ", '' FROM latchwork_flow_context WHERE id > $1::uuid");

/// What a filter adds to it, with the number of the value that it compares with.
pub(super) const LIST_MACHINE: &str = " AND machine = $";
pub(super) const LIST_ENTITY: &str = " AND entity = $";
pub(super) const LIST_STATUS: &str = " AND quarantined_at IS NULL AND status = $";

/// The status of those that are left alone.
pub(super) const LIST_QUARANTINED: &str = " AND quarantined_at IS NOT NULL";

/// The time as a value, so that the planner can see how few are due.
pub(super) const LIST_DUE: &str = " AND due_at <= $";

pub(super) const LIST_ORPHANED: &str = concat!(" AND run_expires_at <= (SELECT ", now!(), ")");
pub(super) const LIST_HELD: &str = concat!(" AND run_expires_at > (SELECT ", now!(), ")");

/// Its end.
pub(super) const LIST_END: &str = " ORDER BY id LIMIT $2";

/// The end where few are wanted of many: the same order, for which no index lures the planner into
/// going through all of them.
pub(super) const LIST_DUE_END: &str = " ORDER BY id::text COLLATE \"C\" LIMIT $2";
