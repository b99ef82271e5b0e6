//! What the work layer says, in the words of the HTTP contract.

mod review;

use std::collections::BTreeMap;
use std::time::Duration;

use latchwork_api as api;
use latchwork_work as work;
use latchwork_work::{ItemCounts, ItemState};

pub(crate) use review::{
    apply_status, approval, approved, part, preview, receipt, rejection, submission, submitted,
    submitted_part, verification,
};

use crate::error::ApiError;

pub(crate) fn proposal(wanted: api::Proposal) -> Result<work::Proposal, ApiError> {
    let states = wanted.unique_states.iter().map(|state| state.parse());
    Ok(work::Proposal {
        order_type: wanted.order_type,
        payload: wanted.payload,
        priority: wanted.priority,
        meta: wanted.meta,
        unique_key: wanted.unique_key,
        unique_states: states.collect::<Result<_, _>>()?,
    })
}

pub(crate) fn proposed(proposed: work::Proposed) -> api::Proposed {
    api::Proposed { order: order(proposed.order), existing: proposed.existing }
}

pub(crate) fn planned(item: work::PlannedItem<serde_json::Value>) -> api::PlannedItem {
    api::PlannedItem {
        input: item.input,
        max_attempts: item.max_attempts,
        concurrency: item.concurrency.map(concurrency),
    }
}

fn concurrency(limit: work::Concurrency) -> api::Concurrency {
    api::Concurrency { key: limit.key, limit: limit.limit, ordered: limit.ordered }
}

pub(crate) fn order(order: work::Order) -> api::Order {
    api::Order {
        id: order.id.as_uuid(),
        order_type: order.order_type,
        type_version: order.type_version,
        state: order.state.as_str().to_owned(),
        version: order.version,
        priority: order.priority,
        requested_by: actor(order.requested_by),
        meta: order.meta,
        unique_key: order.unique_key,
        items: order.items,
        error: order.error,
        created_at: order.created_at,
        last_transitioned_at: order.last_transitioned_at,
        applied_at: order.applied_at,
        completed_at: order.completed_at,
    }
}

pub(crate) fn actor(actor: work::Actor) -> api::Actor {
    api::Actor { actor_type: actor.actor_type.as_str().to_owned(), id: actor.id }
}

pub(crate) fn counts(counts: &ItemCounts) -> BTreeMap<String, u32> {
    let count = |state: &ItemState| (state.as_str().to_owned(), counts.get(*state));
    ItemState::ALL.iter().map(count).filter(|(_, count)| *count > 0).collect()
}

pub(crate) fn listed_order(listed: work::ListedOrder) -> api::ListedOrder {
    api::ListedOrder {
        order: order(listed.order),
        order_items: listed.order_items.map(|items| items.into_iter().map(item).collect()),
        events: listed.events.map(|events| events.into_iter().map(event).collect()),
        items_count: listed.items_count.as_ref().map(counts),
        events_count: listed.events_count,
    }
}

pub(crate) fn item(item: work::Item) -> api::Item {
    api::Item {
        id: item.id.as_uuid(),
        order_id: item.order_id.as_uuid(),
        seq: item.seq,
        item_type: item.item_type,
        state: item.state.as_str().to_owned(),
        version: item.version,
        priority: item.priority,
        attempts: item.attempts,
        max_attempts: item.max_attempts,
        available_at: item.available_at,
        concurrency: item.concurrency.map(concurrency),
        fence: item.fence,
        leased_at: item.leased_at,
        accepted_at: item.accepted_at,
        error: item.error,
        results: item.results,
        created_at: item.created_at,
    }
}

pub(crate) fn item_details(found: work::ItemDetails) -> api::ItemDetails {
    api::ItemDetails {
        item: item(found.item),
        input: found.input,
        result: found.result.map(item_result),
        lease: found.lease.map(lease_info),
    }
}

pub(crate) fn item_result(result: work::ItemResult) -> api::ItemResult {
    api::ItemResult {
        version: result.version,
        actor: actor(result.actor),
        result: result.result,
        created_at: result.created_at,
        edited_from: result.edited_from,
    }
}

pub(crate) fn listed_lease(listed: work::ListedLease) -> api::ListedLease {
    api::ListedLease {
        lease: lease_info(listed.lease),
        order_type: listed.order_type,
        remaining_ms: millis(listed.remaining),
    }
}

pub(crate) fn heartbeat(beat: work::Heartbeat) -> api::Heartbeat {
    api::Heartbeat {
        id: beat.id.as_uuid(),
        expires_at: beat.expires_at,
        heartbeat_every_ms: millis(beat.heartbeat_every),
    }
}

pub(crate) fn lease_info(lease: work::LeaseInfo) -> api::LeaseInfo {
    api::LeaseInfo {
        item_id: lease.item_id.as_uuid(),
        order_id: lease.order_id.as_uuid(),
        leased_by_agent_id: lease.leased_by_agent_id,
        leased_at: lease.leased_at,
        lease_expires_at: lease.lease_expires_at,
        last_heartbeat_at: lease.last_heartbeat_at,
        fence: lease.fence,
    }
}

pub(crate) fn checked_out(got: work::CheckedOut) -> api::CheckedOut {
    let limit =
        |held: work::HeldBack| api::HeldBack { limit: held.limit, held: held.held, max: held.max };
    api::CheckedOut {
        leases: got.leases.into_iter().map(lease).collect(),
        held_back: got.held_back.into_iter().map(limit).collect(),
    }
}

fn lease(lease: work::Lease) -> api::Lease {
    api::Lease {
        id: lease.id.as_uuid(),
        item_id: lease.item_id.as_uuid(),
        order_id: lease.order_id.as_uuid(),
        order_type: lease.order_type,
        input: lease.input,
        agent: lease.agent,
        fence: lease.fence,
        attempt: lease.attempt,
        max_attempts: lease.max_attempts,
        expires_at: lease.expires_at,
        heartbeat_every_ms: millis(lease.heartbeat_every),
        previous: lease.previous,
    }
}

pub(crate) fn event(event: work::Event) -> api::Event {
    let provenance = match event.provenance.is_empty() {
        true => None,
        false => serde_json::to_value(event.provenance).ok(),
    };
    api::Event {
        id: event.id.as_uuid(),
        order_id: event.order_id.as_uuid(),
        item_id: event.item_id.map(work::ItemId::as_uuid),
        event: event.event.as_str().to_owned(),
        actor: actor(event.actor),
        payload: event.payload,
        diff: event.diff,
        message: event.message,
        provenance,
        created_at: event.created_at,
        seal: event
            .seal
            .map(|seal| api::Seal { position: seal.position, hash: seal.hash.to_string() }),
    }
}

pub(crate) fn order_type(known: &work::RegisteredType) -> api::OrderType {
    let settings = known.settings();
    api::OrderType {
        name: known.name().to_owned(),
        version: known.version(),
        settings: api::TypeSettings {
            lease_ttl_ms: millis(settings.lease_ttl),
            heartbeat_every_ms: millis(settings.heartbeat_every),
            retry: api::RetryPolicy {
                max_attempts: settings.retry.max_attempts,
                backoff_ms: millis(settings.retry.backoff),
                max_backoff_ms: millis(settings.retry.max_backoff),
                jitter_ms: millis(settings.retry.jitter),
            },
            failure: serde_json::to_value(settings.failure).unwrap_or_default(),
            max_leases: settings.max_leases,
            review: api::ReviewRule {
                approvals: settings.review.approvals,
                roles: settings.review.roles.clone(),
                proposer_may_approve: settings.review.proposer_may_approve,
                submitter_may_approve: settings.review.submitter_may_approve,
                exact_preview: settings.review.exact_preview,
                deadline_ms: settings.review.deadline.as_ref().map(|due| millis(due.after)),
                auto_approve: settings
                    .review
                    .auto_approve
                    .as_ref()
                    .map(|rule| rule.version.clone()),
            },
            required_parts: settings.parts.required.clone(),
            max_payload_bytes: settings.max_payload_bytes as u64,
            max_result_bytes: settings.max_result_bytes as u64,
        },
        payload_schema: known.payload_schema().clone(),
        input_schema: known.input_schema().clone(),
        result_schema: known.result_schema().clone(),
    }
}

pub(crate) fn state_counts(counts: Vec<work::StateCount>) -> Vec<api::StateCount> {
    let count = |count: work::StateCount| api::StateCount {
        order_type: count.order_type,
        state: count.state,
        count: count.count,
    };
    counts.into_iter().map(count).collect()
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
