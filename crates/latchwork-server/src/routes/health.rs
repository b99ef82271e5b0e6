//! `/healthz` and `/readyz`: open, and saying nothing else.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use latchwork_api::{Health, Problems};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

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
async fn readyz(State(app): State<App>) -> Response {
    let answered = tokio::time::timeout(PATIENCE, app.work.now()).await;
    let ready = !app.is_ending() && matches!(answered, Ok(Ok(_)));
    if ready {
        return Json(Health { status: "ok".to_owned() }).into_response();
    }
    let body = Json(Health { status: "unavailable".to_owned() });
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
}
