//! The routes, one file a resource.

mod agents;
mod audit;
mod batch;
mod contents;
mod docs;
mod events;
mod explain;
mod flows;
mod headers;
mod health;
mod items;
mod links;
mod locks;
mod metrics;
mod order_types;
mod orders;
mod parts;
mod review;
mod stats;
mod tokens;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Uri};
use latchwork_api::IDEMPOTENT_REPLAYED;
use latchwork_work::WorkClient;
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::error::ApiError;
use crate::{access, local_only, request_id};

#[derive(OpenApi)]
#[openapi(info(
    title = "Latchwork",
    description = "Orders and items that agents lease, submit and have reviewed; locks; stored flows. Callers \
                   have a token; where the server has none, the header Latchwork-Actor names them.",
    license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
))]
struct Description;

/// The API as a router that a Rust program can mount.
///
/// As long as there are no tokens it answers to loopback names only, and refuses requests that a web page
/// could have sent.
pub fn router(app: App) -> Router {
    let settings = app.settings.clone();
    let (api, description) = split();
    api.merge(docs::routes(&description))
        .fallback(not_found)
        .layer(from_fn_with_state(app.clone(), access::check))
        .layer(from_fn(crate::metrics::count))
        .layer(DefaultBodyLimit::max(settings.max_body_bytes))
        .layer(from_fn_with_state(app.clone(), local_only::refuse_web_pages))
        .layer(from_fn(request_id::with_request_id))
        // Outside of everything, since refusals are rendered inside. It leaves event streams alone.
        .layer(CompressionLayer::new())
        .with_state(app)
}

/// The description of the API: OpenAPI 3.1.
pub fn openapi() -> utoipa::openapi::OpenApi {
    split().1
}

fn split() -> (Router<App>, utoipa::openapi::OpenApi) {
    let (api, mut description) = described().split_for_parts();
    links::add(&mut description);
    headers::add(&mut description);
    (api, description)
}

fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(orders::routes())
        .merge(items::routes())
        .merge(contents::routes())
        .merge(parts::routes())
        .merge(review::routes())
        .merge(batch::routes())
        .merge(audit::routes())
        .merge(events::routes())
        .merge(order_types::routes())
        .merge(stats::routes())
        .merge(agents::routes())
        .merge(tokens::routes())
        .merge(locks::routes())
        .merge(flows::routes())
        .merge(explain::routes())
}

async fn not_found(uri: Uri) -> ApiError {
    let detail = format!("there is nothing at {}; /openapi.json lists what there is", uri.path());
    ApiError::new(404, "not_found", detail)
}

/// Marks an answer that is that of an earlier request with the same key.
fn marked(client: &WorkClient, answer: impl IntoResponse) -> Response {
    replayed(client.was_replayed(), answer)
}

pub(crate) fn replayed(replayed: bool, answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    if replayed {
        let name = HeaderName::from_static(IDEMPOTENT_REPLAYED);
        response.headers_mut().insert(name, HeaderValue::from_static("true"));
    }
    response
}
