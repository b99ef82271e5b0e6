//! The table, and every statement on it.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "server";

/// The steps, oldest first. Released ones never change.
pub(super) const STEPS: [Migration; 1] = [Migration { version: 1, name: "tokens", sql: TOKENS }];

const TOKENS: &str = r#"
-- One row for each token that was made; rows stay when a token is revoked. `hash` is the SHA-256 of the
-- token, which itself is stored nowhere, and `lookup` the beginning of it. Times are microseconds.
CREATE TABLE latchwork_server_tokens (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    review_roles TEXT NOT NULL,
    types TEXT,
    key_prefixes TEXT,
    lookup TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    last_used_at INTEGER,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX latchwork_server_tokens_lookup ON latchwork_server_tokens (lookup);

-- A name stands for one agent or user.
CREATE UNIQUE INDEX latchwork_server_tokens_name ON latchwork_server_tokens (name)
    WHERE revoked_at IS NULL;
"#;

/// The columns, in the order of `record::Columns`.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, role, review_roles, types, key_prefixes, lookup, hash, created_at, \
             created_by, expires_at, last_used_at, revoked_at FROM latchwork_server_tokens ",
            $rest
        )
    };
}

pub(super) const HAS_ANY: &str = "SELECT EXISTS (SELECT 1 FROM latchwork_server_tokens)";

/// Frees a name (1) of tokens that have ended at a time (2).
pub(super) const FREE_NAME: &str = "UPDATE latchwork_server_tokens SET revoked_at = expires_at \
    WHERE name = $1 AND revoked_at IS NULL AND expires_at <= $2";

pub(super) const INSERT: &str = "INSERT INTO latchwork_server_tokens (id, name, role, review_roles, \
    types, key_prefixes, lookup, hash, created_at, created_by, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING";

pub(super) const BY_LOOKUP: &str = select!("WHERE lookup = $1");

pub(super) const BY_ID: &str = select!("WHERE id = $1");

/// Ids are UUIDs of version 7, so they sort by time.
pub(super) const LIST: &str = select!("WHERE id > $1 ORDER BY id LIMIT $2");

pub(super) const REVOKE: &str = "UPDATE latchwork_server_tokens SET revoked_at = $2 \
    WHERE id = $1 AND revoked_at IS NULL";

/// Never back: servers write it as they come.
pub(super) const TOUCH: &str = "UPDATE latchwork_server_tokens SET last_used_at = $2 \
    WHERE id = $1 AND coalesce(last_used_at, 0) < $2";
