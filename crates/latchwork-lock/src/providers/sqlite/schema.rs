//! Its tables, and every statement on them but the fence gate's.

use latchwork_sql::Migration;

/// The layer's name in `latchwork_migrations`.
pub(super) const LAYER: &str = "lock";

pub(super) const STEPS: &[Migration] = &[Migration { version: 1, name: "locks", sql: SCHEMA }];

/// As it is applied, and as it is shown to people.
///
/// Times ending in `_at` are unix microseconds, those in `_ns` are of the boot that `boot` names.
pub(super) const SCHEMA: &str = "\
-- The last fence of the keys of a shard: nothing need remain of a key.
CREATE TABLE latchwork_lock_fence (
    shard INTEGER PRIMARY KEY,
    fence INTEGER NOT NULL
);

-- Who holds a key. `id` is a hash of the lease's token, which itself is a secret.
CREATE TABLE latchwork_lock_holder (
    key TEXT NOT NULL,
    id BLOB NOT NULL,
    mode TEXT NOT NULL,
    owner TEXT,
    note TEXT,
    process TEXT NOT NULL,
    client INTEGER NOT NULL,
    ttl_us INTEGER NOT NULL,
    since_at INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    previous_fence INTEGER,
    last_fence INTEGER NOT NULL,
    claimed INTEGER NOT NULL,
    PRIMARY KEY (key, id)
) WITHOUT ROWID;

-- Who waits for a key, in the order of `seq`, while its process says that it is alive.
CREATE TABLE latchwork_lock_waiter (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    id BLOB NOT NULL,
    mode TEXT NOT NULL,
    owner TEXT,
    note TEXT,
    process TEXT NOT NULL,
    client INTEGER NOT NULL,
    ttl_us INTEGER NOT NULL,
    since_at INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    alive_at INTEGER NOT NULL,
    alive_ns INTEGER NOT NULL
);
CREATE INDEX latchwork_lock_waiter_key ON latchwork_lock_waiter (key);
CREATE INDEX latchwork_lock_waiter_client ON latchwork_lock_waiter (client);

-- The newest fence that a guarded resource has seen.
CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    key TEXT PRIMARY KEY,
    fence INTEGER NOT NULL
) WITHOUT ROWID;
";

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// The kinds of rows that a load gives; the third is the last fence of a shard.
pub(super) const HOLDER: i64 = 0;
pub(super) const WAITER: i64 = 1;

/// The last fences of some shards, as rows like those below.
macro_rules! fences {
    ($shards:literal) => {
        concat!(
            " UNION ALL SELECT 2, shard, '', x'', '', NULL, NULL, '', 0, 0, 0, 0, 0, 0, fence, \
             NULL, 0, 0 FROM latchwork_lock_fence WHERE shard ",
            $shards
        )
    };
}

/// The rows of the keys that a condition names, in one answer.
macro_rules! load {
    ($holders:literal, $waiters:literal, $more:expr) => {
        load!("", $holders, $waiters, $more)
    };
    ($first:literal, $holders:literal, $waiters:literal, $more:expr) => {
        concat!(
            $first,
            "SELECT 0, 0, key, id, mode, owner, note, process, client, ttl_us, since_at, boot, \
             expires_at, expires_ns, fence, previous_fence, last_fence, claimed \
             FROM latchwork_lock_holder WHERE ",
            $holders,
            " UNION ALL \
             SELECT 1, seq, key, id, mode, owner, note, process, client, ttl_us, since_at, boot, \
             alive_at, alive_ns, 0, NULL, 0, 0 \
             FROM latchwork_lock_waiter WHERE ",
            $waiters,
            $more
        )
    };
}

/// One key (1), with the last fence of its shard (2).
pub(super) const LOAD: &str = load!("key = ?1", "key = ?1", fences!("= ?2"));

/// Several keys (1), with the last fences of their shards (2), both as JSON.
pub(super) const LOAD_ALL: &str = load!(
    "key IN (SELECT value FROM json_each(?1))",
    "key IN (SELECT value FROM json_each(?1))",
    fences!("IN (SELECT value FROM json_each(?2))")
);

/// One key, for reading.
pub(super) const PEEK: &str = load!("key = ?1", "key = ?1", "");

/// All keys that a client (1) waits for.
pub(super) const WAITED: &str = load!(
    "key IN (SELECT key FROM latchwork_lock_waiter WHERE client = ?1)",
    "key IN (SELECT key FROM latchwork_lock_waiter WHERE client = ?1)",
    ""
);

/// The next keys, not before (1) and behind (2), this many (3).
pub(super) const PAGE: &str = load!(
    "WITH next AS (SELECT key FROM (\
     SELECT * FROM (SELECT DISTINCT key FROM latchwork_lock_holder \
     WHERE key >= ?1 AND key > ?2 ORDER BY key LIMIT ?3) \
     UNION SELECT * FROM (SELECT DISTINCT key FROM latchwork_lock_waiter \
     WHERE key >= ?1 AND key > ?2 ORDER BY key LIMIT ?3)) \
     ORDER BY key LIMIT ?3) ",
    "key IN next",
    "key IN next",
    ""
);

/// Keys with something that seems to be over at a wall time (1). No index helps: it would cost every
/// grant and release a page, and this is asked for seldom.
pub(super) const OVER: &str = "\
    SELECT key FROM latchwork_lock_holder WHERE expires_at <= ?1 \
    UNION SELECT key FROM latchwork_lock_waiter WHERE alive_at <= ?1 LIMIT 100";

pub(super) const PUT_FENCE: &str = "\
    INSERT INTO latchwork_lock_fence (shard, fence) VALUES (?, ?) \
    ON CONFLICT (shard) DO UPDATE SET fence = excluded.fence";

pub(super) const PUT_HOLDER: &str = "\
    INSERT OR REPLACE INTO latchwork_lock_holder (key, id, mode, owner, note, process, client, \
    ttl_us, since_at, boot, expires_at, expires_ns, fence, previous_fence, last_fence, claimed) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

pub(super) const DELETE_HOLDER: &str = "DELETE FROM latchwork_lock_holder WHERE key = ? AND id = ?";

pub(super) const PUT_WAITER: &str = "\
    INSERT INTO latchwork_lock_waiter (key, id, mode, owner, note, process, client, \
    ttl_us, since_at, boot, alive_at, alive_ns) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

pub(super) const MOVE_WAITER: &str = "UPDATE latchwork_lock_waiter SET client = ?, process = ?, boot = ?, alive_at = ?, alive_ns = ? \
    WHERE seq = ?";

pub(super) const DELETE_WAITER: &str = "DELETE FROM latchwork_lock_waiter WHERE seq = ?";

/// All waiters of a client (1) are believed to be alive until then.
pub(super) const HEARTBEAT: &str = "\
    UPDATE latchwork_lock_waiter SET boot = ?2, alive_at = ?3, alive_ns = ?4 WHERE client = ?1";

/// Changes when another connection has written.
pub(super) const DATA_VERSION: &str = "PRAGMA data_version";
