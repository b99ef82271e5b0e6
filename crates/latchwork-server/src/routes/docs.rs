//! `/openapi.json`, and a page that shows it without any other host.

use axum::Router;
use axum::body::Bytes;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};
use utoipa::openapi::OpenApi;

use crate::app::App;

/// A page of ours: it reads `/openapi.json` and lists the operations.
const PAGE: &str = include_str!("docs.html");

pub(super) fn routes(description: &OpenApi) -> Router<App> {
    // Shared by all answers: everybody may ask for it, and many who do not read it would cost a copy each.
    let json = Bytes::from(description.to_json().unwrap_or_default());
    Router::new()
        .route("/openapi.json", get(async move || document(json.clone())))
        .route("/docs", get(page))
}

fn document(json: Bytes) -> Response {
    let mut response = json.into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

async fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let policy = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
                  script-src 'unsafe-inline'; frame-ancestors 'none'";
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
