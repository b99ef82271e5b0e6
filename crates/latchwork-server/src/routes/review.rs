//! `/v1/orders/{id}`: preview, decisions, apply and receipt.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_work::OrderId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::marked;
use super::orders::{changed, tagged};
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::{Id, Json};
use crate::once::once;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(preview))
        .routes(routes!(approve))
        .routes(routes!(reject))
        .routes(routes!(apply))
        .routes(routes!(take_back_apply))
        .routes(routes!(receipt))
}

/// What a reviewer sees of an order: what apply would change, and how far the review is.
///
/// An approval names the content version and the digest that it shows.
#[utoipa::path(get, path = "/v1/orders/{id}/preview", operation_id = "preview", tag = "review",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = api::Preview), Problems))]
async fn preview(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Answer<api::Preview>, ApiError> {
    caller.require_order(&app, id).await?;
    Ok(Answer(convert::preview(app.work.preview(id).await?)))
}

/// Approves what a preview showed, as it is or with edits.
///
/// If results or edits came since, it is 409 `content_changed`, with the difference in `changes`, and
/// the version and digest to look at. The order is applied later.
#[utoipa::path(post, path = "/v1/orders/{id}/approve", operation_id = "approve", tag = "review",
    params(("id" = uuid::Uuid, Path, description = "The order"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once"),
        ("If-Match" = Option<String>, Header, description = "The ETag of the order")),
    request_body = api::ApproveRequest,
    responses((status = 200, body = api::Approved), Problems))]
async fn approve(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::ApproveRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let approved = client.approve(convert::approval(id, request)).await?;
    let version = approved.order.version;
    Ok(marked(&client, tagged(version, Answer(convert::approved(approved)))))
}

/// Rejects an order for good, or with rework: agents then do all of its items again, or those that are
/// named, and are given their results, the errors and the comments.
#[utoipa::path(post, path = "/v1/orders/{id}/reject", operation_id = "reject", tag = "review",
    params(("id" = uuid::Uuid, Path, description = "The order"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once"),
        ("If-Match" = Option<String>, Header, description = "The ETag of the order")),
    request_body = api::RejectRequest,
    responses((status = 200, body = api::Order), Problems))]
async fn reject(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
    Json(request): Json<api::RejectRequest>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let client = caller.client(&app);
    let order = client.reject(convert::rejection(id, request)).await?;
    Ok(marked(&client, changed(order)))
}

/// Who applies an order at this time.
#[utoipa::path(get, path = "/v1/orders/{id}/apply", operation_id = "show_apply", tag = "review",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = api::ApplyStatus), Problems))]
async fn apply(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Answer<api::ApplyStatus>, ApiError> {
    caller.require_order(&app, id).await?;
    Ok(Answer(convert::apply_status(app.work.apply_lease(id).await?)))
}

/// Takes an order back from its apply worker, so that another one can have it at once.
///
/// What the worker records from then on is refused; what it does elsewhere is not stopped.
#[utoipa::path(post, path = "/v1/orders/{id}/apply/take-back", operation_id = "take_back_apply",
    tag = "review", params(("id" = uuid::Uuid, Path, description = "The order"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::ApplyStatus), Problems))]
async fn take_back_apply(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Response, ApiError> {
    caller.require_order(&app, id).await?;
    let work = app.work.clone();
    let effect = async move {
        work.take_back_apply(id).await?;
        Ok(convert::apply_status(work.apply_lease(id).await?))
    };
    Ok(once(&app, &caller, "take_back_apply", &id, effect).await?.into_response())
}

/// What stands behind an applied order; `docs/verify.py` verifies it against `/v1/audit/export`.
///
/// 409 `not_sealed` right after apply: its events are sealed within a second.
#[utoipa::path(get, path = "/v1/orders/{id}/receipt", operation_id = "receipt", tag = "review",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = api::Receipt), Problems))]
async fn receipt(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Answer<api::Receipt>, ApiError> {
    caller.require_order(&app, id).await?;
    Ok(Answer(convert::receipt(app.work.receipt(id).await?)))
}
