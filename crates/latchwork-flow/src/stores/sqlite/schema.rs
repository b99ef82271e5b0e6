//! Its tables, and every statement on them.

use latchwork_sql::Migration;

/// The layer's name in `latchwork_migrations`.
pub(super) const LAYER: &str = "flow";

pub(super) const STEPS: &[Migration] = &[
    Migration { version: 1, name: "contexts", sql: CONTEXTS },
    Migration { version: 2, name: "attempts", sql: ATTEMPTS },
    Migration { version: 3, name: "suspects", sql: SUSPECTS },
];

/// All of them, as they are shown to people.
pub(super) fn schema() -> String {
    STEPS.iter().map(|step| step.sql).collect::<Vec<_>>().join("\n")
}

const CONTEXTS: &str = "\
-- One row for each transition that was stored. Times are unix microseconds. The body and the token
-- of the run-lease are secrets: who has them can act for the process that is at the context.
CREATE TABLE latchwork_flow_context (
    id TEXT NOT NULL PRIMARY KEY,
    machine TEXT NOT NULL,
    entity TEXT,
    status TEXT NOT NULL,
    revision INTEGER NOT NULL,
    details TEXT NOT NULL,
    wake_at INTEGER,
    signal TEXT,
    timeout_at INTEGER,
    renew_at INTEGER,
    holds_lock INTEGER NOT NULL,
    run_token TEXT,
    run_runner TEXT,
    run_expires_at INTEGER,
    signals TEXT NOT NULL,
    cancel_reason TEXT,
    cancel_at INTEGER,
    due_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    changes INTEGER NOT NULL,
    body TEXT NOT NULL
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
";

const ATTEMPTS: &str = "\
-- How often a context was claimed since it last got on, why that came to nothing, until when runners
-- leave it alone, since when it is quarantined, and when somebody asked for it to go on.
ALTER TABLE latchwork_flow_context ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE latchwork_flow_context ADD COLUMN last_error TEXT;
ALTER TABLE latchwork_flow_context ADD COLUMN retry_at INTEGER;
ALTER TABLE latchwork_flow_context ADD COLUMN quarantined_at INTEGER;
ALTER TABLE latchwork_flow_context ADD COLUMN woken_at INTEGER;

-- `due_at` on the boot clock, in nanoseconds: where these are not null, that clock decides and not the
-- wall clock. `due_clock` names the clock, and `due_of` the `due_at` for which this was written, since
-- older programs change only that.
ALTER TABLE latchwork_flow_context ADD COLUMN due_clock INTEGER;
ALTER TABLE latchwork_flow_context ADD COLUMN due_ns INTEGER;
ALTER TABLE latchwork_flow_context ADD COLUMN due_of INTEGER;

-- For runners: what is due by the boot clock, and what is due by the wall clock.
CREATE INDEX latchwork_flow_context_due_boot
    ON latchwork_flow_context (machine, due_clock, due_ns) WHERE due_clock IS NOT NULL;
CREATE INDEX latchwork_flow_context_due_wall
    ON latchwork_flow_context (machine, due_at) WHERE due_clock IS NULL AND due_at IS NOT NULL;

-- For runners: those of which a process is at one at a time.
CREATE INDEX latchwork_flow_context_suspect ON latchwork_flow_context (machine, due_at)
    WHERE due_at IS NOT NULL AND attempts >= 2;

-- For listings.
CREATE INDEX latchwork_flow_context_quarantined ON latchwork_flow_context (id)
    WHERE quarantined_at IS NOT NULL;
";

const SUSPECTS: &str = "\
-- A process is at one at a time of all that were tried before, not only of those tried twice.
DROP INDEX latchwork_flow_context_suspect;
CREATE INDEX latchwork_flow_context_suspect ON latchwork_flow_context (machine, due_at)
    WHERE due_at IS NOT NULL AND attempts >= 1;
";

/// All columns of a head, in the order of [`Columns`](crate::stores::columns::Columns).
macro_rules! head {
    () => {
        "id, machine, entity, status, revision, details, wake_at, signal, timeout_at, renew_at, \
         holds_lock, run_token, run_runner, run_expires_at, signals, cancel_reason, cancel_at, \
         due_at, created_at, updated_at, attempts, last_error, retry_at, quarantined_at, woken_at"
    };
}

/// The values of a head, numbered as they are bound.
macro_rules! values {
    () => {
        "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
         ?20, ?21, ?22, ?23, ?24, ?25"
    };
}

/// Whether a row is due at a wall time and a time of the boot clock (3), as
/// [`Now::ns`](latchwork_sql::sqlite::boot::Now::ns) says: by the boot clock where the row was
/// written by ours, by the wall clock where it was written in another boot. What another time
/// namespace of this boot has written cannot be judged, and is never due.
macro_rules! ready {
    ($wall:expr, $ns:expr) => {
        concat!(
            "(CASE WHEN due_clock IS NULL OR due_of IS NOT due_at OR (due_clock >> 32) <> (?3 >> 32) \
             THEN due_at <= ",
            $wall,
            " ELSE due_clock = ?3 AND due_ns <= ",
            $ns,
            " END)"
        )
    };
}

/// That it is over and has no lock to give back.
macro_rules! over {
    () => {
        "status NOT IN ('pending', 'running', 'paused') AND status <> 'quarantined' \
         AND NOT holds_lock"
    };
}

/// Values: a row with its body.
pub(super) const CREATE: &str = concat!(
    "INSERT INTO latchwork_flow_context (",
    head!(),
    ", due_clock, due_ns, due_of, body, changes) VALUES (",
    values!(),
    ", ?26, ?27, ?28, ?29, 0) ON CONFLICT (id) DO NOTHING"
);

/// One row (1), and its due time on the boot clock.
pub(super) const LOAD: &str = concat!(
    "SELECT ",
    head!(),
    ", body, due_clock, due_ns, due_of FROM latchwork_flow_context WHERE id = ?1"
);

/// What of a head may change, with the values as `values!` numbers them. What never does is not
/// named, since SQLite writes every index that has a named column.
macro_rules! set {
    () => {
        "entity = ?3, status = ?4, revision = ?5, details = ?6, wake_at = ?7, signal = ?8, \
         timeout_at = ?9, renew_at = ?10, holds_lock = ?11, run_token = ?12, run_runner = ?13, \
         run_expires_at = ?14, signals = ?15, cancel_reason = ?16, cancel_at = ?17, due_at = ?18, \
         updated_at = ?20, attempts = ?21, last_error = ?22, retry_at = ?23, quarantined_at = ?24, \
         woken_at = ?25, due_clock = ?26, due_ns = ?27, due_of = ?28, \
         changes = min(changes, 9223372036854775806) + 1"
    };
}

/// A row without its body.
pub(super) const PUT: &str =
    concat!("UPDATE latchwork_flow_context SET ", set!(), " WHERE id = ?1");

/// The same with its body (29).
pub(super) const PUT_WITH_BODY: &str =
    concat!("UPDATE latchwork_flow_context SET ", set!(), ", body = ?29 WHERE id = ?1");

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// What [`CLAIM`] asks for, asked when due rows are looked for: damaged rows that nobody can claim
/// would take the places of the others for ever.
macro_rules! claimable {
    () => {
        "typeof(id) = 'text' AND quarantined_at IS NULL \
         AND (status IN ('pending', 'running', 'paused') OR holds_lock)"
    };
}

/// The part of what is due that an index finds by one of the clocks, the longest due first. A time that
/// somebody made a fraction is none that can be read.
macro_rules! due_by {
    ($clock:literal, $order:literal) => {
        concat!(
            "SELECT * FROM (SELECT id, CAST(due_at AS INTEGER) AS since \
             FROM latchwork_flow_context WHERE machine = ?1 AND ",
            $clock,
            " AND attempts < 1 AND id NOT IN (SELECT value FROM json_each(?7)) AND ",
            claimable!(),
            " AND ",
            ready!("?2", "?4"),
            " ORDER BY ",
            $order,
            " LIMIT ?5)"
        )
    };
}

/// What is due of a machine (1) at a wall time (2) and by a boot clock (3) at its time (4), the
/// longest due first, this many (5), not tried yet, and not these (7).
pub(super) const DUE: &str = concat!(
    due_by!("due_clock = ?3 AND due_ns <= ?4", "due_ns"),
    " UNION ALL ",
    due_by!("due_clock IS NULL AND due_at <= ?2", "due_at"),
    " UNION ALL ",
    due_by!("due_clock < ?3", "due_at"),
    " UNION ALL ",
    due_by!("due_clock > ?3", "due_at"),
    " ORDER BY 2, 1 LIMIT ?5"
);

/// How long a row is left alone beyond its run-lease, where a first span (6) is doubled.
macro_rules! back_off {
    () => {
        "iif(run_token IS NULL OR attempts < 2, 0, min(?6 << min(attempts - 2, 16), 60000000))"
    };
}

/// The suspects among them, which are few; with the first span of their back-off (6).
pub(super) const DUE_SUSPECTS: &str = concat!(
    "SELECT id, CAST(due_at AS INTEGER) AS since FROM latchwork_flow_context \
     WHERE machine = ?1 AND due_at IS NOT NULL AND attempts >= 1 \
     AND id NOT IN (SELECT value FROM json_each(?7)) AND ",
    claimable!(),
    " AND ",
    ready!(concat!("?2 - ", back_off!()), concat!("?4 - 1000 * ", back_off!())),
    " ORDER BY due_at LIMIT ?5"
);

/// What [`StoredContext::claim`](crate::store::StoredContext::claim) says of these (1), if they are
/// still due at a time (2, 3, 4), for a token (5), a runner (6) and an end of the run-lease on both
/// clocks (7, 8). What is due belongs to nobody: its run-lease is over, if it ever had one.
///
/// A revision or number of changes that nobody counts so far up is damaged, and must stay a number.
pub(super) const CLAIM: &str = concat!(
    "UPDATE latchwork_flow_context SET last_error = iif(run_token IS NULL, last_error, NULL), \
     run_token = ?5, run_runner = ?6, run_expires_at = ?7, \
     due_at = ?7, due_clock = iif(?3 = 0, NULL, ?3), due_ns = ?8, due_of = ?7, \
     revision = min(revision, 9223372036854775806) + 1, attempts = max(attempts, 0) + 1, \
     retry_at = NULL, updated_at = ?2, changes = min(changes, 9223372036854775806) + 1 \
     WHERE id IN (SELECT value FROM json_each(?1)) AND quarantined_at IS NULL \
     AND (status IN ('pending', 'running', 'paused') OR holds_lock) AND ",
    ready!("?2", "?4"),
    " RETURNING ",
    head!(),
    ", body"
);

/// How long until the next of a machine (1) is due, at a time (2, 3, 4).
pub(super) const NEXT_DUE: &str = "\
    SELECT min(span) FROM (\
    SELECT * FROM (SELECT (due_ns - ?4) / 1000 AS span FROM latchwork_flow_context \
    WHERE machine = ?1 AND due_clock = ?3 ORDER BY due_ns LIMIT 1) UNION ALL \
    SELECT * FROM (SELECT due_at - ?2 FROM latchwork_flow_context \
    WHERE machine = ?1 AND due_clock IS NULL AND due_at IS NOT NULL ORDER BY due_at LIMIT 1) \
    UNION ALL SELECT min(due_at) - ?2 FROM latchwork_flow_context \
    WHERE machine = ?1 AND due_clock < ?3 AND (due_clock >> 32) <> (?3 >> 32) \
    UNION ALL SELECT min(due_at) - ?2 FROM latchwork_flow_context \
    WHERE machine = ?1 AND due_clock > ?3 AND (due_clock >> 32) <> (?3 >> 32))";

/// What the rule of a heartbeat says: the run-lease of (1) with the token (2) lasts until (3), which
/// by a boot clock (4) is then (5).
pub(super) const HEARTBEAT: &str = "\
    UPDATE latchwork_flow_context SET run_expires_at = ?3, due_at = ?3, \
    due_clock = iif(?4 = 0, NULL, ?4), due_ns = ?5, due_of = ?3, changes = changes + 1 \
    WHERE id = ?1 AND run_token = ?2 RETURNING cancel_reason, cancel_at";

/// One that is over.
pub(super) const DELETE: &str =
    concat!("DELETE FROM latchwork_flow_context WHERE id = ?1 AND ", over!());

/// Some (2) that have been over since a time (1).
pub(super) const PRUNE: &str = concat!(
    "DELETE FROM latchwork_flow_context WHERE rowid IN (SELECT rowid FROM latchwork_flow_context \
     WHERE updated_at <= ?1 AND ",
    over!(),
    " ORDER BY updated_at LIMIT ?2)"
);

/// The beginning of a listing: behind an id (1), so many (2), at a time (3); no body is read.
pub(super) const LIST: &str =
    concat!("SELECT ", head!(), ", '' FROM latchwork_flow_context WHERE id > ?1");

/// What a filter adds to it.
pub(super) const LIST_MACHINE: &str = " AND machine = ?4";
pub(super) const LIST_ENTITY: &str = " AND entity = ?5";
pub(super) const LIST_STATUS: &str = " AND status = ?6 AND quarantined_at IS NULL";
pub(super) const LIST_QUARANTINED: &str = " AND quarantined_at IS NOT NULL";
pub(super) const LIST_DUE: &str = " AND due_at <= ?3";
pub(super) const LIST_ORPHANED: &str = " AND run_expires_at <= ?3";
pub(super) const LIST_HELD: &str = " AND run_expires_at > ?3";

/// Its end.
pub(super) const LIST_END: &str = " ORDER BY id LIMIT ?2";

/// The end where few are wanted of many: the plus keeps SQLite from going through all by their ids
/// only to spare a sort.
pub(super) const LIST_DUE_END: &str = " ORDER BY +id LIMIT ?2";

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

    /// With many contexts that are not due it must not take longer: so the index must be used.
    #[tokio::test]
    async fn what_is_due_is_found_by_the_index() {
        let mut db = SqliteConnection::connect("sqlite::memory:").await.expect("a database");
        for step in STEPS {
            sqlx::raw_sql(step.sql).execute(&mut db).await.expect("the tables");
        }
        let list = format!("{LIST}{LIST_MACHINE}{LIST_DUE}{LIST_DUE_END}");
        for (sql, index) in [
            (DUE, "_due_boot"),
            (DUE, "_due_wall"),
            (DUE_SUSPECTS, "_suspect"),
            (NEXT_DUE, "_due_boot"),
            (&*format!("{LIST}{LIST_QUARANTINED}{LIST_END}"), "_quarantined"),
            (NEXT_DUE, "_due_wall"),
            (&*list, "_due"),
            (PRUNE, "_over"),
            (&*format!("{LIST}{LIST_STATUS}{LIST_END}"), "_status"),
            (&*format!("{LIST}{LIST_ENTITY}{LIST_END}"), "_entity"),
        ] {
            let explained = sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")));
            let plan: Vec<(i64, i64, i64, String)> =
                explained.fetch_all(&mut db).await.expect("a plan");
            let plan: Vec<_> = plan.into_iter().map(|step| step.3).collect();
            let wanted = format!("INDEX latchwork_flow_context{index} (");
            assert!(plan.iter().any(|step| step.contains(&wanted)), "{sql}: {plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN latchwork")), "{sql}: {plan:?}");
        }
    }
}
