//! The tables, and every statement on them but the gate's.

use latchwork_sql::Migration;

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

/// The first words of an edit: one message, and the key is ours until the transaction ends. A process that
/// is stopped in the middle loses it to the timeout, and so cannot stop all others.
pub(super) fn begin(turn: i64) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
         SET LOCAL idle_in_transaction_session_timeout = '5s'; \
         SELECT pg_advisory_xact_lock({turn})"
    )
}

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// Lifts the fences to the clock, for a database that was restored from an old copy or lost its last
/// commits in a fail-over. Only from far below, and one at a time: a process that draws one meanwhile stays
/// below the clock, and is not overtaken by an older reading of it. One message, since every start
/// sends it.
pub(super) fn raise(turn: i64) -> String {
    format!(
        "{}; SELECT setval('latchwork_lock_fence', t.now_us) FROM latchwork_lock_fence f, \
         (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) t \
         WHERE t.now_us > f.last_value + 60000000; {COMMIT}",
        begin(turn)
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
