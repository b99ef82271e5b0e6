//! The statements that every database has, each in its own language.

/// All statements of one database. Numbers are bigint, times microseconds, ids text, lists JSON.
///
/// The columns of orders, items, leases and events come in the order in which
/// [`rows`](super::rows) reads them.
pub(crate) struct Statements {
    // orders
    /// Orders (1: JSON rows) → the ids of those that clash with no live order's `unique_key`.
    pub(crate) insert_orders: &'static str,
    /// JSON rows (1) of id and payload.
    pub(crate) insert_payloads: &'static str,
    /// An order (1).
    pub(crate) order: &'static str,
    /// The same, locked until the transaction ends.
    pub(crate) lock_order: &'static str,
    /// The order that takes a unique key: type (1), key (2).
    pub(crate) find_unique: &'static str,
    /// id (1), version (2) and state (3) as they must be; state (4), error (5), transition time (6),
    /// applied_at (7), completed_at (8), whether it takes its unique key (9).
    pub(crate) put_order: &'static str,
    /// The payload of an order (1).
    pub(crate) payload: &'static str,
    /// Orders (1: ids): id, state, and the state of an item that is still open.
    pub(crate) order_progress: &'static str,
    /// The items of an order (1): state and count.
    pub(crate) item_counts: &'static str,

    // items
    /// JSON rows (1).
    pub(crate) insert_items: &'static str,
    /// JSON rows (1) of id and input.
    pub(crate) insert_inputs: &'static str,
    /// Items (1: ids).
    pub(crate) items: &'static str,
    /// The same, locked in the order of their ids.
    pub(crate) lock_items: &'static str,
    /// The same, without those that somebody else has locked.
    pub(crate) lock_free_items: &'static str,
    /// The items of an order (1) in some states (2), locked.
    pub(crate) lock_order_items: &'static str,
    /// The items of an order (1) behind a place in the plan (2), some (3).
    pub(crate) order_items: &'static str,
    /// JSON rows (1) with version and state as they must be, at a time (2).
    pub(crate) put_items: &'static str,
    /// The inputs of items (1: ids).
    pub(crate) inputs: &'static str,
    /// JSON rows (1) of results.
    pub(crate) insert_results: &'static str,
    /// The latest results of items (1: ids): item, version, actor type and id, result, time.
    pub(crate) results: &'static str,
    /// All results of an item (1), the oldest first: the same columns.
    pub(crate) result_versions: &'static str,

    // parts
    /// The parts of an item (1) by key and seq: key, seq, status, checksum, bytes, errors, agent, fence,
    /// time.
    pub(crate) parts: &'static str,
    /// Their bodies: key, seq, payload, evidence, notes.
    pub(crate) part_bodies: &'static str,
    /// item (1), key (2), seq (3), status (4), checksum (5), bytes (6), errors (7), agent (8), fence (9),
    /// time (10): written or replaced.
    pub(crate) put_part: &'static str,
    /// item (1), key (2), seq (3), payload (4), evidence (5), notes (6): written or replaced.
    pub(crate) put_part_body: &'static str,

    // what can be leased
    /// JSON rows (1) as for `insert_items`, of queued items without a retry to wait for.
    pub(crate) insert_new_ready: &'static str,
    /// Queued items (1: ids) of live orders, at a time (2).
    pub(crate) insert_ready: &'static str,
    /// All queued items of an order (1), at a time (2).
    pub(crate) insert_ready_of_order: &'static str,
    /// Items (1: ids).
    pub(crate) remove_ready: &'static str,
    /// All items of an order (1) → their lanes.
    pub(crate) remove_ready_of_order: &'static str,
    /// What is due by now (1) and was not before, some (2) → their lanes.
    pub(crate) promote: &'static str,
    /// The first item of each type (1): type, priority, queued_at.
    pub(crate) heads: &'static str,
    /// Items of a type (1) from a priority (2) on, not behind a priority (3) and time (4), whose
    /// order's meta contains this (5), some (6): item, state of its order, lane.
    pub(crate) pick: &'static str,
    /// The same of one order (1).
    pub(crate) pick_of_order: &'static str,
    /// What a claim of types (2) might find now (1, or the database's time), under limits (3: keys): the
    /// types that have something open, whether something is due, whether a lease is over that counts for
    /// one of the limits or for a lane that holds something back, and the limits with what they hold.
    pub(crate) glance: &'static str,
    /// How long from now (1, or the database's time) until something of the types (2) is due.
    pub(crate) next_due: &'static str,
    /// Holds back what is beyond the limit of lanes (1).
    pub(crate) hold_back: &'static str,
    /// Opens what is within the limit of lanes (1): the types of what it opened.
    pub(crate) open_up: &'static str,
    /// Whether the statements above take many lanes at a time.
    pub(crate) many_lanes: bool,

    // leases
    /// JSON rows (1).
    pub(crate) insert_leases: &'static str,
    /// Leases (1: ids).
    pub(crate) leases: &'static str,
    /// Leases (1: ids), each with the input of its item.
    pub(crate) lease_inputs: &'static str,
    /// The leases of items (1: ids).
    pub(crate) leases_of_items: &'static str,
    /// The same, locked in the order of their items.
    pub(crate) lock_leases_of_items: &'static str,
    /// Leases (1: ids) that are not over, extended at a time (2) → id, end, ttl.
    pub(crate) extend_leases: &'static str,
    /// That a heartbeat of leases (1: ids) was recorded at a time (2).
    pub(crate) note_heartbeats: &'static str,
    /// The leases of items (1: ids) → agent, type, lane, what they count for.
    pub(crate) remove_leases: &'static str,
    /// Items whose lease is over at a time (1), some (2), behind an end (3) and an item (4): item, end.
    pub(crate) expired: &'static str,
    /// The same of one limit: now (1), agent (2), type (3), lane (4), some (5): item.
    pub(crate) expired_of: &'static str,
    /// The same of the lanes that hold back an item of the types: now (1), types (2), some (3): item.
    pub(crate) expired_of_full_lanes: &'static str,

    // limits
    /// JSON rows (1) of key, max and ordered: made, or brought up to date.
    pub(crate) set_limits: &'static str,
    /// Limits (1: keys), locked in the order of their keys: key, held, max, ordered.
    pub(crate) lock_limits: &'static str,
    /// The same, not locked.
    pub(crate) limits: &'static str,
    /// Lanes whose first item that is held back is of a type (1), some (2): as above.
    pub(crate) full_lanes: &'static str,
    /// JSON rows (1) of key and change.
    pub(crate) change_limits: &'static str,
    /// Limits behind a key (1), some (2): key, and whether its count is wrong or something waits for it.
    pub(crate) list_limits: &'static str,
    /// Counts the leases of a limit (1: key) anew.
    pub(crate) recount: &'static str,

    // events
    /// JSON rows (1).
    pub(crate) insert_events: &'static str,
    /// The position of the last sealed event, locked.
    pub(crate) lock_sealer: &'static str,
    /// The same, not locked.
    pub(crate) sealed_position: &'static str,
    /// Sets it (1).
    pub(crate) put_sealer: &'static str,
    /// Events without a seal, in the order in which they were written, some (1).
    pub(crate) unsealed: &'static str,
    /// JSON rows (1) of seq, position and hash.
    pub(crate) put_seals: &'static str,
    /// The ends of the chains of orders (1: ids): order, hash.
    pub(crate) chains: &'static str,
    /// JSON rows (1) of order, position, hash and, with its first event, the order's type.
    pub(crate) put_chains: &'static str,
    /// Sealed events behind a position (1), some (2).
    pub(crate) events_after: &'static str,
    /// The position of the last sealed event, and of the first one behind a position (1).
    pub(crate) trail: &'static str,
    /// Sealed events behind a position (1) up to another (2), of event types (3) and order types (4)
    /// where these are told, some (5).
    pub(crate) events_between: &'static str,
    /// Sealed events of an order (1) behind a position (2) up to another (3), of event types (4) where
    /// these are told, some (5).
    pub(crate) order_events_between: &'static str,
    /// The last position that was pruned.
    pub(crate) pruned_position: &'static str,
    /// How far a listener (1) has come: position.
    pub(crate) listener: &'static str,
    /// A listener (1) has come to a position (2) at a time (3): made, or moved on and never back.
    pub(crate) put_listener: &'static str,
    /// All listeners: name, position, updated_at.
    pub(crate) listeners: &'static str,
    /// Forgets a listener (1).
    pub(crate) remove_listener: &'static str,
    /// The events of an order (1) behind a seq (2), some (3), sealed or not.
    pub(crate) order_events: &'static str,
    /// How many events have no seal yet, and since when (first created_at).
    pub(crate) unsealed_tail: &'static str,
    /// Pruned: checkpoints of all orders with events up to a position (1).
    pub(crate) keep_checkpoints: &'static str,
    /// Removes sealed events up to a position (1).
    pub(crate) prune_events: &'static str,
    /// Checkpoints: order, position, hash.
    pub(crate) checkpoints: &'static str,
    /// The oldest sealed events, some (1): position, created_at.
    pub(crate) oldest_events: &'static str,
    /// Counts a refusal: order (1), item or '' (2), actor (3), code (4), now (5), span (6) → count since
    /// the last event, and whether an event is due.
    pub(crate) count_refusal: &'static str,

    // idempotency
    /// caller (1), scope (2), key (3), hash of the request (4), now (5), end (6).
    pub(crate) take_key: &'static str,
    /// caller (1), scope (2), key (3), now (4) → hash of the request, answer.
    pub(crate) stored_answer: &'static str,
    /// caller (1), scope (2), key (3), answer (4).
    pub(crate) put_answer: &'static str,
    /// caller (1), scope (2), key (3).
    pub(crate) forget_key: &'static str,
    /// caller (1), scope (2), key (3), hash of the request (4), answer (5), now (6), end (7) → a row
    /// unless another request has the key, or a twin has stored an answer.
    pub(crate) finish_key: &'static str,
    /// caller (1), scope (2), key (3), hash of the request (4).
    pub(crate) abandon_key: &'static str,
    /// Keys that have expired at a time (1), some (2).
    pub(crate) prune_keys: &'static str,

    // review
    /// What review and apply know of an order (1): content version, approved version, overdue_at,
    /// worker, until, fence, tries, applied fence.
    pub(crate) review_state: &'static str,
    /// Sets the content version (2) of an order (1).
    pub(crate) set_content: &'static str,
    /// Sets the approved version (2) of an order (1); it is to be applied from the first try on.
    pub(crate) set_approved: &'static str,
    /// Notes at (2) that the deadline of an order (1) was dealt with.
    pub(crate) set_overdue: &'static str,
    /// Notes at (2) that the auto-approve rule has judged an order (1).
    pub(crate) set_judged: &'static str,
    /// Submitted orders since before a time (1) whose deadline was not dealt with, behind an id (2),
    /// some (3): id, settings, last_transitioned_at.
    pub(crate) overdue: &'static str,
    /// Submitted orders of types (1) that the rule has not judged, behind an id (2), some (3): id.
    pub(crate) unjudged: &'static str,
    /// The items of an order (1) that are in or failed, in the order of the plan: id, state, results.
    pub(crate) content_items: &'static str,
    /// The items of an order (1) with results that count: id, seq, input, result, version, actor type
    /// and id, edited_from, time.
    pub(crate) content: &'static str,
    /// The agents that submitted the results of an order (1): id.
    pub(crate) submitters: &'static str,
    /// order (1), version (2), content (3), digest (4), digest of the results (5), preview (6), time (7).
    pub(crate) insert_review: &'static str,
    /// A version (2) of an order's (1) content: content, digest, digest of the results, preview.
    pub(crate) review: &'static str,
    /// order (1), version (2), actor type (3) and id (4), roles (5), time (6); nothing where it is there.
    pub(crate) insert_approval: &'static str,
    /// The approvals of a version (2) of an order (1): actor type and id, roles, time.
    pub(crate) approvals: &'static str,
    /// JSON rows (1) of item, result version and note: written or replaced.
    pub(crate) put_reworks: &'static str,
    /// What was asked of items (1: ids) whose latest result is still that one: item, note.
    pub(crate) reworks: &'static str,
    /// The latest comments on an order (1), some (2), newest first: item, actor type and id, message, time.
    pub(crate) comments: &'static str,

    // apply
    /// The most urgent order of types (1) that can be applied or cleaned up at a time (2), locked: id.
    pub(crate) pick_apply: &'static str,
    /// The same of one order (1) at a time (2).
    pub(crate) pick_apply_of: &'static str,
    /// Gives an order (1) to a worker (2) until (3), with the next fence.
    pub(crate) claim_apply: &'static str,
    /// Extends the lease of an order (1) with a fence (2) until (3).
    pub(crate) extend_apply: &'static str,
    /// Notes that the apply of an order (1) was recorded: tries (2) from now on, its fence (3), and
    /// until when (4) the worker has it for what follows.
    pub(crate) keep_apply: &'static str,
    /// Ends the lease of an order (1): tries (2), not before (3).
    pub(crate) end_apply: &'static str,
    /// Ends the lease of an order (1) at a time (2), without forgetting who had it. The fence rises, so
    /// that the worker cannot extend it.
    pub(crate) expire_apply: &'static str,
    /// order (1), version (2), fence (3), worker (4), diff (5), time (6).
    pub(crate) insert_applied: &'static str,
    /// What was recorded of an order (1): diff.
    pub(crate) applied: &'static str,

    // maintenance
    /// Orders in a state (1) since before a time (2), behind an id (3), some (4): id.
    pub(crate) orders_since: &'static str,
    /// Orders that are not over, were proposed before a time (1) and not reported yet, some (2): id; and
    /// notes at (3) that they are.
    pub(crate) stale_orders: &'static str,
    /// JSON row (1): name, version, schemas.
    pub(crate) put_type: &'static str,
    /// Some items (2) of orders (1: ids): id.
    pub(crate) item_ids: &'static str,
    /// Removes items (1: ids) with their bodies. One statement a table.
    pub(crate) delete_items: &'static [&'static str],
    /// Removes order rows (1: ids) without items; the trail stays. One statement a table, the last one that
    /// of the orders.
    pub(crate) delete_orders: &'static [&'static str],
    /// How many orders are in each state: type, state, count.
    pub(crate) order_states: &'static str,
    /// How many items are in each state: type, state, count.
    pub(crate) item_states: &'static str,
    /// Who holds how many leases: agent, count, latest heartbeat.
    pub(crate) agents: &'static str,
    /// The same for leases on items of types (1: texts).
    pub(crate) agents_of_types: &'static str,
    /// The type of an order (1), which may be gone: its chain outlives it.
    pub(crate) type_of_order: &'static str,
    /// The type of an item (1).
    pub(crate) type_of_item: &'static str,
}
