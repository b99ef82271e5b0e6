//! Pages: the address of the next one in a `Link` header.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use serde::Serialize;
use url::form_urlencoded::Serializer;

/// A page of a listing, with a link to the next one.
pub(crate) fn page(
    path: &str,
    pairs: &[(String, String)],
    parameter: &str,
    next: Option<&str>,
    body: impl Serialize,
) -> Response {
    let mut response = Json(body).into_response();
    if let Some(next) = next {
        let kept = pairs.iter().filter(|(name, _)| name != parameter);
        let query =
            Serializer::new(String::new()).extend_pairs(kept).append_pair(parameter, next).finish();
        if let Ok(link) = HeaderValue::from_str(&format!("<{path}?{query}>; rel=\"next\"")) {
            response.headers_mut().insert(header::LINK, link);
        }
    }
    response
}
