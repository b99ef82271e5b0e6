//! Reading requests, with refusals as problems.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::header;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use url::form_urlencoded;

use crate::app::App;
use crate::error::ApiError;

/// A body of JSON. `Content-Type` must say so: a web page's form cannot.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let media = request.headers().get(header::CONTENT_TYPE);
        let media = media.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new(
                415,
                "unsupported_media_type",
                "send JSON, with the header `Content-Type: application/json`",
            ));
        }
        let limit = app.settings.max_body_bytes;
        let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, app)).await;
        let body = body.map_err(|_| {
            let detail = "the body did not come in time; send it faster, or in smaller requests";
            ApiError::new(408, "body_timeout", detail)
        })?;
        let body = body.map_err(|error| {
            let status = axum::response::IntoResponse::into_response(error).status();
            match status.as_u16() {
                413 => ApiError::new(
                    413,
                    "too_large",
                    format!("the body is larger than {limit} bytes"),
                ),
                _ => ApiError::new(400, "malformed_request", "the body ended early"),
            }
        })?;
        serde_json::from_slice(&body).map(Json).map_err(|error| unreadable::<T>(&body, &error))
    }
}

/// Says what is wrong with a body, and where: for that it is read once more.
fn unreadable<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> ApiError {
    let detail = format!("the body cannot be read: {error}");
    let refusal = ApiError::new(400, "malformed_request", detail);
    let mut again = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut again) {
        // What is no JSON is wrong at its line and column.
        Err(found) if error.is_data() => {
            let pointer = pointer(found.path());
            if pointer.is_empty() { refusal } else { refusal.field(&pointer) }
        }
        _ => refusal,
    }
}

/// A place in a body as a JSON pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    };
    path.iter().map(step).collect()
}

/// How long a client may take to send a body: a slow one must not hold a connection for ever.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// An id in the path.
pub(crate) struct Id<T>(pub(crate) T);

impl<T: std::str::FromStr<Err = latchwork_work::Error>> FromRequestParts<App> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Name(text) = Name::from_request_parts(parts, app).await?;
        Ok(Id(text.parse()?))
    }
}

/// A text in the path.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<App> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        path.map(|Path(text)| Name(text)).map_err(|_| not_utf8())
    }
}

fn not_utf8() -> ApiError {
    ApiError::new(400, "malformed_request", "the path cannot be read: it is not UTF-8")
}

/// The pairs of the query, in their order.
pub(crate) struct Pairs(pub(crate) Vec<(String, String)>);

/// So many parameters one request may have.
const MAX_PAIRS: usize = 64;

impl FromRequestParts<App> for Pairs {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<_> =
            form_urlencoded::parse(query.as_bytes()).into_owned().take(MAX_PAIRS + 1).collect();
        if pairs.len() > MAX_PAIRS {
            let detail = format!("the query has more than {MAX_PAIRS} parameters");
            return Err(ApiError::new(400, "malformed_request", detail));
        }
        // Nothing that is stored has one, and PostgreSQL fails on it.
        let has_nul = |(_, value): &&(String, String)| value.contains('\0');
        if let Some((name, _)) = pairs.iter().find(has_nul) {
            let detail = "it holds a NUL character, which no database keeps";
            return Err(ApiError::new(400, "invalid_argument", detail).field(name));
        }
        Ok(Pairs(pairs))
    }
}
