//! Every statement of this database.

use crate::store::Statements;

macro_rules! order_columns {
    () => {
        "o.id::text, o.type, o.type_version, o.state, o.version, o.priority, o.requested_by_type, \
         o.requested_by_id, o.meta::text, o.unique_key, o.unique_states, o.items, o.settings, \
         o.error, o.created_at, o.last_transitioned_at, o.applied_at, o.completed_at"
    };
}

macro_rules! item_columns {
    () => {
        "i.id::text, i.order_id::text, i.seq, i.type, i.state, i.version, i.priority, i.attempts, \
         i.max_attempts, i.available_at, i.concurrency, i.fence, i.leased_at, i.accepted_at, \
         i.error, i.results, i.created_at"
    };
}

macro_rules! lease_columns {
    () => {
        "l.id::text, l.item_id::text, l.order_id::text, l.type, l.agent, l.fence, \
         l.heartbeat_every, l.leased_at, l.expires_at, l.heartbeat_at, l.heartbeat_event_at"
    };
}

macro_rules! event_columns {
    () => {
        "e.seq, e.id::text, e.order_id::text, e.item_id::text, e.event, e.actor_type, e.actor_id, \
         e.payload, e.diff, e.message, e.provenance, e.created_at, e.position, e.hash"
    };
}

/// A list of ids.
macro_rules! ids {
    ($n:literal) => {
        concat!("(SELECT value::uuid FROM json_array_elements_text($", $n, "::json))")
    };
}

/// A list of texts.
macro_rules! texts {
    ($n:literal) => {
        concat!("(SELECT value FROM json_array_elements_text($", $n, "::json))")
    };
}

macro_rules! live {
    () => {
        "('queued', 'checked_out', 'in_progress')"
    };
}

/// What a lane may have open: its first items, as many as its limit leaves.
macro_rules! within_limit {
    () => {
        concat!(
            "SELECT w.item_id FROM latchwork_work_limit m, LATERAL (SELECT r.item_id \
             FROM latchwork_work_ready r WHERE r.lane = m.key AND (r.hold <> 2 OR m.ordered) \
             ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq \
             LIMIT greatest(m.max - m.held, 0)) w WHERE m.key IN ",
            texts!(1)
        )
    };
}

macro_rules! ready_of {
    ($condition:expr) => {
        concat!(
            "INSERT INTO latchwork_work_ready (item_id, order_id, type, priority, queued_at, seq, \
             available_at, lane, hold) SELECT i.id, i.order_id, i.type, i.priority, i.created_at, \
             i.seq, i.available_at, i.lane, CASE WHEN i.available_at > $2 THEN 2 \
             WHEN i.lane IS NULL THEN 0 ELSE 1 END FROM latchwork_work_item i \
             JOIN latchwork_work_order o ON o.id = i.order_id WHERE ",
            $condition,
            " AND i.state = 'queued' AND o.state IN ",
            live!(),
            " ON CONFLICT (item_id) DO UPDATE SET available_at = excluded.available_at, \
             hold = excluded.hold RETURNING lane"
        )
    };
}

macro_rules! picked {
    ($condition:literal) => {
        concat!(
            "SELECT r.item_id::text, o.state FROM latchwork_work_ready r \
             JOIN latchwork_work_order o ON o.id = r.order_id WHERE ",
            $condition,
            " AND r.hold = 0 AND r.priority >= $2 \
             AND (r.priority > $3 OR r.priority = $3 AND r.queued_at <= $4) AND o.state IN ",
            live!(),
            " AND ($5::text IS NULL OR NOT EXISTS (SELECT 1 FROM jsonb_each($5::jsonb) w \
             WHERE o.meta -> w.key IS DISTINCT FROM w.value)) \
             ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT $6 \
             FOR UPDATE OF r SKIP LOCKED"
        )
    };
}

pub(super) use {event_columns, ids, item_columns, lease_columns, order_columns, texts};

pub(super) const STATEMENTS: Statements = Statements {
    insert_orders: "INSERT INTO latchwork_work_order (id, type, type_version, state, version, \
        priority, requested_by_type, requested_by_id, meta, unique_key, unique_states, unique_taken, \
        items, settings, error, created_at, last_transitioned_at, applied_at, completed_at) \
        SELECT id, type, type_version, state, version, priority, requested_by_type, \
        requested_by_id, meta::jsonb, unique_key, unique_states, unique_taken <> 0, items, settings, \
        error, created_at, last_transitioned_at, applied_at, completed_at \
        FROM json_to_recordset($1::json) AS x (id uuid, type text, type_version bigint, state text, \
        version bigint, priority bigint, requested_by_type text, requested_by_id text, meta text, \
        unique_key text, unique_states text, unique_taken bigint, items bigint, settings text, \
        error text, created_at bigint, last_transitioned_at bigint, applied_at bigint, \
        completed_at bigint) \
        ON CONFLICT (type, unique_key) WHERE unique_taken DO NOTHING RETURNING id::text",
    insert_payloads: "INSERT INTO latchwork_work_payload (order_id, payload) SELECT id, body \
        FROM json_to_recordset($1::json) AS x (id uuid, body text)",
    order: concat!(
        "SELECT ",
        order_columns!(),
        " FROM latchwork_work_order o WHERE o.id = $1::uuid"
    ),
    lock_order: concat!(
        "SELECT ",
        order_columns!(),
        " FROM latchwork_work_order o WHERE o.id = $1::uuid FOR UPDATE"
    ),
    find_unique: "SELECT id::text FROM latchwork_work_order \
        WHERE type = $1 AND unique_key = $2 AND unique_taken",
    put_order: "UPDATE latchwork_work_order SET state = $4, version = version + 1, error = $5, \
        last_transitioned_at = $6, applied_at = $7, completed_at = $8, unique_taken = $9 <> 0, \
        stale_at = NULL WHERE id = $1::uuid AND version = $2 AND state = $3",
    payload: "SELECT payload FROM latchwork_work_payload WHERE order_id = $1::uuid",
    // From the end, where items are leased last: as long as the order has open items, one of the
    // first rows that is looked at is one.
    order_progress: concat!(
        "SELECT o.id::text, o.state, (SELECT i.state FROM latchwork_work_item i WHERE i.order_id = o.id \
         AND i.state IN ('queued', 'leased', 'in_progress') ORDER BY i.seq DESC LIMIT 1) \
         FROM latchwork_work_order o WHERE o.id IN ",
        ids!(1)
    ),
    item_counts: "SELECT state, count(*) FROM latchwork_work_item WHERE order_id = $1::uuid \
        GROUP BY state",

    insert_items: "INSERT INTO latchwork_work_item (id, order_id, seq, type, state, version, \
        priority, attempts, max_attempts, available_at, concurrency, lane, fence, leased_at, \
        accepted_at, error, results, created_at, updated_at) SELECT id, order_id, seq, type, state, \
        version, priority, attempts, max_attempts, available_at, concurrency, lane, fence, leased_at, \
        accepted_at, error, results, created_at, created_at FROM json_to_recordset($1::json) AS x \
        (id uuid, order_id uuid, seq bigint, type text, state text, version bigint, priority bigint, \
        attempts bigint, max_attempts bigint, available_at bigint, concurrency text, lane text, \
        fence bigint, leased_at bigint, accepted_at bigint, error text, results bigint, \
        created_at bigint)",
    insert_inputs: "INSERT INTO latchwork_work_input (item_id, input) SELECT id, body \
        FROM json_to_recordset($1::json) AS x (id uuid, body text)",
    items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.id IN ",
        ids!(1)
    ),
    lock_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.id IN ",
        ids!(1),
        " ORDER BY i.id FOR UPDATE"
    ),
    lock_free_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.id IN ",
        ids!(1),
        " ORDER BY i.id FOR UPDATE SKIP LOCKED"
    ),
    lock_order_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.order_id = $1::uuid AND i.state IN ",
        texts!(2),
        " ORDER BY i.id FOR UPDATE"
    ),
    order_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.order_id = $1::uuid AND i.seq > $2 \
         ORDER BY i.seq LIMIT $3"
    ),
    put_items: "UPDATE latchwork_work_item i SET state = x.state, version = i.version + 1, \
        attempts = x.attempts, available_at = x.available_at, fence = x.fence, \
        leased_at = x.leased_at, accepted_at = x.accepted_at, error = x.error, results = x.results, \
        updated_at = $2 FROM json_to_recordset($1::json) AS x (id uuid, was text, version bigint, \
        state text, attempts bigint, available_at bigint, fence bigint, leased_at bigint, \
        accepted_at bigint, error text, results bigint) \
        WHERE i.id = x.id AND i.version = x.version AND i.state = x.was",
    inputs: concat!(
        "SELECT item_id::text, input FROM latchwork_work_input WHERE item_id IN ",
        ids!(1)
    ),
    insert_results: "INSERT INTO latchwork_work_result (item_id, version, actor_type, actor_id, \
        result, created_at, edited_from) SELECT item_id, version, actor_type, actor_id, result, \
        created_at, edited_from FROM json_to_recordset($1::json) AS x (item_id uuid, \
        version bigint, actor_type text, actor_id text, result text, created_at bigint, \
        edited_from bigint)",
    results: concat!(
        "SELECT r.item_id::text, r.version, r.actor_type, r.actor_id, r.result, r.created_at, \
         r.edited_from \
         FROM latchwork_work_item i JOIN latchwork_work_result r \
         ON r.item_id = i.id AND r.version = i.results WHERE i.id IN ",
        ids!(1)
    ),
    result_versions: "SELECT item_id::text, version, actor_type, actor_id, result, created_at, edited_from \
        FROM latchwork_work_result WHERE item_id = $1::uuid ORDER BY version",

    parts: "SELECT part_key, seq, status, checksum, bytes, errors, agent, fence, submitted_at \
        FROM latchwork_work_part WHERE item_id = $1::uuid ORDER BY part_key, seq",
    part_bodies: "SELECT part_key, seq, payload, evidence, notes FROM latchwork_work_part_body \
        WHERE item_id = $1::uuid",
    put_part: "INSERT INTO latchwork_work_part (item_id, part_key, seq, status, checksum, bytes, \
        errors, agent, fence, submitted_at) VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
        ON CONFLICT (item_id, part_key, seq) DO UPDATE SET status = excluded.status, \
        checksum = excluded.checksum, bytes = excluded.bytes, errors = excluded.errors, \
        agent = excluded.agent, fence = excluded.fence, submitted_at = excluded.submitted_at",
    put_part_body: "INSERT INTO latchwork_work_part_body (item_id, part_key, seq, payload, evidence, \
        notes) VALUES ($1::uuid, $2, $3, $4, $5, $6) ON CONFLICT (item_id, part_key, seq) DO UPDATE \
        SET payload = excluded.payload, evidence = excluded.evidence, notes = excluded.notes",

    insert_new_ready: "INSERT INTO latchwork_work_ready (item_id, order_id, type, priority, \
        queued_at, seq, available_at, lane, hold) SELECT id, order_id, type, priority, created_at, \
        seq, available_at, lane, CASE WHEN lane IS NULL THEN 0 ELSE 1 END \
        FROM json_to_recordset($1::json) AS x (id uuid, order_id uuid, seq bigint, type text, \
        priority bigint, available_at bigint, lane text, created_at bigint)",
    insert_ready: ready_of!(concat!("i.id IN ", ids!(1))),
    insert_ready_of_order: ready_of!("i.order_id = $1::uuid"),
    remove_ready: concat!("DELETE FROM latchwork_work_ready WHERE item_id IN ", ids!(1)),
    remove_ready_of_order: "DELETE FROM latchwork_work_ready WHERE order_id = $1::uuid \
        RETURNING lane",
    promote: "UPDATE latchwork_work_ready SET hold = 0 WHERE item_id IN (SELECT item_id \
        FROM latchwork_work_ready WHERE hold = 2 AND available_at <= $1 ORDER BY available_at \
        LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING lane",
    heads: "SELECT r.type, r.priority, r.queued_at FROM json_array_elements_text($1::json) t \
        JOIN latchwork_work_ready r ON r.item_id = (SELECT f.item_id FROM latchwork_work_ready f \
        WHERE f.type = t.value AND f.hold = 0 \
        ORDER BY f.priority DESC, f.queued_at, f.order_id, f.seq LIMIT 1) \
        ORDER BY r.priority DESC, r.queued_at",
    pick: picked!("r.type = $1"),
    pick_of_order: picked!("r.order_id = $1::uuid"),
    glance: concat!(
        "SELECT (SELECT json_agg(w.value)::text FROM json_array_elements_text($2::json) w WHERE EXISTS (SELECT 1 FROM latchwork_work_ready r \
         WHERE r.type = w.value AND r.hold = 0)), \
         (EXISTS (SELECT 1 FROM latchwork_work_ready r WHERE r.hold = 2 AND r.available_at <= \
         coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AND r.type IN ",
        texts!(2),
        "))::int::bigint, (EXISTS (SELECT 1 FROM latchwork_work_lease l WHERE l.expires_at <= \
         coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AND ('agent:' || l.agent IN ",
        texts!(3),
        " OR 'type:' || l.type IN ",
        texts!(3),
        " OR l.lane IS NOT NULL AND EXISTS (SELECT 1 FROM latchwork_work_ready r \
         WHERE r.lane = l.lane AND r.hold = 1 AND r.type IN ",
        texts!(2),
        "))))::int::bigint, (SELECT json_agg(json_build_array(m.key, m.held))::text FROM latchwork_work_limit m WHERE m.key IN ",
        texts!(3),
        ")"
    ),
    next_due: concat!(
        "SELECT min(available_at) - coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM latchwork_work_ready \
         WHERE hold = 2 AND type IN ",
        texts!(2)
    ),
    // Rows that a claim has locked are passed over: it waits for the lane's limit, which we hold.
    //
    // Lists as arrays, which are made once: from stale statistics the server would take what is held back for
    // one row, and make the list again for each of a hundred thousand.
    hold_back: concat!(
        "UPDATE latchwork_work_ready SET hold = 1 WHERE item_id = ANY (ARRAY(SELECT r.item_id \
         FROM latchwork_work_ready r WHERE r.hold = 0 AND r.lane = ANY (ARRAY",
        texts!(1),
        ") AND r.item_id <> ALL (ARRAY(",
        within_limit!(),
        ")) FOR UPDATE SKIP LOCKED))"
    ),
    open_up: concat!(
        "UPDATE latchwork_work_ready SET hold = 0 WHERE item_id = ANY (ARRAY(SELECT r.item_id \
         FROM latchwork_work_ready r WHERE r.hold = 1 AND r.item_id = ANY (ARRAY(",
        within_limit!(),
        ")) FOR UPDATE SKIP LOCKED)) RETURNING type"
    ),
    many_lanes: true,

    insert_leases: "INSERT INTO latchwork_work_lease (id, item_id, order_id, type, agent, lane, \
        counted, fence, ttl, heartbeat_every, leased_at, expires_at, heartbeat_at, \
        heartbeat_event_at) SELECT id, item_id, order_id, type, agent, lane, counted, fence, ttl, \
        heartbeat_every, leased_at, expires_at, leased_at, leased_at \
        FROM json_to_recordset($1::json) AS x (id uuid, item_id uuid, order_id uuid, type text, \
        agent text, lane text, counted bigint, fence bigint, ttl bigint, heartbeat_every bigint, \
        leased_at bigint, expires_at bigint)",
    leases: concat!(
        "SELECT ",
        lease_columns!(),
        " FROM latchwork_work_lease l WHERE l.id IN ",
        ids!(1)
    ),
    lease_inputs: concat!(
        "SELECT ",
        lease_columns!(),
        ", b.input FROM latchwork_work_lease l JOIN latchwork_work_input b ON b.item_id = l.item_id \
         WHERE l.id IN ",
        ids!(1)
    ),
    leases_of_items: concat!(
        "SELECT ",
        lease_columns!(),
        " FROM latchwork_work_lease l WHERE l.item_id IN ",
        ids!(1)
    ),
    lock_leases_of_items: concat!(
        "SELECT ",
        lease_columns!(),
        " FROM latchwork_work_lease l WHERE l.item_id IN ",
        ids!(1),
        " ORDER BY l.item_id FOR UPDATE"
    ),
    extend_leases: concat!(
        "UPDATE latchwork_work_lease SET expires_at = $2 + ttl, heartbeat_at = $2 WHERE id IN \
         (SELECT id FROM latchwork_work_lease WHERE expires_at > $2 AND id IN ",
        ids!(1),
        " ORDER BY item_id FOR UPDATE) RETURNING id::text, expires_at, heartbeat_every"
    ),
    note_heartbeats: concat!(
        "UPDATE latchwork_work_lease SET heartbeat_event_at = $2 WHERE id IN ",
        ids!(1)
    ),
    remove_leases: concat!(
        "DELETE FROM latchwork_work_lease WHERE item_id IN ",
        ids!(1),
        " RETURNING agent, type, lane, counted"
    ),
    expired: "SELECT item_id::text, expires_at FROM latchwork_work_lease WHERE expires_at <= $1 \
        AND (expires_at, item_id) > ($3, $4::uuid) ORDER BY expires_at, item_id LIMIT $2",
    expired_of: "SELECT item_id::text FROM latchwork_work_lease WHERE expires_at <= $1 \
        AND (agent = $2 OR type = $3 OR lane = $4) ORDER BY expires_at LIMIT $5",
    expired_of_full_lanes: concat!(
        "SELECT l.item_id::text FROM latchwork_work_lease l WHERE l.expires_at <= $1 \
         AND l.lane IS NOT NULL AND EXISTS (SELECT 1 FROM latchwork_work_ready r \
         WHERE r.lane = l.lane AND r.hold = 1 AND r.type IN ",
        texts!(2),
        ") ORDER BY l.expires_at LIMIT $3"
    ),

    set_limits: "INSERT INTO latchwork_work_limit AS m (key, held, max, ordered) \
        SELECT key, 0, max, ordered <> 0 FROM json_to_recordset($1::json) AS x (key text, max bigint, \
        ordered bigint) ORDER BY key ON CONFLICT (key) DO UPDATE SET max = excluded.max, \
        ordered = excluded.ordered WHERE (m.max, m.ordered) IS DISTINCT FROM \
        (excluded.max, excluded.ordered)",
    lock_limits: concat!(
        "SELECT key, held, max, ordered::int::bigint FROM latchwork_work_limit WHERE key IN ",
        texts!(1),
        " ORDER BY key FOR UPDATE"
    ),
    limits: concat!(
        "SELECT key, held, max, ordered::int::bigint FROM latchwork_work_limit WHERE key IN ",
        texts!(1)
    ),
    full_lanes: concat!(
        "SELECT m.key, m.held, m.max, m.ordered::int::bigint FROM latchwork_work_limit m WHERE m.key >= 'key:' \
         AND m.key < 'key;' AND (m.held >= m.max OR m.ordered) AND (SELECT r.type \
         FROM latchwork_work_ready r WHERE r.lane = m.key AND r.hold = 1 \
         ORDER BY r.priority DESC, r.queued_at, r.order_id, r.seq LIMIT 1) IN ",
        texts!(1),
        " ORDER BY m.key LIMIT $2"
    ),
    change_limits: "UPDATE latchwork_work_limit m SET held = greatest(m.held + x.change, 0) \
        FROM json_to_recordset($1::json) AS x (key text, change bigint) WHERE m.key = x.key",
    // One look at all leases, and not one for each limit.
    list_limits: "SELECT m.key, (m.held <> coalesce(c.held, 0) OR EXISTS (SELECT 1 \
        FROM latchwork_work_ready r WHERE r.lane = m.key))::int::bigint \
        FROM (SELECT key, held FROM latchwork_work_limit WHERE key > $1 ORDER BY key LIMIT $2) m \
        LEFT JOIN (SELECT key, count(*) AS held FROM (SELECT 'agent:' || agent AS key \
        FROM latchwork_work_lease WHERE counted & 1 <> 0 UNION ALL SELECT 'type:' || type \
        FROM latchwork_work_lease WHERE counted & 2 <> 0 UNION ALL SELECT lane \
        FROM latchwork_work_lease WHERE counted & 4 <> 0) k GROUP BY key) c ON c.key = m.key \
        ORDER BY m.key",
    recount: "UPDATE latchwork_work_limit m SET held = (SELECT count(*) FROM latchwork_work_lease l \
        WHERE (m.key = 'agent:' || l.agent AND l.counted & 1 <> 0) \
        OR (m.key = 'type:' || l.type AND l.counted & 2 <> 0) \
        OR (m.key = l.lane AND l.counted & 4 <> 0)) WHERE m.key = $1",

    insert_events: "INSERT INTO latchwork_work_event (id, order_id, item_id, event, actor_type, \
        actor_id, payload, diff, message, provenance, created_at) SELECT id, order_id, item_id, \
        event, actor_type, actor_id, payload, diff, message, provenance, created_at \
        FROM ROWS FROM (json_to_recordset($1::json) AS (id uuid, order_id uuid, item_id uuid, \
        event text, actor_type text, actor_id text, payload text, diff text, message text, \
        provenance text, created_at bigint)) WITH ORDINALITY AS x (id, order_id, item_id, event, \
        actor_type, actor_id, payload, diff, message, provenance, created_at, n) ORDER BY n",
    lock_sealer: "SELECT position FROM latchwork_work_sealer FOR UPDATE",
    sealed_position: "SELECT position FROM latchwork_work_sealer",
    put_sealer: "UPDATE latchwork_work_sealer SET position = $1",
    unsealed: concat!(
        "SELECT ",
        event_columns!(),
        " FROM latchwork_work_event e WHERE e.position IS NULL ORDER BY e.seq LIMIT $1"
    ),
    put_seals: "UPDATE latchwork_work_event e SET position = x.position, hash = x.hash \
        FROM json_to_recordset($1::json) AS x (seq bigint, position bigint, hash text) \
        WHERE e.seq = x.seq AND e.position IS NULL",
    chains: concat!(
        "SELECT order_id::text, hash FROM latchwork_work_chain WHERE order_id IN ",
        ids!(1)
    ),
    put_chains: "INSERT INTO latchwork_work_chain AS c (order_id, position, hash, type) \
        SELECT order_id, position, hash, type FROM json_to_recordset($1::json) AS x (order_id uuid, \
        position bigint, hash text, type text) ON CONFLICT (order_id) DO UPDATE \
        SET position = excluded.position, hash = excluded.hash, type = coalesce(c.type, excluded.type)",
    events_after: concat!(
        "SELECT ",
        event_columns!(),
        " FROM latchwork_work_event e WHERE e.position > $1 ORDER BY e.position LIMIT $2"
    ),
    trail: "SELECT s.position, (SELECT min(e.position) FROM latchwork_work_event e \
        WHERE e.position > $1) FROM latchwork_work_sealer s",
    events_between: concat!(
        "SELECT ",
        event_columns!(),
        " FROM latchwork_work_event e WHERE e.position > $1 AND e.position <= $2 \
         AND ($3::text IS NULL OR e.event IN ",
        texts!(3),
        ") AND ($4::text IS NULL OR EXISTS (SELECT 1 FROM latchwork_work_chain c \
         LEFT JOIN latchwork_work_order o ON o.id = c.order_id WHERE c.order_id = e.order_id \
         AND coalesce(c.type, o.type) IN ",
        texts!(4),
        ")) ORDER BY e.position LIMIT $5"
    ),
    order_events_between: concat!(
        "SELECT ",
        event_columns!(),
        " FROM latchwork_work_event e WHERE e.order_id = $1::uuid AND e.position > $2 \
         AND e.position <= $3 AND ($4::text IS NULL OR e.event IN ",
        texts!(4),
        ") ORDER BY e.position LIMIT $5"
    ),
    pruned_position: "SELECT coalesce(max(position), 0) FROM latchwork_work_checkpoint",
    listener: "SELECT position FROM latchwork_work_listener WHERE name = $1",
    put_listener: "INSERT INTO latchwork_work_listener AS l (name, position, updated_at) \
        VALUES ($1, $2, $3) ON CONFLICT (name) DO UPDATE SET \
        position = greatest(l.position, excluded.position), updated_at = excluded.updated_at",
    listeners: "SELECT name, position, updated_at FROM latchwork_work_listener ORDER BY name",
    remove_listener: "DELETE FROM latchwork_work_listener WHERE name = $1",
    order_events: concat!(
        "SELECT ",
        event_columns!(),
        " FROM latchwork_work_event e WHERE e.order_id = $1::uuid AND e.seq > $2 \
         ORDER BY e.seq LIMIT $3"
    ),
    unsealed_tail: "SELECT count(*), min(created_at) FROM latchwork_work_event \
        WHERE position IS NULL",
    keep_checkpoints: "INSERT INTO latchwork_work_checkpoint (order_id, position, hash) \
        SELECT DISTINCT ON (order_id) order_id, position, hash FROM latchwork_work_event \
        WHERE position <= $1 ORDER BY order_id, position DESC ON CONFLICT (order_id) DO UPDATE \
        SET position = excluded.position, hash = excluded.hash",
    prune_events: "DELETE FROM latchwork_work_event WHERE position <= $1",
    checkpoints: "SELECT order_id::text, position, hash FROM latchwork_work_checkpoint",
    oldest_events: "SELECT position, created_at FROM latchwork_work_event \
        WHERE position IS NOT NULL ORDER BY position LIMIT $1",
    count_refusal: "INSERT INTO latchwork_work_refusal AS f (order_id, item_id, actor, code, count, \
        recorded_at) VALUES ($1::uuid, $2, $3, $4, 0, $5) ON CONFLICT (order_id, item_id, actor, code) \
        DO UPDATE SET count = CASE WHEN f.recorded_at + $6 <= $5 THEN 0 ELSE f.count + 1 END, \
        recorded_at = CASE WHEN f.recorded_at + $6 <= $5 THEN $5 ELSE f.recorded_at END \
        RETURNING count",

    take_key: "INSERT INTO latchwork_work_idempotency AS k (caller, scope, key, request, answer, \
        created_at, expires_at) VALUES ($1, $2, $3, $4, NULL, $5, $6) \
        ON CONFLICT (caller, scope, key) DO UPDATE SET request = excluded.request, answer = NULL, \
        created_at = excluded.created_at, expires_at = excluded.expires_at \
        WHERE k.expires_at <= $5 RETURNING 1::bigint",
    stored_answer: "SELECT request, answer FROM latchwork_work_idempotency \
        WHERE caller = $1 AND scope = $2 AND key = $3 AND expires_at > $4",
    put_answer: "UPDATE latchwork_work_idempotency SET answer = $4 \
        WHERE caller = $1 AND scope = $2 AND key = $3",
    forget_key: "DELETE FROM latchwork_work_idempotency \
        WHERE caller = $1 AND scope = $2 AND key = $3",
    finish_key: "INSERT INTO latchwork_work_idempotency AS k (caller, scope, key, request, answer, \
        created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7) \
        ON CONFLICT (caller, scope, key) DO UPDATE SET answer = excluded.answer, \
        expires_at = excluded.expires_at WHERE k.request = excluded.request AND k.answer IS NULL \
        RETURNING 1::bigint",
    abandon_key: "DELETE FROM latchwork_work_idempotency \
        WHERE caller = $1 AND scope = $2 AND key = $3 AND request = $4 AND answer IS NULL",
    prune_keys: "DELETE FROM latchwork_work_idempotency WHERE (caller, scope, key) IN \
        (SELECT caller, scope, key FROM latchwork_work_idempotency WHERE expires_at <= $1 \
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)",

    review_state: "SELECT content_version, approved_version, overdue_at, apply_worker, \
        apply_until, apply_fence, apply_tries, applied_fence \
        FROM latchwork_work_order WHERE id = $1::uuid",
    set_content: "UPDATE latchwork_work_order SET content_version = $2 WHERE id = $1::uuid",
    set_approved: "UPDATE latchwork_work_order SET approved_version = $2, apply_worker = NULL, \
        apply_until = NULL, apply_tries = 0, apply_after = 0 WHERE id = $1::uuid",
    set_overdue: "UPDATE latchwork_work_order SET overdue_at = $2 WHERE id = $1::uuid",
    set_judged: "UPDATE latchwork_work_order SET judged_at = $2 WHERE id = $1::uuid",
    overdue: "SELECT id::text, settings, last_transitioned_at FROM latchwork_work_order WHERE state = 'submitted' \
        AND last_transitioned_at < $1 AND (overdue_at IS NULL OR overdue_at < last_transitioned_at) \
        AND id > $2::uuid ORDER BY id LIMIT $3",
    unjudged: concat!(
        "SELECT id::text FROM latchwork_work_order WHERE state = 'submitted' \
         AND (judged_at IS NULL OR judged_at < last_transitioned_at) AND id > $2::uuid AND type IN ",
        texts!(1),
        " ORDER BY id LIMIT $3"
    ),
    content_items: "SELECT id::text, state, results FROM latchwork_work_item WHERE order_id = $1::uuid \
        AND state IN ('submitted', 'accepted', 'completed', 'failed', 'dead_lettered') ORDER BY seq",
    content: "SELECT i.id::text, i.seq, b.input, r.result, r.version, r.actor_type, r.actor_id, \
        r.edited_from, r.created_at FROM latchwork_work_item i \
        JOIN latchwork_work_input b ON b.item_id = i.id \
        JOIN latchwork_work_result r ON r.item_id = i.id AND r.version = i.results \
        WHERE i.order_id = $1::uuid AND i.state IN ('submitted', 'accepted', 'completed') ORDER BY i.seq",
    submitters: "SELECT DISTINCT r.actor_id FROM latchwork_work_item i \
        JOIN latchwork_work_result r ON r.item_id = i.id WHERE i.order_id = $1::uuid \
        AND i.state IN ('submitted', 'accepted', 'completed') AND r.actor_id IS NOT NULL \
        AND r.version = (SELECT max(s.version) FROM latchwork_work_result s \
        WHERE s.item_id = i.id AND s.edited_from IS NULL) \
        UNION SELECT p.agent FROM latchwork_work_item i \
        JOIN latchwork_work_part p ON p.item_id = i.id WHERE i.order_id = $1::uuid \
        AND i.state IN ('submitted', 'accepted', 'completed') AND p.status = 'validated'",
    insert_review: "INSERT INTO latchwork_work_review (order_id, version, content, digest, \
        results_digest, preview, created_at) VALUES ($1::uuid, $2, $3, $4, $5, $6, $7)",
    review: "SELECT content, digest, results_digest, preview FROM latchwork_work_review \
        WHERE order_id = $1::uuid AND version = $2",
    insert_approval: "INSERT INTO latchwork_work_approval (order_id, version, actor_type, actor_id, \
        roles, created_at) VALUES ($1::uuid, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
    approvals: "SELECT actor_type, actor_id, roles, created_at FROM latchwork_work_approval \
        WHERE order_id = $1::uuid AND version = $2 ORDER BY created_at, actor_id",
    put_reworks: "INSERT INTO latchwork_work_rework (item_id, result_version, note) \
        SELECT item_id, result_version, note FROM json_to_recordset($1::json) AS x (item_id uuid, \
        result_version bigint, note text) ON CONFLICT (item_id) DO UPDATE SET result_version = excluded.result_version, \
        note = excluded.note",
    reworks: concat!(
        "SELECT w.item_id::text, w.note FROM latchwork_work_rework w JOIN latchwork_work_item i \
         ON i.id = w.item_id AND i.results = w.result_version WHERE w.item_id IN ",
        ids!(1)
    ),
    comments: "SELECT item_id::text, actor_type, actor_id, message, created_at \
        FROM latchwork_work_event WHERE order_id = $1::uuid AND event = 'commented' \
        ORDER BY seq DESC LIMIT $2",

    pick_apply: concat!(
        "SELECT id::text FROM latchwork_work_order WHERE state IN ('approved', 'applied') \
         AND apply_after <= $2 AND (apply_until IS NULL OR apply_until <= $2) AND (state = 'approved' AND approved_version IS NOT NULL \
         OR state = 'applied' AND applied_fence IS NOT NULL) AND type IN ",
        texts!(1),
        " ORDER BY priority DESC, last_transitioned_at, id LIMIT 1 FOR UPDATE SKIP LOCKED"
    ),
    // It waits for the row: a heartbeat that has it locked for a moment does not hold the order.
    pick_apply_of: "SELECT id::text FROM latchwork_work_order WHERE id = $1::uuid \
        AND state IN ('approved', 'applied') AND apply_after <= $2 AND (apply_until IS NULL OR apply_until <= $2) AND (state = 'approved' AND approved_version IS NOT NULL \
         OR state = 'applied' AND applied_fence IS NOT NULL) FOR UPDATE",
    claim_apply: "UPDATE latchwork_work_order SET apply_worker = $2, apply_until = $3, \
        apply_fence = apply_fence + 1, apply_tries = apply_tries + 1 WHERE id = $1::uuid",
    extend_apply: "UPDATE latchwork_work_order SET apply_until = $3 WHERE id = $1::uuid \
        AND apply_fence = $2 AND apply_worker IS NOT NULL",
    keep_apply: "UPDATE latchwork_work_order SET apply_tries = $2, applied_fence = $3, \
        apply_until = $4 WHERE id = $1::uuid",
    end_apply: "UPDATE latchwork_work_order SET apply_worker = NULL, apply_until = NULL, \
        apply_tries = $2, apply_after = $3 WHERE id = $1::uuid",
    expire_apply: "UPDATE latchwork_work_order SET apply_until = CASE WHEN apply_worker IS NULL \
        THEN NULL ELSE $2::bigint END, apply_after = 0, \
        apply_fence = apply_fence + 1 WHERE id = $1::uuid",
    insert_applied: "INSERT INTO latchwork_work_applied (order_id, version, fence, worker, diff, \
        created_at) VALUES ($1::uuid, $2, $3, $4, $5, $6)",
    applied: "SELECT diff FROM latchwork_work_applied \
        WHERE order_id = $1::uuid",

    orders_since: "SELECT id::text FROM latchwork_work_order WHERE state = $1 \
        AND last_transitioned_at < $2 AND id > $3::uuid ORDER BY id LIMIT $4",
    stale_orders: "UPDATE latchwork_work_order SET stale_at = $3 WHERE id IN (SELECT id \
        FROM latchwork_work_order WHERE state NOT IN ('completed', 'dead_lettered') \
        AND created_at < $1 AND stale_at IS NULL ORDER BY created_at LIMIT $2 \
        FOR UPDATE SKIP LOCKED) RETURNING id::text",
    put_type: "INSERT INTO latchwork_work_type (name, version, schemas, settings) \
        VALUES ($1, $2, $3, $4) ON CONFLICT (name, version) DO NOTHING",
    item_ids: concat!(
        "SELECT id::text FROM latchwork_work_item WHERE order_id IN ",
        ids!(1),
        " LIMIT $2"
    ),
    delete_items: &[
        concat!("DELETE FROM latchwork_work_part_body WHERE item_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_part WHERE item_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_input WHERE item_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_result WHERE item_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_rework WHERE item_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_item WHERE id IN ", ids!(1)),
    ],
    delete_orders: &[
        concat!("DELETE FROM latchwork_work_review WHERE order_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_approval WHERE order_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_applied WHERE order_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_payload WHERE order_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_refusal WHERE order_id IN ", ids!(1)),
        concat!("DELETE FROM latchwork_work_order WHERE id IN ", ids!(1)),
    ],
    order_states: "SELECT type, state, count(*) FROM latchwork_work_order GROUP BY type, state \
        ORDER BY type, state",
    item_states: "SELECT type, state, count(*) FROM latchwork_work_item GROUP BY type, state \
        ORDER BY type, state",
    agents: "SELECT agent, count(*), max(heartbeat_at) FROM latchwork_work_lease GROUP BY agent \
        ORDER BY agent",
    agents_of_types: concat!(
        "SELECT agent, count(*), max(heartbeat_at) FROM latchwork_work_lease WHERE type IN ",
        texts!(1),
        " GROUP BY agent ORDER BY agent"
    ),
    type_of_order: "SELECT type FROM latchwork_work_order WHERE id = $1::uuid UNION ALL \
        SELECT type FROM latchwork_work_chain WHERE order_id = $1::uuid AND type IS NOT NULL LIMIT 1",
    type_of_item: "SELECT type FROM latchwork_work_item WHERE id = $1::uuid",
};
