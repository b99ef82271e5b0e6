//! `/v1/explain`: why something waits.

use axum::Json;
use axum::extract::State;
use latchwork_api::{Explanation, Problems};
use latchwork_work::{ItemId, OrderId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::flows::allowed;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::explain::Explainer;
use crate::extract::{Id, Name};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(order))
        .routes(routes!(item))
        .routes(routes!(flow))
        .routes(routes!(lock))
}

/// Why an order waits: each reason, and the reasons behind it.
#[utoipa::path(get, path = "/v1/explain/orders/{id}", operation_id = "explain_order", tag = "explain",
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses((status = 200, body = Explanation), Problems))]
async fn order(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<OrderId>,
) -> Result<Json<Explanation>, ApiError> {
    caller.require_order(&app, id).await?;
    Ok(Json(Explainer::new(&app, &caller).order(id).await?))
}

/// Why an item waits.
#[utoipa::path(get, path = "/v1/explain/items/{id}", operation_id = "explain_item", tag = "explain",
    params(("id" = uuid::Uuid, Path, description = "The item")),
    responses((status = 200, body = Explanation), Problems))]
async fn item(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
) -> Result<Json<Explanation>, ApiError> {
    caller.require_item(&app, id).await?;
    Ok(Json(Explainer::new(&app, &caller).item(id).await?))
}

/// Why a flow waits.
#[utoipa::path(get, path = "/v1/explain/flows/{id}", operation_id = "explain_flow", tag = "explain",
    params(("id" = uuid::Uuid, Path, description = "The flow")),
    responses((status = 200, body = Explanation), Problems))]
async fn flow(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<Json<Explanation>, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    Ok(Json(Explainer::new(&app, &caller).flow(id).await?))
}

/// Why nobody else gets a key: who holds it, what the holders wait for, and who is in the queue.
#[utoipa::path(get, path = "/v1/explain/locks/{key}", operation_id = "explain_lock", tag = "explain",
    params(("key" = String, Path, description = "The key, with `/` as `%2F`")),
    responses((status = 200, body = Explanation), Problems))]
async fn lock(
    State(app): State<App>,
    caller: Caller,
    Name(key): Name,
) -> Result<Json<Explanation>, ApiError> {
    caller.require_key(&key)?;
    Ok(Json(Explainer::new(&app, &caller).lock(&key).await?))
}
