//! The parts of the listings.

use serde_json::{Map, Value};

use super::statements::{event_columns, ids, item_columns, lease_columns, order_columns, texts};
use crate::Result;
use crate::store::{Listings, Select, json, params};

/// That an item of an order can be leased at a time. Rows that are not due yet (hold 2) become due
/// without being changed, and are within the limit of their lane then or not.
macro_rules! has_available {
    () => {
        "EXISTS (SELECT 1 FROM latchwork_work_ready r LEFT JOIN latchwork_work_limit m \
         ON m.key = r.lane WHERE r.order_id = o.id AND (r.hold = 0 OR r.hold = 2 \
         AND r.available_at <= ? AND coalesce(m.held < m.max, true)))"
    };
}

/// What a row `r` with its lane's limit `m` waits for at a time (2); see `store::Wait`.
macro_rules! wait {
    () => {
        "(CASE WHEN r.available_at > $2 THEN 1 WHEN m.held >= m.max THEN 2 \
         WHEN r.hold = 1 AND m.ordered THEN 3 WHEN r.hold = 1 THEN 2 ELSE 0 END)::bigint"
    };
}

macro_rules! ready_with_limit {
    () => {
        " FROM latchwork_work_ready r LEFT JOIN latchwork_work_limit m ON m.key = r.lane "
    };
}

pub(super) const LISTINGS: Listings = Listings {
    orders: concat!("SELECT ", order_columns!(), " FROM latchwork_work_order o WHERE true"),
    order_ids: " AND o.id IN (SELECT value::uuid FROM json_array_elements_text(?::json))",
    order_states: " AND o.state IN (SELECT value FROM json_array_elements_text(?::json))",
    order_types: " AND o.type IN (SELECT value FROM json_array_elements_text(?::json))",
    requested_by_types: " AND o.requested_by_type IN \
        (SELECT value FROM json_array_elements_text(?::json))",
    requested_by_ids: " AND o.requested_by_id IN \
        (SELECT value FROM json_array_elements_text(?::json))",
    with_items_in: " AND EXISTS (SELECT 1 FROM latchwork_work_item i WHERE i.order_id = o.id \
        AND i.state IN (SELECT value FROM json_array_elements_text(?::json)))",
    available: concat!(" AND ", has_available!()),
    unavailable: concat!(" AND NOT ", has_available!()),
    meta_contains,
    orders_after: " AND o.id > ?::uuid",

    items: concat!("SELECT ", item_columns!(), " FROM latchwork_work_item i WHERE true"),
    items_of_order: " AND i.order_id = ?::uuid",
    items_of_types: " AND i.type IN (SELECT value FROM json_array_elements_text(?::json))",
    items_in_states: " AND i.state IN (SELECT value FROM json_array_elements_text(?::json))",
    items_leased_by: " AND i.id IN (SELECT l.item_id FROM latchwork_work_lease l \
        WHERE l.agent = ?)",
    items_after: " AND (i.order_id, i.seq) > (?::uuid, ?)",
    items_sorted: " ORDER BY i.order_id, i.seq LIMIT ?",

    leases: concat!("SELECT ", lease_columns!(), " FROM latchwork_work_lease l WHERE true"),
    leases_of_agent: " AND l.agent = ?",
    leases_of_order: " AND l.order_id = ?::uuid",
    leases_after: " AND l.item_id > ?::uuid",
    leases_sorted: " ORDER BY l.item_id LIMIT ?",

    included_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.seq < $2 AND i.order_id IN ",
        ids!(1),
        " ORDER BY i.order_id, i.seq"
    ),
    included_events: concat!(
        "SELECT ",
        event_columns!(),
        " FROM json_array_elements_text($1::json) w, LATERAL (SELECT * FROM latchwork_work_event n \
         WHERE n.order_id = w.value::uuid ORDER BY n.seq DESC LIMIT $2) e ORDER BY e.seq"
    ),
    included_item_counts: concat!(
        "SELECT order_id::text, state, count(*) FROM latchwork_work_item WHERE order_id IN ",
        ids!(1),
        " GROUP BY order_id, state"
    ),
    included_event_counts: concat!(
        "SELECT order_id::text, count(*) FROM latchwork_work_event WHERE order_id IN ",
        ids!(1),
        " GROUP BY order_id"
    ),

    waits: concat!(
        "SELECT ",
        wait!(),
        ", count(*), min(r.available_at)",
        ready_with_limit!(),
        "WHERE r.order_id = $1::uuid GROUP BY 1 ORDER BY 1"
    ),
    waiting_items: concat!(
        "SELECT ",
        item_columns!(),
        ready_with_limit!(),
        "JOIN latchwork_work_item i ON i.id = r.item_id WHERE r.order_id = $1::uuid AND ",
        wait!(),
        " = $3 ORDER BY r.seq LIMIT $4"
    ),
    wait_of_item: concat!(
        "SELECT ",
        wait!(),
        ", m.held, m.max, m.ordered::int::bigint, (SELECT f.item_id::text FROM latchwork_work_ready f \
         WHERE f.lane = r.lane ORDER BY f.priority DESC, f.queued_at, f.order_id, f.seq LIMIT 1)",
        ready_with_limit!(),
        "WHERE r.item_id = $1::uuid"
    ),
    first_leases: concat!(
        "SELECT ",
        lease_columns!(),
        " FROM latchwork_work_lease l WHERE l.order_id = $1::uuid \
         ORDER BY l.expires_at, l.item_id LIMIT $2"
    ),
    expired_leases: "SELECT count(*) FROM latchwork_work_lease WHERE order_id = $1::uuid \
        AND expires_at <= $2",
    first_items: concat!(
        "SELECT ",
        item_columns!(),
        " FROM latchwork_work_item i WHERE i.order_id = $1::uuid AND i.state IN ",
        texts!(2),
        " ORDER BY i.seq LIMIT $3"
    ),
};

/// Objects contain objects member by member, and arrays contain arrays element by element.
fn meta_contains(select: &mut Select, wanted: &Map<String, Value>) -> Result<()> {
    select.add(" AND coalesce(o.meta, '{}'::jsonb) @> ?::jsonb", params![json(wanted)?]);
    Ok(())
}
