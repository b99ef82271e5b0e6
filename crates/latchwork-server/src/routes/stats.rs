//! `/v1/stats`.

use axum::Json;
use axum::extract::State;
use latchwork_api::{Problems, Stats};
use latchwork_work::StateCount;
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
async fn show(State(app): State<App>, caller: Caller) -> Result<Json<Stats>, ApiError> {
    let seen = |mut counts: Vec<StateCount>| {
        counts.retain(|count| caller.scope().allows_type(&count.order_type));
        convert::state_counts(counts)
    };
    Ok(Json(Stats {
        orders: seen(app.work.order_states().await?),
        items: seen(app.work.item_states().await?),
    }))
}
