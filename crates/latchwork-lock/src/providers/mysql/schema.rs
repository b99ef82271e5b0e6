//! The tables, and every statement on them but the gate's.
//!
//! Statements that come as text have only numbers and hexadecimal strings put into them, so that no
//! name of a key can be taken for a part of a statement.

use std::fmt::Write as _;
use std::time::Duration;

use latchwork_sql::Migration;

use super::record::{Record, Row, ttl_micros};
use crate::coordination::deferred_release::Lease;
use crate::rules::Id;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "lock";

/// The steps, oldest first. Released ones never change, and each may be repeated.
pub(super) const MIGRATIONS: [Migration; 1] =
    [Migration { version: 1, name: "leases, waiters and fences", sql: FIRST }];

const FIRST: &str = "\
-- A key that is used, or was until lately. Names are bytes, and times are microseconds of the
-- server's clock.
CREATE TABLE IF NOT EXISTS latchwork_lock_key (
    name VARBINARY(640) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL,                -- the last one that was given
    others INT NOT NULL DEFAULT 0,        -- rows of this key in latchwork_lock
    head BIGINT NULL,                     -- place of the first waiter
    next_us BIGINT NULL,                  -- when the first lease in latchwork_lock runs out
    -- one holder, as below; id is null when there is none
    id BINARY(16) NULL,
    behind BIGINT NOT NULL DEFAULT 0,     -- how far its fence is below the last one
    shared TINYINT NOT NULL DEFAULT 0,
    owner VARBINARY(255) NULL,
    note MEDIUMBLOB NULL,
    process VARBINARY(512) NOT NULL DEFAULT '',
    client BINARY(16) NULL,
    ttl_us BIGINT NOT NULL DEFAULT 0,
    since_us BIGINT NOT NULL DEFAULT 0,   -- 0: it was never given to anybody
    previous BIGINT NULL,
    expires_us BIGINT NOT NULL DEFAULT 0,
    claimed TINYINT NOT NULL DEFAULT 0
) ENGINE=InnoDB;

-- Waiters, and holders beside the one in the key's own row.
CREATE TABLE IF NOT EXISTS latchwork_lock (
    name VARBINARY(640) NOT NULL,
    id BINARY(16) NOT NULL,               -- a hash of the token, which itself is a secret
    shared TINYINT NOT NULL,
    owner VARBINARY(255) NULL,
    note MEDIUMBLOB NULL,
    process VARBINARY(512) NOT NULL,      -- host:pid, for people
    client BINARY(16) NOT NULL,           -- whose it is: see latchwork_lock_client
    ttl_us BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    place BIGINT NULL,                    -- in the queue; of waiters only
    until_us BIGINT NULL,                 -- when it gives up waiting; null: never
    fence BIGINT NULL,                    -- of holders only
    previous BIGINT NULL,
    expires_us BIGINT NULL,
    claimed TINYINT NOT NULL,             -- 0: waits, or was next and has not answered yet
    PRIMARY KEY (name, id),
    KEY latchwork_lock_waiting (client)
) ENGINE=InnoDB;

-- Processes that wait for something, and until when they count as alive.
CREATE TABLE IF NOT EXISTS latchwork_lock_client (
    client BINARY(16) NOT NULL PRIMARY KEY,
    alive_us BIGINT NOT NULL
) ENGINE=InnoDB;

-- The highest fence of all keys whose rows are gone.
CREATE TABLE IF NOT EXISTS latchwork_lock_floor (
    one TINYINT NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO latchwork_lock_floor (one, fence) VALUES (1, 0);

-- The newest fence that was seen with a write (see MySqlFenceGate).
CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    name VARBINARY(640) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL
) ENGINE=InnoDB;
";

/// The server's clock, read when the statement began. A statement that then waits for a row has an
/// older time: a lease may only seem to last longer by it, never to be over before it is.
macro_rules! now {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    };
}

/// The tables that a user of the locks reads and writes.
const TABLES: [&str; 5] = [
    "latchwork_lock_key",
    "latchwork_lock",
    "latchwork_lock_client",
    "latchwork_lock_floor",
    "latchwork_fence_gate",
];

/// What a user of the locks does with each table, and a statement that does it to no row: the server
/// refuses it to those who lack the right. The gate is not among them, since not everybody has one.
pub(super) fn attempts() -> impl Iterator<Item = (String, String)> {
    let tables = TABLES.into_iter().filter(|table| *table != "latchwork_fence_gate");
    tables.flat_map(|table| {
        let column = match table {
            "latchwork_lock_client" => "client",
            "latchwork_lock_floor" => "one",
            _ => "name",
        };
        [
            ("INSERT", format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0")),
            ("UPDATE", format!("UPDATE {table} SET {column} = {column} WHERE 1 = 0")),
            ("DELETE", format!("DELETE FROM {table} WHERE 1 = 0")),
        ]
        .map(|(right, attempt)| (format!("{right} on {table}"), attempt))
    })
}

/// The statements that grant a user or a role all of it.
pub(super) fn grants(role: &str) -> String {
    let quoted = |part: &str| format!("'{}'", part.replace('\\', "\\\\").replace('\'', "''"));
    let role = match role.rsplit_once('@') {
        Some((user, host)) => format!("{}@{}", quoted(user), quoted(host)),
        None => quoted(role),
    };
    let mut grants = "\n-- What a user needs that does not own the database.\n".to_owned();
    let _ = writeln!(grants, "GRANT SELECT ON latchwork_migrations TO {role};");
    for table in TABLES {
        let _ = writeln!(grants, "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};");
    }
    grants
}

/// Takes a key that has a row and that nobody uses. The insert id tells what was found: a fence; 1
/// for a key that is in use, 2 if a writer holds it; 0 for one without a row. `previous` comes
/// first, since a server may set columns one after the other.
///
/// Values: id, shared, owner, note, process, client, ttl, ttl, name.
pub(super) const TAKE: &str = concat!(
    "UPDATE latchwork_lock_key SET previous = IF(since_us > 0, fence, NULL), \
     fence = LAST_INSERT_ID(GREATEST(fence + 1, ",
    now!(),
    ")), behind = 0, id = ?, shared = ?, owner = ?, note = ?, process = ?, client = ?, ttl_us = ?, since_us = ",
    now!(),
    ", expires_us = ",
    now!(),
    " + ?, claimed = 1 WHERE name = ? AND IF(others = 0 AND (id IS NULL OR expires_us <= ",
    now!(),
    "), 1, LAST_INSERT_ID(IF(id IS NOT NULL AND shared = 0 AND expires_us > ",
    now!(),
    ", 2, 1)) = 0)"
);

/// The insert ids of [`TAKE`] for a key that is in use; no fence is as low.
pub(super) const IN_USE: u64 = 1;
pub(super) const IS_WRITTEN: u64 = 2;

/// Gives back a key that nobody else uses. Values: name, id.
pub(super) const GIVE_BACK: &str = concat!(
    "UPDATE latchwork_lock_key SET id = NULL, owner = NULL, note = NULL \
     WHERE name = ? AND id = ? AND others = 0 AND expires_us > ",
    now!()
);

/// Lets the lease of the holder in the key's own row last longer. The insert id is the server's time.
/// Values: ttl, ttl, name, id.
pub(super) const RENEW: &str = concat!(
    "UPDATE latchwork_lock_key SET ttl_us = ?, claimed = 1, expires_us = LAST_INSERT_ID(",
    now!(),
    ") + ? WHERE name = ? AND id = ? AND expires_us > ",
    now!()
);

/// Takes a key that has no row. The floor is locked, so that no row that is being removed
/// has a higher fence.
pub(super) fn take_new(name: &[u8], row: &Row) -> String {
    format!(
        "INSERT INTO latchwork_lock_key (name, fence, since_us, expires_us, claimed, {HOLDER}) \
         SELECT {}, LAST_INSERT_ID(GREATEST(f.fence + 1, {now})), {now}, {now} + {}, 1, {} \
         FROM latchwork_lock_floor f WHERE f.one = 1 LOCK IN SHARE MODE",
        text(name),
        row.ttl_us,
        holder(row),
        now = now!(),
    )
}

/// Makes the row of a key. By its fence it was used just now, so that no sweep takes it away.
pub(super) fn create(name: &[u8]) -> String {
    format!(
        "INSERT IGNORE INTO latchwork_lock_key (name, fence) SELECT {}, GREATEST(f.fence, {}) \
         FROM latchwork_lock_floor f WHERE f.one = 1 LOCK IN SHARE MODE",
        text(name),
        now!()
    )
}

/// The first words of an edit, in one message: the key is ours until the transaction ends, and this
/// is how it stands. A process that is stopped in the middle loses its connection after some seconds, and so
/// cannot stop all others; the session may be the user's, so what it had is kept.
pub(super) fn begin(name: &[u8]) -> String {
    format!(
        "{REMEMBER}; SET SESSION wait_timeout = 5, SESSION innodb_lock_wait_timeout = 4; {WHOLE}; \
         SELECT 1 FROM latchwork_lock_key WHERE name = {} FOR UPDATE; {}",
        text(name),
        peek(name)
    )
}

/// Keeps what the session had.
const REMEMBER: &str = "SET @latchwork_wait = @@SESSION.wait_timeout, \
    @latchwork_lock_wait = @@SESSION.innodb_lock_wait_timeout";

/// Gives back, in one message, all keys of these that nobody else uses. Answers the ids of those
/// that are still stored: others wait for the key or share it, the lease has run out, or it was a
/// place in a queue. A key that somebody is changing is waited for only shortly, since all others
/// wait with it. Rows of keys are locked in the order of their names, and nothing else is. They are
/// found by their names, never by reading the whole table: there, READ COMMITTED judges a row that
/// an edit has locked by what it was before, and does not wait for the edit.
pub(super) fn release_all(leases: &[Lease]) -> String {
    let mut named: Vec<String> = leases
        .iter()
        .map(|(key, of)| format!("(name = {} AND id = {})", text(key.as_str().as_bytes()), id(*of)))
        .collect();
    named.sort_unstable();
    let named = named.join(" OR ");
    format!(
        "{REMEMBER}; SET SESSION innodb_lock_wait_timeout = 1; {WHOLE}; \
         UPDATE latchwork_lock_key FORCE INDEX (PRIMARY) \
         SET id = NULL, owner = NULL, note = NULL \
         WHERE ({named}) AND others = 0 AND expires_us > {}; \
         SELECT id FROM latchwork_lock_key WHERE {named} \
         UNION ALL SELECT id FROM latchwork_lock WHERE {named}; {COMMIT}",
        now!()
    )
}

/// The last words of an edit.
pub(super) const COMMIT: &str = "COMMIT; SET SESSION wait_timeout = @latchwork_wait, \
    SESSION innodb_lock_wait_timeout = @latchwork_lock_wait";

/// The last words of one that changed nothing.
pub(super) const ROLLBACK: &str = "ROLLBACK; SET SESSION wait_timeout = @latchwork_wait, \
    SESSION innodb_lock_wait_timeout = @latchwork_lock_wait";

/// Undoes what was begun in one message, which has changed no setting.
pub(super) const UNDO: &str = "ROLLBACK";

/// All of a hand-over in one message: the holder's lease ends, and that of a waiter begins, where
/// that is the first in the queue. The row that it answers has the fence before it.
///
/// The key's row is locked by a statement of its own: what the next ones read elsewhere is not
/// older than that.
pub(super) fn hand_off(name: &[u8], holder: Id, next: &Row) -> String {
    format!(
        "{WHOLE}; SELECT fence FROM latchwork_lock_key WHERE name = {name} FOR UPDATE; \
         UPDATE latchwork_lock_key SET previous = fence, \
         fence = LAST_INSERT_ID(GREATEST(fence + 1, {now})), behind = 0, {}, since_us = {now}, \
         expires_us = {now} + {}, claimed = 1, others = others - 1, \
         head = (SELECT MIN(place) FROM latchwork_lock WHERE name = {name} AND id <> {next_id}) \
         WHERE name = {name} AND id = {} AND expires_us > {now} AND next_us IS NULL \
         AND head = (SELECT place FROM latchwork_lock WHERE name = {name} AND id = {next_id} \
         AND (until_us IS NULL OR until_us > {now})); \
         DELETE FROM latchwork_lock WHERE name = {name} AND id = {next_id} AND ROW_COUNT() = 1; \
         COMMIT",
        set_holder(next),
        next.ttl_us,
        id(holder),
        next_id = id(next.id),
        name = text(name),
        now = now!(),
    )
}

/// The place of that UPDATE in the message: its insert id is the new fence, none if nothing was
/// changed.
pub(super) const HANDED_OFF: usize = 3;

/// One more at the end of the queue, in one message, where a writer holds the key.
pub(super) fn enqueue(
    name: &[u8],
    row: &Row,
    patience: Option<Duration>,
    beat: Option<String>,
) -> String {
    let until = patience.map(|patience| format!("{} + {}", now!(), ttl_micros(patience)));
    format!(
        "{WHOLE}; UPDATE latchwork_lock_key SET others = others + 1, \
         head = COALESCE(head, 1 + 0 * LAST_INSERT_ID(expires_us - {now})) \
         WHERE name = {name} AND id <> {} AND shared = 0 AND expires_us > {now}; \
         SELECT IF(ROW_COUNT() = 1, 1 + COALESCE(MAX(place), 0), NULL) INTO @latchwork_place \
         FROM latchwork_lock WHERE name = {name}; \
         INSERT INTO latchwork_lock (name, {HOLDER}, since_us, place, until_us, claimed) \
         SELECT {name}, {}, {now}, @latchwork_place, {}, 0 FROM DUAL \
         WHERE @latchwork_place IS NOT NULL; {}COMMIT",
        id(row.id),
        holder(row),
        or_null(until),
        beat.map(|beat| beat + "; ").unwrap_or_default(),
        name = text(name),
        now = now!(),
    )
}

/// The place of that UPDATE in the message: it has changed a row, or nothing was. The insert
/// id is how long the lease lasts yet that the first in the queue waits for.
pub(super) const ENQUEUED: usize = 2;

/// How a transaction of one message begins. Nobody need be told to end it if its process is stopped.
const WHOLE: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// All that is known of a key, by one look: its row, if it has one, and the others.
pub(super) fn peek(name: &[u8]) -> String {
    let name = text(name);
    rows(&format!("WHERE k.name = {name}"), &format!("WHERE l.name = {name}"), "")
}

/// The same for some keys that begin like this and come after that one.
pub(super) fn list(prefix: &[u8], after: &[u8], limit: usize) -> String {
    let page = format!(
        "JOIN (SELECT name FROM latchwork_lock_key WHERE name >= {prefix} AND name > {} \
         AND LEFT(name, {}) = {prefix} \
         AND (others > 0 OR (id IS NOT NULL AND expires_us > {now})) \
         ORDER BY name LIMIT {limit}) p",
        text(after),
        prefix.len(),
        prefix = text(prefix),
        now = now!(),
    );
    rows(&format!("{page} ON p.name = k.name"), &format!("{page} ON p.name = l.name"), "ORDER BY 3")
}

/// The columns of [`Row`], in its order, behind what kind of row it is, the time and the name. In a
/// key's own row the last column is its last fence.
fn rows(of_keys: &str, of_others: &str, order: &str) -> String {
    format!(
        "SELECT 0, {now}, k.name, k.id, k.shared, k.owner, k.note, k.process, k.client, k.ttl_us, \
         k.since_us, NULL, NULL, k.fence - k.behind, k.previous, k.expires_us, k.claimed, k.fence \
         FROM latchwork_lock_key k {of_keys} UNION ALL \
         SELECT 1, {now}, l.name, l.id, l.shared, l.owner, l.note, l.process, l.client, l.ttl_us, \
         l.since_us, l.place, l.until_us, l.fence, l.previous, l.expires_us, l.claimed, c.alive_us \
         FROM latchwork_lock l LEFT JOIN latchwork_lock_client c ON c.client = l.client \
         {of_others} {order}",
        now = now!(),
    )
}

/// The columns that a holder has in the row of its key and elsewhere, as [`holder`] writes them.
const HOLDER: &str = "id, shared, owner, note, process, client, ttl_us";

fn holder(row: &Row) -> String {
    format!(
        "{}, {}, {}, {}, {}, {}, {}",
        id(row.id),
        u8::from(row.shared),
        or_null(row.owner.as_deref().map(|owner| text(owner.as_bytes()))),
        or_null(row.note.as_deref().map(|note| text(note.as_bytes()))),
        text(row.process.as_bytes()),
        id(row.client),
        row.ttl_us
    )
}

/// The same in the words of an UPDATE.
fn set_holder(row: &Row) -> String {
    let values = holder(row);
    let set = HOLDER.split(", ").zip(values.split(", "));
    set.map(|(column, value)| format!("{column} = {value}")).collect::<Vec<_>>().join(", ")
}

/// What leads from one record of a key to another.
pub(super) fn save(name: &[u8], before: &Record, after: &Record) -> String {
    let name = text(name);
    let mut sql = String::new();
    let (gone, new) = before.difference(after);
    if !gone.is_empty() {
        let ids: Vec<String> = gone.into_iter().map(id).collect();
        let ids = ids.join(", ");
        let _ = write!(sql, "DELETE FROM latchwork_lock WHERE name = {name} AND id IN ({ids}); ");
    }
    if !new.is_empty() {
        let rows: Vec<String> = new
            .iter()
            .map(|row| {
                format!(
                    "({name}, {}, {}, {}, {}, {}, {}, {}, {})",
                    holder(row),
                    row.since_us,
                    or_null(row.place),
                    or_null(row.until_us),
                    or_null(row.fence),
                    or_null(row.previous),
                    or_null(row.expires_us),
                    u8::from(row.claimed)
                )
            })
            .collect();
        let rows = rows.join(", ");
        let _ = write!(
            sql,
            "REPLACE INTO latchwork_lock (name, {HOLDER}, since_us, place, until_us, fence, \
             previous, expires_us, claimed) VALUES {rows}; "
        );
    }
    let _ = write!(
        sql,
        "UPDATE latchwork_lock_key SET fence = {}, others = {}, head = {}, next_us = {}",
        after.fence,
        after.others.len(),
        or_null(after.others.iter().filter_map(|row| row.place).min()),
        or_null(after.others.iter().filter_map(|row| row.expires_us).min()),
    );
    match &after.first {
        None => sql.push_str(", id = NULL, owner = NULL, note = NULL"),
        Some(row) => {
            let _ = write!(
                sql,
                ", {}, behind = {}, since_us = {}, previous = {}, expires_us = {}, claimed = {}",
                set_holder(row),
                after.fence - row.fence.unwrap_or(after.fence),
                row.since_us,
                or_null(row.previous),
                row.expires_us.unwrap_or(0),
                u8::from(row.claimed)
            );
        }
    }
    let _ = write!(sql, " WHERE name = {name}; ");
    sql
}

/// Says that a process lives.
pub(super) fn beat(client: Id, micros: u128) -> String {
    let alive = format!("{} + {micros}", now!());
    format!(
        "INSERT INTO latchwork_lock_client (client, alive_us) VALUES ({}, {alive}) \
         ON DUPLICATE KEY UPDATE alive_us = {alive}",
        id(client)
    )
}

/// Stores that a process seems to be dead, unless it has given a sign of life since.
pub(super) fn doubt(client: Id, alive_us: i64, now_us: i64) -> String {
    format!(
        "UPDATE latchwork_lock_client SET alive_us = {now_us} \
         WHERE client = {} AND alive_us = {alive_us}; ",
        id(client)
    )
}

/// How all waiters of a process stand: granted or not, how many may be ahead, and how long until
/// something of their key runs out. First in the queue first. The last column is the server's time.
pub(super) fn waiter_statuses(client: Id) -> String {
    format!(
        "SELECT w.id, w.name, w.fence IS NOT NULL, w.place - k.head, \
         LEAST(IF(k.id IS NULL, COALESCE(k.next_us, 0), k.expires_us), \
         COALESCE(k.next_us, k.expires_us)) - {now}, {now} \
         FROM latchwork_lock w JOIN latchwork_lock_key k ON k.name = w.name \
         WHERE w.client = {} AND w.claimed = 0 ORDER BY w.place",
        id(client),
        now = now!(),
    )
}

/// Some rows of keys after that one: the name, the fence, whether nobody has used the key for ten
/// minutes, and whether something is left there that ran out a while ago.
pub(super) fn sweep(after: &[u8], limit: usize) -> String {
    format!(
        "SELECT name, fence, others = 0 AND (id IS NULL OR expires_us < {now}) \
         AND fence < {now} - 600000000, \
         others > 0 AND (id IS NULL OR expires_us < {now} - 10000000) \
         FROM latchwork_lock_key WHERE name > {} ORDER BY name LIMIT {limit}",
        text(after),
        now = now!(),
    )
}

/// Removes rows of keys that nobody uses, and keeps the highest of their fences. Who makes a row
/// meanwhile waits, and begins above it.
pub(super) fn remove(names: &[&[u8]], highest: i64) -> String {
    let names: Vec<String> = names.iter().map(|name| text(name)).collect();
    format!(
        "{WHOLE}; UPDATE latchwork_lock_floor SET fence = GREATEST(fence, {highest}) WHERE one = 1; \
         DELETE FROM latchwork_lock_key WHERE name IN ({}) AND others = 0 \
         AND (id IS NULL OR expires_us < {}) AND fence <= {highest}; COMMIT",
        names.join(", "),
        now!()
    )
}

/// Forgets processes that have been dead for a minute.
pub(super) const FORGET: &str =
    concat!("DELETE FROM latchwork_lock_client WHERE alive_us < ", now!(), " - 60000000");

fn id(id: Id) -> String {
    format!("X'{id:032x}'")
}

fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len() + 3);
    out.push_str("X'");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push('\'');
    out
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_backend_has_the_statements() {
        let page = include_str!("../../../../../docs/backends/mysql.md");
        for line in grants("app@10.0.0.%").lines().filter(|line| !line.starts_with("--")) {
            assert!(page.contains(line), "docs/backends/mysql.md lacks: {line}");
        }
        assert!(grants("o'b").ends_with("TO 'o''b';\n"));
    }
}
