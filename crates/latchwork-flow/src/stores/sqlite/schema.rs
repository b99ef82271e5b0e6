//! Its tables, and every statement on them.

use latchwork_sql::Migration;

/// The layer's name in `latchwork_migrations`.
pub(super) const LAYER: &str = "flow";

pub(super) const STEPS: &[Migration] = &[Migration { version: 1, name: "contexts", sql: SCHEMA }];

/// As it is applied, and as it is shown to people.
pub(super) const SCHEMA: &str = "\
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

/// All columns of a head, in the order of [`Columns`](crate::stores::columns::Columns).
macro_rules! head {
    () => {
        "id, machine, entity, status, revision, details, wake_at, signal, timeout_at, renew_at, \
         holds_lock, run_token, run_runner, run_expires_at, signals, cancel_reason, cancel_at, \
         due_at, created_at, updated_at"
    };
}

/// The values of a head, numbered as they are bound.
macro_rules! values {
    () => {
        "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20"
    };
}

/// That it is over and has no lock to give back.
macro_rules! over {
    () => {
        "status NOT IN ('pending', 'running', 'paused') AND NOT holds_lock"
    };
}

/// Values: a row with its body.
pub(super) const CREATE: &str = concat!(
    "INSERT INTO latchwork_flow_context (",
    head!(),
    ", body, changes) VALUES (",
    values!(),
    ", ?21, 0) ON CONFLICT (id) DO NOTHING"
);

/// One row (1), and how often it was changed.
pub(super) const LOAD: &str =
    concat!("SELECT ", head!(), ", body, changes FROM latchwork_flow_context WHERE id = ?1");

/// A row without its body, and how often it was changed (21), if that is still so.
pub(super) const PUT: &str = concat!(
    "UPDATE latchwork_flow_context SET (",
    head!(),
    ", changes) = (",
    values!(),
    ", ?21 + 1) WHERE id = ?1 AND changes = ?21"
);

/// The same with its body (21) and the changes behind it (22).
pub(super) const PUT_WITH_BODY: &str = concat!(
    "UPDATE latchwork_flow_context SET (",
    head!(),
    ", body, changes) = (",
    values!(),
    ", ?21, ?22 + 1) WHERE id = ?1 AND changes = ?22"
);

/// Whether something of a machine (1) is due at a time (2).
pub(super) const ANY_DUE: &str = "\
    SELECT EXISTS (SELECT 1 FROM latchwork_flow_context WHERE machine = ?1 AND due_at <= ?2)";

/// What is due of a machine (1) at a time (2), the longest due first, this many (3).
pub(super) const DUE: &str = concat!(
    "SELECT ",
    head!(),
    ", body, changes FROM latchwork_flow_context WHERE machine = ?1 AND due_at <= ?2 \
     ORDER BY due_at, id LIMIT ?3"
);

/// When the next of a machine (1) is due.
pub(super) const NEXT_DUE: &str = "\
    SELECT due_at FROM latchwork_flow_context WHERE machine = ?1 AND due_at IS NOT NULL \
    ORDER BY due_at LIMIT 1";

/// What the rule of a heartbeat says: the run-lease of (1) with the token (2) lasts until (3).
pub(super) const HEARTBEAT: &str = "\
    UPDATE latchwork_flow_context SET run_expires_at = ?3, due_at = ?3, changes = changes + 1 \
    WHERE id = ?1 AND run_token = ?2";

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
pub(super) const LIST_STATUS: &str = " AND status = ?6";
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
        sqlx::raw_sql(SCHEMA).execute(&mut db).await.expect("the tables");
        let list = format!("{LIST}{LIST_MACHINE}{LIST_DUE}{LIST_DUE_END}");
        for (sql, index) in [
            (ANY_DUE, "_due"),
            (DUE, "_due"),
            (NEXT_DUE, "_due"),
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
