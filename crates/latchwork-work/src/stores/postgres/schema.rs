//! The tables.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "work";

/// The steps, oldest first. Released ones never change.
pub(super) const MIGRATIONS: [Migration; 5] = [
    Migration { version: 1, name: "orders", sql: FIRST },
    Migration { version: 2, name: "review", sql: SECOND },
    Migration { version: 3, name: "listeners and parts", sql: THIRD },
    Migration { version: 4, name: "lanes", sql: FOURTH },
    Migration { version: 5, name: "lanes by lists", sql: FIFTH },
];

const FIRST: &str = r#"
-- Times are microseconds of the server's clock. Bodies stand apart from what changes, so that a
-- transition copies no payload; nothing that changes often is indexed in latchwork_work_item.
CREATE TABLE latchwork_work_order (
    id uuid PRIMARY KEY,
    type text COLLATE "C" NOT NULL,
    type_version bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    priority bigint NOT NULL,
    requested_by_type text COLLATE "C" NOT NULL,
    requested_by_id text COLLATE "C",
    meta jsonb,
    unique_key text COLLATE "C",
    unique_states text NOT NULL,
    unique_taken boolean NOT NULL,
    items bigint NOT NULL,
    settings text NOT NULL,
    error text,
    created_at bigint NOT NULL,
    last_transitioned_at bigint NOT NULL,
    applied_at bigint,
    completed_at bigint,
    stale_at bigint
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX latchwork_work_order_unique ON latchwork_work_order (type, unique_key)
    WHERE unique_taken;
CREATE INDEX latchwork_work_order_state ON latchwork_work_order (state, last_transitioned_at, id);
CREATE INDEX latchwork_work_order_listing ON latchwork_work_order (priority DESC, created_at, id);
CREATE INDEX latchwork_work_order_created ON latchwork_work_order (created_at, id);
CREATE INDEX latchwork_work_order_type ON latchwork_work_order (type, state);

CREATE TABLE latchwork_work_payload (
    order_id uuid PRIMARY KEY,
    payload text NOT NULL
);

CREATE TABLE latchwork_work_item (
    id uuid PRIMARY KEY,
    order_id uuid NOT NULL,
    seq bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    priority bigint NOT NULL,
    attempts bigint NOT NULL,
    max_attempts bigint NOT NULL,
    available_at bigint NOT NULL,
    concurrency text,
    lane text COLLATE "C",
    fence bigint NOT NULL,
    leased_at bigint,
    accepted_at bigint,
    error text,
    results bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX latchwork_work_item_order ON latchwork_work_item (order_id, seq);

CREATE TABLE latchwork_work_input (
    item_id uuid PRIMARY KEY,
    input text NOT NULL
);

CREATE TABLE latchwork_work_result (
    item_id uuid NOT NULL,
    version bigint NOT NULL,
    actor_type text NOT NULL,
    actor_id text,
    result text NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (item_id, version)
);

-- What agents may lease. hold: 0 open, 1 held back by a limit, 2 not due yet.
CREATE TABLE latchwork_work_ready (
    item_id uuid PRIMARY KEY,
    order_id uuid NOT NULL,
    type text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    queued_at bigint NOT NULL,
    seq bigint NOT NULL,
    available_at bigint NOT NULL,
    lane text COLLATE "C",
    hold bigint NOT NULL
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
    id uuid PRIMARY KEY,
    item_id uuid NOT NULL UNIQUE,
    order_id uuid NOT NULL,
    type text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    lane text COLLATE "C",
    counted bigint NOT NULL,
    fence bigint NOT NULL,
    ttl bigint NOT NULL,
    heartbeat_every bigint NOT NULL,
    leased_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    heartbeat_event_at bigint NOT NULL
);
CREATE INDEX latchwork_work_lease_expiry ON latchwork_work_lease (expires_at, item_id);

CREATE TABLE latchwork_work_limit (
    key text COLLATE "C" PRIMARY KEY,
    held bigint NOT NULL,
    max bigint,
    ordered boolean NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE latchwork_work_event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    order_id uuid NOT NULL,
    item_id uuid,
    event text COLLATE "C" NOT NULL,
    actor_type text COLLATE "C" NOT NULL,
    actor_id text,
    payload text,
    diff text,
    message text,
    provenance text,
    created_at bigint NOT NULL,
    position bigint,
    hash text
);
CREATE INDEX latchwork_work_event_unsealed ON latchwork_work_event (seq) WHERE position IS NULL;
CREATE UNIQUE INDEX latchwork_work_event_position ON latchwork_work_event (position)
    WHERE position IS NOT NULL;
CREATE INDEX latchwork_work_event_order ON latchwork_work_event (order_id, seq);

CREATE TABLE latchwork_work_sealer (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint NOT NULL
);
INSERT INTO latchwork_work_sealer (position) VALUES (0);

CREATE TABLE latchwork_work_chain (
    order_id uuid PRIMARY KEY,
    position bigint NOT NULL,
    hash text NOT NULL
);

CREATE TABLE latchwork_work_checkpoint (
    order_id uuid PRIMARY KEY,
    position bigint NOT NULL,
    hash text NOT NULL
);

CREATE TABLE latchwork_work_refusal (
    order_id uuid NOT NULL,
    item_id text COLLATE "C" NOT NULL,
    actor text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    recorded_at bigint NOT NULL,
    PRIMARY KEY (order_id, item_id, actor, code)
);

CREATE TABLE latchwork_work_idempotency (
    caller text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    request text COLLATE "C" NOT NULL,
    answer text,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (caller, scope, key)
);
CREATE INDEX latchwork_work_idempotency_expiry ON latchwork_work_idempotency (expires_at);

CREATE TABLE latchwork_work_type (
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    schemas text NOT NULL,
    settings text NOT NULL,
    PRIMARY KEY (name, version)
);
"#;

const SECOND: &str = r#"
-- What approval and apply know of an order. Content versions count what a reviewer can see; the apply lease is
-- worker, until and fence.
ALTER TABLE latchwork_work_order ADD COLUMN content_version bigint NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN approved_version bigint;
ALTER TABLE latchwork_work_order ADD COLUMN overdue_at bigint;
ALTER TABLE latchwork_work_order ADD COLUMN judged_at bigint;
ALTER TABLE latchwork_work_order ADD COLUMN apply_worker text;
ALTER TABLE latchwork_work_order ADD COLUMN apply_until bigint;
ALTER TABLE latchwork_work_order ADD COLUMN apply_fence bigint NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN apply_tries bigint NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN apply_after bigint NOT NULL DEFAULT 0;
ALTER TABLE latchwork_work_order ADD COLUMN applied_fence bigint;
CREATE INDEX latchwork_work_order_apply
    ON latchwork_work_order (priority DESC, last_transitioned_at, id)
    WHERE state IN ('approved', 'applied');

-- The version of the result that a reviewer edited.
ALTER TABLE latchwork_work_result ADD COLUMN edited_from bigint;

CREATE TABLE latchwork_work_review (
    order_id uuid NOT NULL,
    version bigint NOT NULL,
    content text NOT NULL,
    digest text NOT NULL,
    results_digest text NOT NULL,
    preview text,
    created_at bigint NOT NULL,
    PRIMARY KEY (order_id, version)
);

CREATE TABLE latchwork_work_approval (
    order_id uuid NOT NULL,
    version bigint NOT NULL,
    actor_type text NOT NULL,
    actor_id text COLLATE "C" NOT NULL,
    roles text NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (order_id, version, actor_id)
);

CREATE TABLE latchwork_work_applied (
    order_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    worker text NOT NULL,
    diff text NOT NULL,
    created_at bigint NOT NULL
);

-- What a reviewer asked of an item; it counts until a newer result comes in.
CREATE TABLE latchwork_work_rework (
    item_id uuid PRIMARY KEY,
    result_version bigint NOT NULL,
    note text NOT NULL
);
"#;

const THIRD: &str = r#"
-- The order's type stays with its chain, so that a listener can ask for a type after the order was pruned.
ALTER TABLE latchwork_work_chain ADD COLUMN type text COLLATE "C";

-- How far a named listener has come in the trail.
CREATE TABLE latchwork_work_listener (
    name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL,
    updated_at bigint NOT NULL
);

-- Parts of results, a narrow row each; what they carry stands apart. seq is -1 where a part has none.
CREATE TABLE latchwork_work_part (
    item_id uuid NOT NULL,
    part_key text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    checksum text COLLATE "C" NOT NULL,
    bytes bigint NOT NULL,
    errors text,
    agent text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    submitted_at bigint NOT NULL,
    PRIMARY KEY (item_id, part_key, seq)
);

CREATE TABLE latchwork_work_part_body (
    item_id uuid NOT NULL,
    part_key text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    payload text NOT NULL,
    evidence text,
    notes text,
    PRIMARY KEY (item_id, part_key, seq)
);
"#;

const FOURTH: &str = r#"
-- Opens the first items of lanes, as many as their limits leave. A function, since its statement sees what was committed
-- while the statement that calls it waited for the limits, and what that one has changed. The limits must be locked.
CREATE FUNCTION latchwork_work_open_lanes(lanes json) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    types text;
BEGIN
    WITH opened AS (UPDATE latchwork_work_ready SET hold = 0 WHERE item_id IN (SELECT r.item_id
        FROM latchwork_work_ready r WHERE r.hold = 1 AND r.item_id IN (SELECT w.item_id
        FROM latchwork_work_limit m, LATERAL (SELECT r.item_id FROM latchwork_work_ready r
        WHERE r.lane = m.key AND (r.hold <> 2 OR m.ordered)
        ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT greatest(m.max - m.held, 0)) w
        WHERE m.key IN (SELECT value FROM json_array_elements_text(lanes))) FOR UPDATE SKIP LOCKED)
        RETURNING type)
    SELECT json_agg(DISTINCT type)::text INTO types FROM opened;
    RETURN types;
END
$$;
"#;

const FIFTH: &str = r#"
-- The same with lists as arrays, which are made once: from stale statistics the server would take what is held back
-- for one row, and make the list again for each of a hundred thousand.
CREATE OR REPLACE FUNCTION latchwork_work_open_lanes(lanes json) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    types text;
BEGIN
    WITH opened AS (UPDATE latchwork_work_ready SET hold = 0 WHERE item_id = ANY (ARRAY(SELECT r.item_id
        FROM latchwork_work_ready r WHERE r.hold = 1 AND r.item_id = ANY (ARRAY(SELECT w.item_id
        FROM latchwork_work_limit m, LATERAL (SELECT r.item_id FROM latchwork_work_ready r
        WHERE r.lane = m.key AND (r.hold <> 2 OR m.ordered)
        ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT greatest(m.max - m.held, 0)) w
        WHERE m.key IN (SELECT value FROM json_array_elements_text(lanes)))) FOR UPDATE SKIP LOCKED))
        RETURNING type)
    SELECT json_agg(DISTINCT type)::text INTO types FROM opened;
    RETURN types;
END
$$;
"#;
