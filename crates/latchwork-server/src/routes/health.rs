//! `/healthz` and `/readyz`: open, and saying nothing else.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use latchwork_api::{Health, Problems};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, body = Health), Problems))]
async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// A database that does not answer for so long is not ready.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether the server can serve: its database answers, and it does not end.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, body = Health), Problems))]
async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    let unavailable =
        |code, detail| Err(ApiError::new(503, code, detail).retry_after(Duration::from_secs(1)));
    if app.is_ending() {
        return unavailable("server_ending", "the server ends");
    }
    match tokio::time::timeout(PATIENCE, app.work.now()).await {
        Ok(Ok(_)) => Ok(Json(Health { status: "ok".to_owned() })),
        _ => unavailable("work_store_unavailable", "the store of orders does not answer"),
    }
}
