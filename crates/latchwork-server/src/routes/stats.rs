//! `/v1/stats`.

use axum::Json;
use axum::extract::State;
use latchwork_api::{Problems, Stats};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show))
}

/// How many orders and items of each type are in each state.
#[utoipa::path(get, path = "/v1/stats", operation_id = "show_stats", tag = "stats",
    responses((status = 200, body = Stats), Problems))]
async fn show(State(app): State<App>, _: Caller) -> Result<Json<Stats>, ApiError> {
    Ok(Json(Stats {
        orders: convert::state_counts(app.work.order_states().await?),
        items: convert::state_counts(app.work.item_states().await?),
    }))
}
