//! The tables, and every statement on them but the gate's.

use latchwork_sql::Migration;

use std::fmt::Write;

use super::record::hex;
use crate::coordination::deferred_release::Lease;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "lock";

/// The steps, oldest first. Released ones never change.
pub(super) const MIGRATIONS: [Migration; 4] = [
    Migration {
        version: 1,
        name: "leases, waiters and fences",
        sql: include_str!("migrations/1.sql"),
    },
    Migration {
        version: 2,
        name: "many requests in one message",
        sql: include_str!("migrations/2.sql"),
    },
    Migration { version: 3, name: "one request, quickly", sql: include_str!("migrations/3.sql") },
    Migration {
        version: 4,
        name: "one request, on a busy key",
        sql: include_str!("migrations/4.sql"),
    },
];

/// What a role that does not own the tables must be granted on each.
const TABLE_RIGHTS: [(&str, &[&str]); 4] = [
    ("latchwork_migrations", &["SELECT"]),
    ("latchwork_lock", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("latchwork_lock_client", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    (GATE, &["SELECT", "INSERT", "UPDATE", "DELETE"]),
];

/// Used by nobody but those who check fences.
const GATE: &str = "latchwork_fence_gate";

/// What it must be granted on the sequence: to draw a fence, to see where it stands, to raise it.
const SEQUENCE_RIGHTS: [&str; 3] = ["USAGE", "SELECT", "UPDATE"];

const FUNCTIONS: [&str; 8] = [
    "latchwork_lock_take",
    "latchwork_lock_drop",
    "latchwork_lock_ask",
    "latchwork_lock_give",
    "latchwork_lock_ask_one",
    "latchwork_lock_give_one",
    "latchwork_lock_claim_one",
    "latchwork_lock_hand_on",
];

/// The statements that grant a role all of it.
pub(super) fn grants(role: &str) -> String {
    let (name, text) = (role.replace('"', "\"\""), role.replace('\'', "''"));
    let mut grants = format!(
        "\n-- What a role needs that does not own the tables.\n\
         DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), '{text}'); \
         END $$;\n"
    );
    for (table, rights) in TABLE_RIGHTS {
        let _ = writeln!(grants, "GRANT {} ON {table} TO \"{name}\";", rights.join(", "));
    }
    let rights = SEQUENCE_RIGHTS.join(", ");
    let _ = writeln!(grants, "GRANT {rights} ON SEQUENCE latchwork_lock_fence TO \"{name}\";");
    let functions = FUNCTIONS.join(", ");
    let _ = writeln!(grants, "GRANT EXECUTE ON FUNCTION {functions} TO \"{name}\";");
    grants
}

/// The rights that the user lacks, as one line of text; null when there are all. A table that is not
/// there lacks none.
pub(super) fn missing_rights() -> String {
    let mut rows = Vec::new();
    for (table, rights) in TABLE_RIGHTS.into_iter().filter(|(table, _)| *table != GATE) {
        for right in rights {
            rows.push(format!(
                "('{right} on {table}', has_table_privilege(to_regclass('{table}'), '{right}'))"
            ));
        }
    }
    for right in SEQUENCE_RIGHTS {
        rows.push(format!(
            "('{right} on sequence latchwork_lock_fence', \
             has_sequence_privilege(to_regclass('latchwork_lock_fence'), '{right}'))"
        ));
    }
    format!(
        "SELECT string_agg(what, ', ') AS missing FROM (SELECT * FROM (VALUES {}) AS needed (what, has) \
         UNION ALL SELECT 'EXECUTE on function ' || proname, has_function_privilege(oid, 'EXECUTE') \
         FROM pg_proc WHERE proname = ANY('{{{}}}') AND pg_function_is_visible(oid)) AS rights \
         WHERE NOT has",
        rows.join(", "),
        FUNCTIONS.join(","),
    )
}

/// The first words of an edit: one message, and the key is ours until the transaction ends. A process that
/// is stopped in the middle loses it to the timeout, and so cannot stop all others.
pub(super) fn begin(turn: i64) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
         SET LOCAL idle_in_transaction_session_timeout = '5s'; \
         SELECT pg_advisory_xact_lock({turn})"
    )
}

/// Lets the session idle for as long as it likes. Servers before 14 have no such setting.
pub(super) const NO_IDLE_TIMEOUT: &str = "SELECT set_config(name, '0', false) FROM pg_settings \
     WHERE name = 'idle_session_timeout' AND setting <> '0'";

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// Lifts the fences to the clock, for a database that was restored from an old copy or lost its last
/// commits in a fail-over. Only from far below, and one at a time: a process that draws one meanwhile stays
/// below the clock, and is not overtaken by an older reading of it. One message, since every start
/// sends it; one of its rows names the [rights that are missing](missing_rights).
pub(super) fn raise(turn: i64) -> String {
    format!(
        "{}; {}; SELECT setval('latchwork_lock_fence', t.now_us) FROM latchwork_lock_fence f, \
         (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) t \
         WHERE t.now_us > f.last_value + 60000000; {COMMIT}",
        begin(turn),
        missing_rights(),
    )
}

/// Asks for leases: see the function.
pub(super) const ASK: &str =
    "SELECT * FROM latchwork_lock_ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The same for one.
pub(super) const ASK_ONE: &str =
    "SELECT latchwork_lock_ask_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The same for one that was told of its turn.
pub(super) const CLAIM_ONE: &str =
    "SELECT latchwork_lock_claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Gives leases back: see the function.
pub(super) const GIVE: &str = "SELECT * FROM latchwork_lock_give($1, $2, $3, $4)";

/// The same without parameters, with the number of each key's lock, in the order of these. Names
/// are in hexadecimal, so that none can be taken for a part of the statement.
pub(super) fn release_all(client: &str, leases: &[(i64, &Lease)]) -> String {
    let list = |of: &dyn Fn(i64, &Lease) -> String| {
        leases.iter().map(|(turn, lease)| of(*turn, lease)).collect::<Vec<_>>().join(",")
    };
    let name = |_, lease: &Lease| {
        let bytes = lease.0.as_str().bytes();
        let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        format!("convert_from(decode('{hex}','hex'),'UTF8')")
    };
    format!(
        "SELECT * FROM latchwork_lock_give('{client}',ARRAY[{}]::bigint[],ARRAY[{}],ARRAY[{}])",
        list(&|turn, _| turn.to_string()),
        list(&name),
        list(&|_, lease| format!("'{}'", hex(lease.1))),
    )
}

/// The same for one.
pub(super) const GIVE_ONE: &str = "SELECT latchwork_lock_give_one($1, $2, $3, $4)";

/// The same for one that others are known to wait for.
pub(super) const HAND_ON: &str = "SELECT latchwork_lock_hand_on($1, $2, $3, $4)";

/// The time, enough fences for whatever an edit may grant, and the rows of a key. It comes after
/// the lock as a statement of its own, so it sees what the one before has committed.
pub(super) const LOAD: &str = r#"
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       ARRAY(SELECT nextval('latchwork_lock_fence') FROM generate_series(1,
           4 + (SELECT count(*) FROM latchwork_lock WHERE key = $1 AND shared AND fence IS NULL))),
       coalesce((SELECT json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))
                 FROM latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
                 WHERE key = $1), '[]')::text
"#;

/// The time and the rows of a key, for reading only.
pub(super) const PEEK: &str = r#"
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       coalesce((SELECT json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))
                 FROM latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
                 WHERE key = $1), '[]')::text
"#;

/// A page of keys that are held or waited for, each like [`PEEK`].
pub(super) const LIST: &str = r#"
WITH t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us)
SELECT t.now_us, json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))::text, l.key
FROM t, latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
WHERE starts_with(l.key, $1) AND l.key > $2
  AND CASE WHEN l.fence IS NULL THEN c.alive_us > t.now_us ELSE l.expires_us > t.now_us END
GROUP BY t.now_us, l.key ORDER BY l.key LIMIT $3
"#;

/// Removes some rows of a key and writes others.
pub(super) const SAVE: &str = r#"
WITH gone AS (DELETE FROM latchwork_lock WHERE key = $1 AND id = ANY($2))
INSERT INTO latchwork_lock SELECT * FROM json_populate_recordset(NULL::latchwork_lock, $3::json)
ON CONFLICT (key, id) DO UPDATE SET
    shared = excluded.shared, owner = excluded.owner, note = excluded.note,
    process = excluded.process, client = excluded.client, ttl_us = excluded.ttl_us,
    since_us = excluded.since_us, place = excluded.place, until_us = excluded.until_us,
    fence = excluded.fence, previous = excluded.previous, expires_us = excluded.expires_us,
    claimed = excluded.claimed
"#;

/// Says that a process lives. Only hexadecimal digits and numbers go in, so that it can be one
/// message without parameters, which passes any pooler.
pub(super) fn beat(client: &str, micros: u128) -> String {
    format!(
        "INSERT INTO latchwork_lock_client (client, alive_us) VALUES ('{client}', \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {micros}) \
         ON CONFLICT (client) DO UPDATE SET alive_us = excluded.alive_us"
    )
}

/// Stores that a process seems to be dead, unless it has given a sign of life since.
pub(super) fn doubt(client: &str, alive_us: i64, now_us: i64) -> String {
    format!(
        "UPDATE latchwork_lock_client SET alive_us = {now_us} \
         WHERE client = '{client}' AND alive_us = {alive_us};"
    )
}

/// Forgets processes that have been dead for a minute, and names keys with something that ran out
/// a while ago, or with waiters of such processes.
pub(super) const SWEEP: &str = r#"
WITH t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us),
gone AS (DELETE FROM latchwork_lock_client USING t WHERE alive_us < t.now_us - 60000000)
SELECT l.key FROM t, latchwork_lock l WHERE l.expires_us < t.now_us - 10000000
UNION
SELECT l.key FROM t, latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
WHERE l.fence IS NULL AND coalesce(c.alive_us, 0) < t.now_us - 10000000
LIMIT 100
"#;

/// How all waiters of a process stand: granted or not, and how long until something of their key
/// runs out. First in the queue first. The last column is the server's time.
pub(super) fn waiter_statuses(client: &str) -> String {
    format!(
        "WITH t AS MATERIALIZED \
         (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) \
         SELECT w.id, w.key, w.fence IS NOT NULL, (SELECT min(h.expires_us) FROM latchwork_lock h \
         WHERE h.key = w.key AND h.fence IS NOT NULL) - t.now_us, t.now_us \
         FROM t, latchwork_lock w WHERE w.client = '{client}' AND NOT w.claimed \
         ORDER BY w.place NULLS FIRST"
    )
}

/// Tells a process something. Channel and payload are ours: letters, digits and colons.
pub(super) fn notify(client: &str, payload: &str) -> String {
    format!("NOTIFY {}, '{payload}';", channel(client))
}

/// Ends the session whose application name ends with this mark, which is ours: letters and digits.
pub(super) fn end_listener(mark: &str) -> String {
    format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '% {mark}' \
         AND usename = current_user AND pid <> pg_backend_pid();"
    )
}

/// The channel of a process.
pub(super) fn channel(client: &str) -> String {
    format!("latchwork_lock_{client}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_backend_has_the_statements() {
        let page = include_str!("../../../../../docs/backends/postgres.md");
        for line in grants("app").lines().filter(|line| !line.starts_with("--")) {
            assert!(page.contains(line), "docs/backends/postgres.md lacks: {line}");
        }
    }

    #[test]
    fn a_role_is_quoted() {
        let granted = grants("o'b\"x");
        assert!(granted.contains("'o''b\"x'") && granted.contains("\"o'b\"\"x\""), "{granted}");
    }
}
