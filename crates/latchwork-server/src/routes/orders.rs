//! `/v1/orders`.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_work::query::{OrderFilter, OrderQuery};
use latchwork_work::{Order, OrderId, Proposal};
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
        .routes(routes!(list, propose))
        .routes(routes!(show))
        .routes(routes!(timeline))
        .routes(routes!(requeue))
        .routes(routes!(retry))
        .routes(routes!(cancel))
        .routes(routes!(dead_letter))
        .routes(routes!(clone))
        .routes(routes!(comment))
}

/// A page of orders.
///
/// Filters, sorting, includes and pages follow the grammar of docs/work.md; a name that does not exist is
/// refused.
#[utoipa::path(get, path = "/v1/orders", operation_id = "list_orders", tag = "orders",
    params(
        ("state" = Option<String>, Query, description = "States, separated by commas"),
        ("type" = Option<String>, Query, description = "Types, separated by commas"),
        ("sort" = Option<String>, Query, description = "`-priority,created_at` unless told"),
        ("include" = Option<String>, Query, description = "items, events, itemsCount, eventsCount"),
        ("page[size]" = Option<u32>, Query, description = "1 to 100; 50 unless told"),
        ("page[cursor]" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, body = api::OrderPage), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut query = OrderQuery::parse(pairs.iter().map(|(name, value)| (name, value)))?;
    if let Some(types) = caller.scope().types() {
        query.filters.push(OrderFilter::Type(types.to_vec()));
    }
    let found = app.work.orders(&query).await?;
    let next = found.next.map(|next| next.to_string());
    let orders = found.orders.into_iter().map(convert::listed_order).collect();
    let body = api::OrderPage { orders, next: next.clone() };
    Ok(page("/v1/orders", &pairs, "page[cursor]", next.as_deref(), body))
}

/// Proposes an order: checks the payload, plans its items, and stores both.
#[utoipa::path(post, path = "/v1/orders", operation_id = "propose", tag = "orders",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::Proposal,
    responses(
        (status = 201, body = api::Proposed, description = "The order was made"),
        (status = 200, body = api::Proposed, description = "A live order has the unique key"),
        Problems))]
async fn propose(
    State(app): State<App>,
    caller: Caller,
    Json(wanted): Json<api::Proposal>,
) -> Result<Response, ApiError> {
    caller.require_type(&wanted.order_type)?;
    let states = wanted.unique_states.iter().map(|state| state.parse());
    let proposal = Proposal {
        order_type: wanted.order_type,
        payload: wanted.payload,
        priority: wanted.priority,
        meta: wanted.meta,
        unique_key: wanted.unique_key,
        unique_states: states.collect::<Result<_, _>>()?,
    };
    let client = caller.client(&app);
    let proposed = client.propose(proposal).await?;
    Ok(marked(&client, made(proposed)))
}

/// An order with its payload and the states of its items. Its ETag is its version.
#[utoipa::path(get, path = "/v1/orders/{id}", operation_id = "show_order", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = api::OrderDetails), Problems))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let found = app.work.order(id).await?;
    let version = found.order.version;
    let body = api::OrderDetails {
        order: convert::order(found.order),
        payload: found.payload,
        item_counts: convert::counts(&found.item_counts),
    };
    Ok(tagged(version, Answer(body)))
}

/// The events of an order, in the order in which they were written; those at the end may not be sealed.
#[utoipa::path(get, path = "/v1/orders/{id}/events", operation_id = "order_events", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order"),
        ("after" = Option<i64>, Query, description = "The `next` of the page before")),
    responses((status = 200, body = api::EventPage), Problems))]
async fn timeline(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut after = None;
    for (name, value) in &pairs {
        match name.as_str() {
            "after" => after = Some(super::events::number("after", value)?),
            _ => return Err(super::events::unknown(name, &["after"])),
        }
    }
    caller.require_order(&app, id).await?;
    // Events outlive their order, so an order that is gone and one that never was look alike here.
    let found = app.work.timeline(id, after, 100).await?;
    if found.events.is_empty() {
        app.work.order(id).await?;
    }
    let next = found.next.map(|next| next.to_string());
    let events = found.events.into_iter().map(convert::event).collect();
    let body = api::EventPage { events, next: next.clone() };
    Ok(page(&format!("/v1/orders/{id}/events"), &pairs, "after", next.as_deref(), body))
}

/// Takes the leases of an order back, and puts a rejected order back into the queue.
#[utoipa::path(post, path = "/v1/orders/{id}/requeue", operation_id = "requeue", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body = api::ReasonRequest, responses((status = 200, body = api::Order), Problems))]
async fn requeue(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::ReasonRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let order = client.requeue(id, &request.reason).await?;
    Ok(marked(&client, changed(order)))
}

/// Tries the failed items of an order again, and a failed order with them.
#[utoipa::path(post, path = "/v1/orders/{id}/retry", operation_id = "retry", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = api::Order), Problems))]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let order = client.retry(id).await?;
    Ok(marked(&client, changed(order)))
}

/// Calls an order off.
#[utoipa::path(post, path = "/v1/orders/{id}/cancel", operation_id = "cancel", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body = api::ReasonRequest, responses((status = 200, body = api::Order), Problems))]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::ReasonRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let order = client.cancel(id, &request.reason).await?;
    Ok(marked(&client, changed(order)))
}

/// Gives a failed or rejected order up, with its items.
#[utoipa::path(post, path = "/v1/orders/{id}/dead-letter", operation_id = "dead_letter", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body = api::ReasonRequest, responses((status = 200, body = api::Order), Problems))]
async fn dead_letter(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::ReasonRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let order = client.dead_letter(id, &request.reason).await?;
    Ok(marked(&client, changed(order)))
}

/// Proposes an order like this one.
#[utoipa::path(post, path = "/v1/orders/{id}/clone", operation_id = "clone_order", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body = api::CloneRequest,
    responses((status = 201, body = api::Proposed), Problems))]
async fn clone(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::CloneRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let proposed = client.clone_order(id, request.priority).await?;
    Ok(marked(&client, made(proposed)))
}

/// Leaves a comment on an order.
#[utoipa::path(post, path = "/v1/orders/{id}/comments", operation_id = "comment", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body = api::CommentRequest,
    responses((status = 201, body = api::Commented), Problems))]
async fn comment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::CommentRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let event_id = client.comment(id, request.text).await?.as_uuid();
    Ok(marked(&client, (StatusCode::CREATED, Answer(api::Commented { event_id }))))
}

fn made(proposed: latchwork_work::Proposed) -> Response {
    let status = if proposed.existing { StatusCode::OK } else { StatusCode::CREATED };
    let version = proposed.order.version;
    let location = HeaderValue::from_str(&format!("/v1/orders/{}", proposed.order.id));
    let order = convert::order(proposed.order);
    let body = Answer(api::Proposed { order, existing: proposed.existing });
    let mut response = tagged(version, (status, body));
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn changed(order: Order) -> Response {
    tagged(order.version, Answer(convert::order(order)))
}

fn tagged(version: i64, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
