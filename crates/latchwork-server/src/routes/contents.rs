//! What belongs to orders and items: inputs, results, leases, comments.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_work::query::LeaseQuery;
use latchwork_work::{EventType, ItemId, OrderId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::{number, unknown};
use super::marked;
use super::orders::note_of;
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::{Id, Json, Pairs};
use crate::page::page;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(items))
        .routes(routes!(results))
        .routes(routes!(leases))
        .routes(routes!(comment))
}

/// The items of an order with their inputs, latest results and leases, in the order of the plan.
#[utoipa::path(get, path = "/v1/orders/{id}/items", operation_id = "order_items", tag = "orders",
    params(("id" = uuid::Uuid, Path, description = "The order"),
        ("after" = Option<u32>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000; 50 unless told")),
    responses((status = 200, body = api::ItemDetailsPage), Problems))]
async fn items(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let (mut after, mut limit) = (None, 50);
    for (name, value) in &pairs {
        match name.as_str() {
            "after" => after = Some(number("after", value)?),
            "limit" => limit = number("limit", value)?,
            _ => return Err(unknown(name, &["after", "limit"])),
        }
    }
    let found = app.work.items(id, after, limit).await?;
    let last = found.last().filter(|_| found.len() == limit as usize);
    let next = last.map(|last| last.item.seq.to_string());
    let items = found.into_iter().map(convert::item_details).collect();
    let body = api::ItemDetailsPage { items, next: next.clone() };
    Ok(page(&format!("/v1/orders/{id}/items"), &pairs, "after", next.as_deref(), body))
}

/// All versions of an item's result, the oldest first.
#[utoipa::path(get, path = "/v1/items/{id}/results", operation_id = "item_results", tag = "items",
    params(("id" = uuid::Uuid, Path, description = "The item")),
    responses((status = 200, body = api::ItemResults), Problems))]
async fn results(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
) -> Result<Answer<api::ItemResults>, ApiError> {
    caller.require_item(&app, id).await?;
    let results = app.work.item_results(id).await?;
    Ok(Answer(api::ItemResults {
        results: results.into_iter().map(convert::item_result).collect(),
    }))
}

/// Who works on what, and for how long yet. A lease's id is its agent's secret, and is not told.
#[utoipa::path(get, path = "/v1/leases", operation_id = "list_leases", tag = "items",
    params(("agent" = Option<String>, Query, description = "Of this agent"),
        ("order" = Option<uuid::Uuid>, Query, description = "Of this order"),
        ("page[size]" = Option<u32>, Query, description = "1 to 100; 50 unless told"),
        ("page[cursor]" = Option<uuid::Uuid>, Query, description = "The `next` of the page before")),
    responses((status = 200, body = api::LeasePage), Problems))]
async fn leases(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut query = LeaseQuery::default();
    for (name, value) in &pairs {
        match name.as_str() {
            "agent" => query.agent = Some(value.clone()),
            "order" => query.order = Some(value.parse()?),
            "page[size]" => query.page_size = number("page[size]", value)?,
            "page[cursor]" => query.after = Some(value.parse()?),
            _ => return Err(unknown(name, &["agent", "order", "page[size]", "page[cursor]"])),
        }
    }
    let found = app.work.list_leases(&query).await?;
    let next = found.next.map(|next| next.to_string());
    // A page may have fewer leases than were asked for; its cursor goes on all the same.
    let seen = found.leases.into_iter().filter(|one| caller.scope().allows_type(&one.order_type));
    let leases = seen.map(convert::listed_lease).collect();
    let body = api::LeasePage { leases, next: next.clone() };
    Ok(page("/v1/leases", &pairs, "page[cursor]", next.as_deref(), body))
}

/// Leaves a comment on an item; the next agent of a rework is given it.
#[utoipa::path(post, path = "/v1/items/{id}/comments", operation_id = "comment_item", tag = "items",
    params(("id" = uuid::Uuid, Path, description = "The item"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::CommentRequest,
    responses((status = 201, body = api::Recorded), Problems))]
async fn comment(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
    Json(request): Json<api::CommentRequest>,
) -> Result<Response, ApiError> {
    caller.require_item(&app, id).await?;
    let client = caller.client(&app);
    let event = client.record_item_event(id, EventType::Commented, note_of(request)).await?;
    Ok(marked(&client, (StatusCode::CREATED, Answer(api::Recorded { event_id: event.as_uuid() }))))
}
