//! The tables.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "work";

/// The steps, oldest first. Released ones never change.
pub(super) const STEPS: &[Migration] = &[
    Migration { version: 1, name: "orders", sql: FIRST },
    Migration { version: 2, name: "review", sql: SECOND },
];

const FIRST: &str = r#"
-- Times are microseconds on the time line of latchwork_work_clock. Bodies stand apart from what changes, so that a
-- transition copies no payload; nothing that changes often is indexed in latchwork_work_item.
CREATE TABLE latchwork_work_order (
    id TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    type_version INTEGER NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    requested_by_type TEXT NOT NULL,
    requested_by_id TEXT,
    meta TEXT,
    unique_key TEXT,
    unique_states TEXT NOT NULL,
    unique_taken INTEGER NOT NULL,
    items INTEGER NOT NULL,
    settings TEXT NOT NULL,
    error TEXT,
    created_at INTEGER NOT NULL,
    last_transitioned_at INTEGER NOT NULL,
    applied_at INTEGER,
    completed_at INTEGER,
    stale_at INTEGER
);
CREATE UNIQUE INDEX latchwork_work_order_unique ON latchwork_work_order (type, unique_key)
    WHERE unique_taken;
CREATE INDEX latchwork_work_order_state ON latchwork_work_order (state, last_transitioned_at, id);
CREATE INDEX latchwork_work_order_listing ON latchwork_work_order (priority DESC, created_at, id);
CREATE INDEX latchwork_work_order_created ON latchwork_work_order (created_at, id);
CREATE INDEX latchwork_work_order_type ON latchwork_work_order (type, state);

CREATE TABLE latchwork_work_payload (
    order_id TEXT PRIMARY KEY,
    payload TEXT NOT NULL
);

CREATE TABLE latchwork_work_item (
    id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    concurrency TEXT,
    lane TEXT,
    fence INTEGER NOT NULL,
    leased_at INTEGER,
    accepted_at INTEGER,
    error TEXT,
    results INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX latchwork_work_item_order ON latchwork_work_item (order_id, seq);

CREATE TABLE latchwork_work_input (
    item_id TEXT PRIMARY KEY,
    input TEXT NOT NULL
);

CREATE TABLE latchwork_work_result (
    item_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    actor_type TEXT NOT NULL,
    actor_id TEXT,
    result TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (item_id, version)
);

-- What agents may lease. hold: 0 open, 1 held back by a limit, 2 not due yet.
CREATE TABLE latchwork_work_ready (
    item_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL,
    type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    queued_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    lane TEXT,
    hold INTEGER NOT NULL
);
CREATE INDEX latchwork_work_ready_pick
    ON latchwork_work_ready (type, priority DESC, queued_at, order_id, seq) WHERE hold = 0;
CREATE INDEX latchwork_work_ready_order ON latchwork_work_ready (order_id, seq);
CREATE INDEX latchwork_work_ready_due ON latchwork_work_ready (available_at) WHERE hold = 2;
CREATE INDEX latchwork_work_ready_lane
    ON latchwork_work_ready (lane, priority DESC, queued_at, order_id, seq) WHERE lane IS NOT NULL;
CREATE INDEX latchwork_work_ready_open
    ON latchwork_work_ready (lane) WHERE lane IS NOT NULL AND hold = 0;

CREATE TABLE latchwork_work_lease (
    id TEXT PRIMARY KEY,
    item_id TEXT NOT NULL UNIQUE,
    order_id TEXT NOT NULL,
    type TEXT NOT NULL,
    agent TEXT NOT NULL,
    lane TEXT,
    counted INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    ttl INTEGER NOT NULL,
    heartbeat_every INTEGER NOT NULL,
    leased_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    heartbeat_event_at INTEGER NOT NULL
);
CREATE INDEX latchwork_work_lease_expiry ON latchwork_work_lease (expires_at, item_id);

CREATE TABLE latchwork_work_limit (
    key TEXT PRIMARY KEY,
    held INTEGER NOT NULL,
    max INTEGER,
    ordered INTEGER NOT NULL
);

CREATE TABLE latchwork_work_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    order_id TEXT NOT NULL,
    item_id TEXT,
    event TEXT NOT NULL,
    actor_type TEXT NOT NULL,
    actor_id TEXT,
    payload TEXT,
    diff TEXT,
    message TEXT,
    provenance TEXT,
    created_at INTEGER NOT NULL,
    position INTEGER,
    hash TEXT
);
CREATE INDEX latchwork_work_event_unsealed ON latchwork_work_event (seq) WHERE position IS NULL;
CREATE UNIQUE INDEX latchwork_work_event_position ON latchwork_work_event (position)
    WHERE position IS NOT NULL;
CREATE INDEX latchwork_work_event_order ON latchwork_work_event (order_id, seq);

CREATE TABLE latchwork_work_sealer (
    one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    position INTEGER NOT NULL
);
INSERT INTO latchwork_work_sealer (position) VALUES (0);

CREATE TABLE latchwork_work_chain (
    order_id TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    hash TEXT NOT NULL
);

CREATE TABLE latchwork_work_checkpoint (
    order_id TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    hash TEXT NOT NULL
);

CREATE TABLE latchwork_work_refusal (
    order_id TEXT NOT NULL,
    item_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    code TEXT NOT NULL,
    count INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (order_id, item_id, actor, code)
);

CREATE TABLE latchwork_work_idempotency (
    caller TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    request TEXT NOT NULL,
    answer TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (caller, scope, key)
);
CREATE INDEX latchwork_work_idempotency_expiry ON latchwork_work_idempotency (expires_at);

CREATE TABLE latchwork_work_type (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    schemas TEXT NOT NULL,
    settings TEXT NOT NULL,
    PRIMARY KEY (name, version)
);

-- One row for each boot of the machine: where its boot clock stood at a wall time. All processes of a
-- boot count from it, so that a wall clock which is set moves no lease.
CREATE TABLE latchwork_work_clock (
    clock INTEGER PRIMARY KEY,
    wall INTEGER NOT NULL,
    boot INTEGER NOT NULL
);
"#;

const SECOND: &str = r#"
-- What approval and apply know of an order. Content versions count what a reviewer can see; the apply lease is
-- worker, until and fence.
ALTER TABLE latchwork_work_order ADD COLUMN content_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN approved_version INTEGER;
ALTER TABLE latchwork_work_order ADD COLUMN overdue_at INTEGER;
ALTER TABLE latchwork_work_order ADD COLUMN judged_at INTEGER;
ALTER TABLE latchwork_work_order ADD COLUMN apply_worker TEXT;
ALTER TABLE latchwork_work_order ADD COLUMN apply_until INTEGER;
ALTER TABLE latchwork_work_order ADD COLUMN apply_fence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN apply_tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN apply_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN applied_fence INTEGER;
CREATE INDEX latchwork_work_order_apply
    ON latchwork_work_order (priority DESC, last_transitioned_at, id)
    WHERE state IN ('approved', 'applied');

-- The version of the result that a reviewer edited.
ALTER TABLE latchwork_work_result ADD COLUMN edited_from INTEGER;

CREATE TABLE latchwork_work_review (
    order_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    content TEXT NOT NULL,
    digest TEXT NOT NULL,
    results_digest TEXT NOT NULL,
    preview TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (order_id, version)
);

CREATE TABLE latchwork_work_approval (
    order_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    actor_type TEXT NOT NULL,
    actor_id TEXT NOT NULL,
    roles TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (order_id, version, actor_id)
);

CREATE TABLE latchwork_work_applied (
    order_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    worker TEXT NOT NULL,
    diff TEXT NOT NULL,
    created_at INTEGER NOT NULL
);

-- What a reviewer asked of an item; it counts until a newer result comes in.
CREATE TABLE latchwork_work_rework (
    item_id TEXT PRIMARY KEY,
    result_version INTEGER NOT NULL,
    note TEXT NOT NULL
);
"#;
