//! `/v1/order-types`.

use axum::Json;
use axum::extract::{Path, State};
use latchwork_api::{OrderType, OrderTypes, Problems, TransitionTables};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(transitions))
}

/// The order types that the server knows.
#[utoipa::path(get, path = "/v1/order-types", operation_id = "list_order_types", tag = "order types",
    responses((status = 200, body = OrderTypes), Problems))]
async fn list(State(app): State<App>, caller: Caller) -> Json<OrderTypes> {
    let types = app.work.types().iter().filter(|one| caller.scope().allows_type(one.name()));
    Json(OrderTypes { order_types: types.map(convert::order_type).collect() })
}

/// Which state of an order or an item may follow which.
#[utoipa::path(get, path = "/v1/transitions", operation_id = "show_transitions", tag = "order types",
    responses((status = 200, body = TransitionTables), Problems))]
async fn transitions(State(app): State<App>, _: Caller) -> Json<TransitionTables> {
    let (orders, items) = (app.work.tables().order(), app.work.tables().item());
    let orders = orders.states().iter().map(|from| (from, orders.allowed_from(from)));
    let items = items.states().iter().map(|from| (from, items.allowed_from(from)));
    Json(TransitionTables {
        orders: orders.map(|(from, to)| (from.to_string(), names(to))).collect(),
        items: items.map(|(from, to)| (from.to_string(), names(to))).collect(),
    })
}

fn names<'a, S: ToString + 'a>(states: impl Iterator<Item = &'a S>) -> Vec<String> {
    states.map(S::to_string).collect()
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
