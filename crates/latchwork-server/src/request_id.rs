//! Request ids, security headers, and the rendering of refusals.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use latchwork_api::REQUEST_ID;
use tracing::Instrument;
use uuid::Uuid;

use crate::error::ApiError;

/// The id of a request: the caller's own where it is legal, a new one otherwise.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// The longest id of a caller, in bytes.
const MAX_ID: usize = 128;

pub(crate) async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = of_caller(request.headers()).unwrap_or_else(|| Uuid::now_v7().to_string());
    request.extensions_mut().insert(RequestId(id.clone()));
    let span = tracing::info_span!(
        "request", id = %id, method = %request.method(), path = request.uri().path()
    );
    let mut response = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), "answered");
        response
    }
    .instrument(span)
    .await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let headers = std::mem::take(response.headers_mut());
        response = error.render(&id);
        for (name, value) in &headers {
            if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
                response.headers_mut().insert(name.clone(), value.clone());
            }
        }
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(HeaderName::from_static(REQUEST_ID), id);
    }
    for (name, value) in SECURITY {
        let name = HeaderName::from_static(name);
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Nothing here is to be framed, guessed at, cached or run by a browser.
const SECURITY: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
];

fn of_caller(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let legal = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    legal.then(|| id.to_owned())
}
