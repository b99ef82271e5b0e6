//! Who asks.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{Extensions, HeaderMap};
use latchwork_api::{ACTOR, IDEMPOTENCY_KEY};
use latchwork_work::{Actor, ItemId, OrderId, Provenance, WorkClient};

use crate::access::Role;
use crate::app::App;
use crate::error::ApiError;
use crate::request_id::RequestId;
use crate::scope::Scope;

/// Who asks, and with what: made for each request by the check of its access.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Inner>);

struct Inner {
    actor: Actor,
    identity: String,
    role: Role,
    scope: Scope,
    provenance: Provenance,
    key: Option<String>,
    version: Option<i64>,
}

impl Caller {
    /// Who it is.
    pub(crate) fn actor(&self) -> &Actor {
        &self.0.actor
    }

    /// The caller's name among all callers, `agent:NAME` or `user:NAME`: owners of locks are within it.
    pub(crate) fn identity(&self) -> &str {
        &self.0.identity
    }

    /// What it may do.
    pub(crate) fn role(&self) -> Role {
        self.0.role
    }

    /// What it may see.
    pub(crate) fn scope(&self) -> &Scope {
        &self.0.scope
    }

    /// Refuses an order type that the caller names and may not use.
    pub(crate) fn require_type(&self, order_type: &str) -> Result<(), ApiError> {
        if self.scope().allows_type(order_type) {
            return Ok(());
        }
        let detail = "the token is limited to other order types";
        Err(ApiError::new(403, "forbidden", detail).allowed(self.scope().types()))
    }

    /// Refuses a key that the caller names and may not use.
    pub(crate) fn require_key(&self, key: &str) -> Result<(), ApiError> {
        if self.scope().allows_key(key) {
            return Ok(());
        }
        let detail = "the token is limited to keys that begin otherwise";
        Err(ApiError::new(403, "forbidden", detail).allowed(self.scope().key_prefixes()))
    }

    /// Answers an order outside of the limits like one that does not exist. The type of an order never
    /// changes, so what is checked before an operation holds during it.
    pub(crate) async fn require_order(&self, app: &App, id: OrderId) -> Result<(), ApiError> {
        match self.scope().types() {
            None => Ok(()),
            Some(types) => Ok(app.work.check_order_type(id, types).await?),
        }
    }

    /// Answers an item of such an order like one that does not exist.
    pub(crate) async fn require_item(&self, app: &App, id: ItemId) -> Result<(), ApiError> {
        match self.scope().types() {
            None => Ok(()),
            Some(types) => Ok(app.work.check_item_type(id, types).await?),
        }
    }

    /// The order types to look for where the caller asks for these; see [`Scope::narrow`].
    pub(crate) fn narrow_types(&self, asked: &[String]) -> Result<Vec<String>, ApiError> {
        match self.scope().narrow(asked) {
            Ok(types) => Ok(types.to_vec()),
            Err(refused) => self.require_type(refused).map(|()| Vec::new()),
        }
    }

    /// What the caller can do.
    pub(crate) fn client(&self, app: &App) -> WorkClient {
        let Inner { actor, provenance, key, version, .. } = &*self.0;
        let mut client = app.work.client(actor.clone()).provenance(provenance.clone());
        if let Some(key) = key {
            client = client.idempotent(key.clone());
        }
        if let Some(version) = *version {
            client = client.if_version(version);
        }
        client
    }
}

/// The actor where none is named.
const NOBODY: &str = "local";

/// Finds out who asks.
pub(crate) async fn authenticate(
    _: &App,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Caller, ApiError> {
    if headers.contains_key(http::header::AUTHORIZATION) {
        let detail = "this server has no tokens, so it cannot check yours; leave it out";
        return Err(ApiError::new(401, "unauthorized", detail));
    }
    let request_id = extensions.get::<RequestId>().map(|id| id.0.clone());
    let provenance = Provenance {
        request_id,
        traceparent: text(headers, "traceparent")?.filter(|trace| is_traceparent(trace)),
        unverified: true,
        ..Provenance::default()
    };
    let actor = actor_of(text(headers, ACTOR)?.as_deref())?;
    Ok(Caller(Arc::new(Inner {
        identity: identity_of(&actor),
        actor,
        role: Role::Admin,
        scope: Scope::default(),
        provenance,
        key: text(headers, IDEMPOTENCY_KEY)?,
        version: text(headers, "if-match")?.map(|tag| version_of(&tag)).transpose()?.flatten(),
    })))
}

fn identity_of(actor: &Actor) -> String {
    format!("{}:{}", actor.actor_type, actor.id.as_deref().unwrap_or_default())
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            tracing::error!("a route that needs a caller is listed as open");
            ApiError::new(403, "forbidden", "nobody may use this route")
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
