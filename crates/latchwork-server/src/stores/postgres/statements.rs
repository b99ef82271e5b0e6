//! Every statement on the table of tokens. SQLite understands them as they are, so its store runs them too.

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

/// Whether there ever was a token, and how many were revoked; rows stay, so both only grow.
pub(crate) const NEWS: &str = "SELECT EXISTS (SELECT 1 FROM latchwork_server_tokens), \
    (SELECT count(*) FROM latchwork_server_tokens WHERE revoked_at IS NOT NULL)";

/// Frees a name (1) of tokens that have ended at a time (2).
pub(crate) const FREE_NAME: &str = "UPDATE latchwork_server_tokens SET revoked_at = expires_at \
    WHERE name = $1 AND revoked_at IS NULL AND expires_at <= $2";

pub(crate) const INSERT: &str = "INSERT INTO latchwork_server_tokens (id, name, role, review_roles, \
    types, key_prefixes, lookup, hash, created_at, created_by, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING";

pub(crate) const BY_LOOKUP: &str = select!("WHERE lookup = $1");

pub(crate) const BY_ID: &str = select!("WHERE id = $1");

/// Ids are UUIDs of version 7, so they sort by time.
pub(crate) const LIST: &str = select!("WHERE id > $1 ORDER BY id LIMIT $2");

pub(crate) const REVOKE: &str = "UPDATE latchwork_server_tokens SET revoked_at = $2 \
    WHERE id = $1 AND revoked_at IS NULL";

/// Never back: servers write it as they come.
pub(crate) const TOUCH: &str = "UPDATE latchwork_server_tokens SET last_used_at = $2 \
    WHERE id = $1 AND coalesce(last_used_at, 0) < $2";
