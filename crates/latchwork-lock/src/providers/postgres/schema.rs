//! The tables, and every statement on them but the gate's.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "lock";

/// The steps, oldest first. Released ones never change.
pub(super) const MIGRATIONS: [Migration; 1] =
    [Migration { version: 1, name: "leases, waiters and fences", sql: FIRST }];

const FIRST: &str = r#"
-- Fences of all keys. It begins at the clock, so that a database that was made anew goes on above
-- what was given before.
CREATE SEQUENCE latchwork_lock_fence AS bigint;
SELECT setval('latchwork_lock_fence', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- Whoever holds a key or waits for it. Times are microseconds of the server's clock.
CREATE TABLE latchwork_lock (
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,         -- a hash of the token, which itself is a secret
    shared boolean NOT NULL,
    owner text,
    note text,
    process text NOT NULL,                -- host:pid, for people
    client text COLLATE "C" NOT NULL,     -- whom to tell: see latchwork_lock_client
    ttl_us bigint NOT NULL,
    since_us bigint NOT NULL,
    place bigint,                         -- in the queue; of waiters only
    until_us bigint,                      -- when it gives up waiting; null: never
    fence bigint,                         -- of holders only
    previous bigint,
    expires_us bigint,
    claimed boolean NOT NULL,             -- false: waits, or was next and has not answered yet
    PRIMARY KEY (key, id)
);
CREATE INDEX latchwork_lock_waiting ON latchwork_lock (client) WHERE NOT claimed;

-- Processes that wait for something, and until when they count as alive.
CREATE TABLE latchwork_lock_client (
    client text COLLATE "C" PRIMARY KEY,
    alive_us bigint NOT NULL
);

-- The way of nearly every lease, in one message: a key that nobody uses is taken, one that nobody
-- waits for is given back. Null: it is more than that, and the rules must decide. Each statement
-- inside sees what was committed before it, which only holds under READ COMMITTED.
CREATE FUNCTION latchwork_lock_take(turn bigint, k text, i text, is_shared boolean, o text, n text,
        p text, c text, ttl bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    drawn bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(turn);
    IF current_setting('transaction_isolation') <> 'read committed'
            OR EXISTS (SELECT 1 FROM latchwork_lock WHERE key = k) THEN
        RETURN NULL;
    END IF;
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    drawn := nextval('latchwork_lock_fence');
    INSERT INTO latchwork_lock
        (key, id, shared, owner, note, process, client, ttl_us, since_us, fence, expires_us, claimed)
        VALUES (k, i, is_shared, o, n, p, c, ttl, now_us, drawn, now_us + ttl, true);
    RETURN drawn;
END $$;

-- A release that a crash takes back costs time, and no promise: it need not wait for the disk.
CREATE FUNCTION latchwork_lock_drop(turn bigint, k text, i text)
        RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    was_held boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(turn);
    IF current_setting('transaction_isolation') <> 'read committed'
            OR EXISTS (SELECT 1 FROM latchwork_lock WHERE key = k AND id <> i) THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM latchwork_lock WHERE key = k AND id = i
        RETURNING fence IS NOT NULL
            AND expires_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        INTO was_held;
    RETURN coalesce(was_held, false);
END $$;

-- The newest fence that was seen with a write (see PostgresFenceGate).
CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    key text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);
"#;

/// The first words of an edit: one message, and the key is ours until the transaction ends. Whoever
/// is stopped in the middle loses it to the timeout, and so cannot stop all others.
pub(super) fn begin(turn: i64) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
         SET LOCAL idle_in_transaction_session_timeout = '5s'; \
         SELECT pg_advisory_xact_lock({turn})"
    )
}

/// Lifts the fences to the clock, for a database that was restored from an old copy or lost its last
/// commits in a fail-over. Only from far below, and one at a time: whoever draws meanwhile stays
/// below the clock, and is not overtaken by an older reading of it.
pub(super) const RAISE: &str = "
SELECT setval('latchwork_lock_fence', t.now_us) FROM latchwork_lock_fence f,
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) t
WHERE t.now_us > f.last_value + 60000000
";

/// Takes a key that nobody uses.
pub(super) const TAKE: &str = "SELECT latchwork_lock_take($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// Gives back a key that nobody else uses.
pub(super) const DROP: &str = "SELECT latchwork_lock_drop($1, $2, $3)";

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

/// Forgets processes that have been dead for a minute, and names keys with something that ran out
/// a while ago.
pub(super) const SWEEP: &str = r#"
WITH t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us),
gone AS (DELETE FROM latchwork_lock_client USING t WHERE alive_us < t.now_us - 60000000)
SELECT DISTINCT l.key FROM t, latchwork_lock l WHERE l.expires_us < t.now_us - 10000000 LIMIT 100
"#;

/// How all waiters of a process stand: granted or not, and how long until something of their key
/// runs out. First in line first.
pub(super) fn look(client: &str) -> String {
    format!(
        "SELECT w.id, w.key, w.fence IS NOT NULL, (SELECT min(h.expires_us) FROM latchwork_lock h \
         WHERE h.key = w.key AND h.fence IS NOT NULL) \
         - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
         FROM latchwork_lock w WHERE w.client = '{client}' AND NOT w.claimed \
         ORDER BY w.place NULLS FIRST"
    )
}

/// Tells a process something. Channel and payload are ours: letters, digits and colons.
pub(super) fn notify(client: &str, payload: &str) -> String {
    format!("NOTIFY {}, '{payload}'", channel(client))
}

/// The channel of a process.
pub(super) fn channel(client: &str) -> String {
    format!("latchwork_lock_{client}")
}
