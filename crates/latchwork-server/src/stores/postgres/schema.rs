//! The table.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "server";

/// The steps, oldest first. Released ones never change.
pub(super) const STEPS: [Migration; 2] = [
    Migration { version: 1, name: "tokens", sql: TOKENS },
    Migration { version: 2, name: "revoked tokens", sql: REVOKED },
];

const TOKENS: &str = r#"
-- One row for each token that was made; rows stay when a token is revoked. `hash` is the SHA-256 of the
-- token, which itself is stored nowhere, and `lookup` the beginning of it. Times are microseconds.
CREATE TABLE latchwork_server_tokens (
    id text COLLATE "C" PRIMARY KEY NOT NULL,
    name text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL,
    review_roles text COLLATE "C" NOT NULL,
    types text COLLATE "C",
    key_prefixes text COLLATE "C",
    lookup text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    created_by text COLLATE "C" NOT NULL,
    expires_at bigint,
    last_used_at bigint,
    revoked_at bigint
);

CREATE INDEX latchwork_server_tokens_lookup ON latchwork_server_tokens (lookup);

-- A name stands for one agent or user.
CREATE UNIQUE INDEX latchwork_server_tokens_name ON latchwork_server_tokens (name)
    WHERE revoked_at IS NULL;
"#;

/// What servers count to notice a revocation.
const REVOKED: &str = "CREATE INDEX latchwork_server_tokens_revoked ON latchwork_server_tokens (revoked_at) \
    WHERE revoked_at IS NOT NULL;";
