//! `/v1/order-types`.

use axum::Json;
use axum::extract::{Path, State};
use latchwork_api::{OrderType, OrderTypes, Problems};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show))
}

/// The order types that the server knows.
#[utoipa::path(get, path = "/v1/order-types", operation_id = "list_order_types", tag = "order types",
    responses((status = 200, body = OrderTypes), Problems))]
async fn list(State(app): State<App>, caller: Caller) -> Json<OrderTypes> {
    let types = app.work.types().iter().filter(|one| caller.scope().allows_type(one.name()));
    Json(OrderTypes { order_types: types.map(convert::order_type).collect() })
}

/// One order type, with its schemas.
#[utoipa::path(get, path = "/v1/order-types/{name}", operation_id = "show_order_type",
    tag = "order types", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = OrderType), Problems))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<OrderType>, ApiError> {
    let name = path.ok().map(|Path(name)| name).filter(|name| caller.scope().allows_type(name));
    let known = name.and_then(|name| app.work.types().get(&name).ok().cloned());
    match known {
        Some(known) => Ok(Json(convert::order_type(&known))),
        None => Err(ApiError::new(
            404,
            "order_type_not_found",
            "there is no order type of this name; /v1/order-types lists them",
        )),
    }
}
