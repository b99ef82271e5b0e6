//! Who asks.

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use latchwork_api::{ACTOR, IDEMPOTENCY_KEY};
use latchwork_work::{Actor, Provenance, WorkClient};

use crate::app::App;
use crate::error::ApiError;
use crate::request_id::RequestId;

/// Who asks, and with what: made for each request.
pub(crate) struct Caller {
    actor: Actor,
    provenance: Provenance,
    key: Option<String>,
    version: Option<i64>,
}

impl Caller {
    /// What the caller can do.
    pub(crate) fn client(&self, app: &App) -> WorkClient {
        let mut client = app.work.client(self.actor.clone()).provenance(self.provenance.clone());
        if let Some(key) = &self.key {
            client = client.idempotent(key.clone());
        }
        if let Some(version) = self.version {
            client = client.if_version(version);
        }
        client
    }
}

/// The actor where none is named.
const NOBODY: &str = "local";

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let headers = &parts.headers;
        if headers.contains_key(http::header::AUTHORIZATION) {
            let detail = "this server has no tokens, so it cannot check yours; leave it out";
            return Err(ApiError::new(401, "unauthorized", detail));
        }
        let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone());
        let provenance = Provenance {
            request_id,
            traceparent: text(headers, "traceparent")?.filter(|trace| is_traceparent(trace)),
            unverified: true,
            ..Provenance::default()
        };
        Ok(Caller {
            actor: actor_of(text(headers, ACTOR)?.as_deref())?,
            provenance,
            key: text(headers, IDEMPOTENCY_KEY)?,
            version: text(headers, "if-match")?.map(|tag| version_of(&tag)).transpose()?.flatten(),
        })
    }
}

/// `agent:NAME` or `user:NAME`.
fn actor_of(text: Option<&str>) -> Result<Actor, ApiError> {
    let actor = match text.map(|text| text.split_once(':').unwrap_or((text, ""))) {
        None => Actor::user(NOBODY),
        Some(("agent", name)) => Actor::agent(name),
        Some(("user", name)) => Actor::user(name),
        Some(_) => {
            let detail = "write the actor as `agent:NAME` or `user:NAME`";
            return Err(ApiError::new(400, "invalid_argument", detail).field(ACTOR));
        }
    };
    Ok(actor?)
}

/// The version that an `If-Match` names; none for `*`.
fn version_of(tag: &str) -> Result<Option<i64>, ApiError> {
    if tag == "*" {
        return Ok(None);
    }
    let number = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    number.and_then(|number| number.parse().ok()).map(Some).ok_or_else(|| {
        let detail = "it is the ETag of an order, such as \"3\", or *";
        ApiError::new(400, "invalid_argument", detail).field("if-match")
    })
}

/// A header that stands there once, as text.
fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.to_owned())),
        _ => {
            let detail = format!("the header {name} stands there once, in ASCII");
            Err(ApiError::new(400, "malformed_request", detail).field(name))
        }
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; one of another form is left out, as the standard asks.
fn is_traceparent(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}
