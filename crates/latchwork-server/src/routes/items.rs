//! `/v1/items`, and the leases on them.

use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_lock::{Clock as _, SystemClock};
use latchwork_work::query::ItemQuery;
use latchwork_work::{Checkout, Failure, ItemId, LeaseId, OrderId, Submission};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::marked;
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::{Id, Json, Pairs};
use crate::page::page;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(checkout))
        .routes(routes!(heartbeat))
        .routes(routes!(submit))
        .routes(routes!(release))
        .routes(routes!(snooze))
        .routes(routes!(fail))
        .routes(routes!(show))
        .routes(routes!(retry))
}

/// A page of items, with who works on them.
#[utoipa::path(get, path = "/v1/items", operation_id = "list_items", tag = "items",
    params(
        ("order" = Option<uuid::Uuid>, Query, description = "Of this order"),
        ("type" = Option<String>, Query, description = "Types, separated by commas"),
        ("state" = Option<String>, Query, description = "States, separated by commas"),
        ("leased_by" = Option<String>, Query, description = "An agent"),
        ("page[size]" = Option<u32>, Query, description = "1 to 100; 50 unless told"),
        ("page[cursor]" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, body = api::ItemPage), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut query = ItemQuery::parse(pairs.iter().map(|(name, value)| (name, value)))?;
    query.types = caller.narrow_types(&query.types)?;
    let found = app.work.list_items(&query).await?;
    let next = found.next.map(|next| next.to_string());
    let listed = |one: latchwork_work::ListedItem| api::ListedItem {
        item: convert::item(one.item),
        lease: one.lease.map(convert::lease_info),
    };
    let items = found.items.into_iter().map(listed).collect();
    let body = api::ItemPage { items, next: next.clone() };
    Ok(page("/v1/items", &pairs, "page[cursor]", next.as_deref(), body))
}

/// An item with its input, latest result and lease.
#[utoipa::path(get, path = "/v1/items/{id}", operation_id = "show_item", tag = "items",
    params(("id" = uuid::Uuid, Path, description = "The item")),
    responses((status = 200, body = api::ItemDetails), Problems))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
) -> Result<Answer<api::ItemDetails>, ApiError> {
    caller.require_item(&app, id).await?;
    Ok(Answer(convert::item_details(app.work.item(id).await?)))
}

/// A long poll waits in slices: between two of them it sees that the server ends, and no slice is
/// dropped in the moment of a claim.
const SLICE: Duration = Duration::from_secs(1);

/// Leases items, and waits for some where nothing can be leased.
#[utoipa::path(post, path = "/v1/items/checkout", operation_id = "checkout", tag = "items",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A repeated request gets the same leases, as they are now")),
    request_body = api::CheckoutRequest,
    responses((status = 200, body = api::CheckedOut), Problems))]
async fn checkout(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::CheckoutRequest>,
) -> Result<Response, ApiError> {
    let wait = Duration::from_millis(request.wait_ms);
    if wait > app.settings.max_wait {
        let most = app.settings.max_wait.as_millis();
        let detail = format!("a request waits {most} ms at most; ask again then");
        return Err(ApiError::new(400, "invalid_argument", detail).field("/wait_ms"));
    }
    let order = request.order.map(OrderId::from_uuid);
    if let Some(order) = order {
        caller.require_order(&app, order).await?;
    }
    let client = caller.client(&app);
    let mut wanted = Checkout {
        order,
        types: caller.narrow_types(&request.types)?,
        min_priority: request.min_priority,
        meta: request.meta,
        limit: request.limit,
        wait: Duration::ZERO,
    };
    let _place = if wait.is_zero() { None } else { Some(app.waiting()?) };
    let deadline = SystemClock.now().after(wait);
    loop {
        let left = deadline.since(SystemClock.now());
        wanted.wait = left.min(SLICE);
        let got = client.checkout(wanted.clone()).await?;
        if !got.leases.is_empty() || left <= SLICE || app.is_ending() {
            return Ok(marked(&client, Answer(convert::checked_out(got))));
        }
    }
}

/// Extends a lease by its whole ttl.
#[utoipa::path(post, path = "/v1/items/heartbeat", operation_id = "heartbeat", tag = "items",
    request_body = api::LeaseRequest,
    responses((status = 200, body = api::Heartbeat), Problems))]
async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::LeaseRequest>,
) -> Result<Answer<api::Heartbeat>, ApiError> {
    let beat = caller.client(&app).heartbeat(LeaseId::from_uuid(request.lease)).await?;
    Ok(Answer(api::Heartbeat {
        id: beat.id.as_uuid(),
        expires_at: beat.expires_at,
        heartbeat_every_ms: convert::millis(beat.heartbeat_every),
    }))
}

/// Submits the result of an item, and ends the lease.
#[utoipa::path(post, path = "/v1/items/submit", operation_id = "submit", tag = "items",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::SubmitRequest,
    responses((status = 200, body = api::Submitted), Problems))]
async fn submit(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::SubmitRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let submission = Submission {
        lease: LeaseId::from_uuid(request.lease),
        result: request.result,
        evidence: request.evidence,
        notes: request.notes,
    };
    let done = client.submit(submission).await?;
    let body = api::Submitted {
        item_id: done.item_id.as_uuid(),
        order_id: done.order_id.as_uuid(),
        state: done.state.as_str().to_owned(),
        result_version: done.result_version,
    };
    Ok(marked(&client, Answer(body)))
}

/// Gives a lease back; the attempt does not count.
#[utoipa::path(post, path = "/v1/items/release", operation_id = "release", tag = "items",
    request_body = api::ReleaseRequest, responses((status = 200, body = api::Item), Problems))]
async fn release(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::ReleaseRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let lease = LeaseId::from_uuid(request.lease);
    let item = client.release(lease, request.reason.as_deref()).await?;
    Ok(marked(&client, Answer(convert::item(item))))
}

/// Gives a lease back, and lets nobody lease the item for a while.
#[utoipa::path(post, path = "/v1/items/snooze", operation_id = "snooze", tag = "items",
    request_body = api::SnoozeRequest, responses((status = 200, body = api::Item), Problems))]
async fn snooze(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::SnoozeRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let span = Duration::from_millis(request.for_ms);
    let item = client.snooze(LeaseId::from_uuid(request.lease), span).await?;
    Ok(marked(&client, Answer(convert::item(item))))
}

/// Says that the item could not be done.
#[utoipa::path(post, path = "/v1/items/fail", operation_id = "fail", tag = "items",
    request_body = api::FailRequest, responses((status = 200, body = api::Item), Problems))]
async fn fail(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::FailRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let failure = Failure {
        code: request.code,
        message: request.message,
        details: request.details,
        permanent: request.permanent,
    };
    let item = client.fail(LeaseId::from_uuid(request.lease), failure).await?;
    Ok(marked(&client, Answer(convert::item(item))))
}

/// Tries one failed item again, from its first attempt on.
#[utoipa::path(post, path = "/v1/items/{id}/retry", operation_id = "retry_item", tag = "items",
    params(("id" = uuid::Uuid, Path, description = "The item")),
    responses((status = 200, body = api::Item), Problems))]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
) -> Result<Response, ApiError> {
    caller.require_item(&app, id).await?;
    let client = caller.client(&app);
    let item = client.retry_item(id).await?;
    Ok(marked(&client, Answer(convert::item(item))))
}
