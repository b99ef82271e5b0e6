//! `/openapi.json`, and a page that shows it without any other host.

use std::sync::Arc;

use axum::Router;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};
use utoipa::openapi::OpenApi;

use crate::app::App;

/// A page of ours: it reads `/openapi.json` and lists the operations.
const PAGE: &str = include_str!("docs.html");

pub(super) fn routes(description: &OpenApi) -> Router<App> {
    let json: Arc<str> = description.to_json().unwrap_or_default().into();
    Router::new()
        .route("/openapi.json", get(async move || document(&json)))
        .route("/docs", get(page))
}

fn document(json: &str) -> Response {
    let mut response = json.to_owned().into_response();
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
