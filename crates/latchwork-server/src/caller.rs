//! Who asks.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Extensions, HeaderMap};
use latchwork_api::{ACTOR, IDEMPOTENCY_KEY};
use latchwork_work::{Actor, ItemId, OrderId, Provenance, WorkClient};

use crate::app::App;
use crate::error::ApiError;
use crate::request_id::RequestId;
use crate::role::Role;
use crate::scope::Scope;
use crate::tokens::{SecretHash, Token};

/// Who asks, and with what: made for each request by the check of its access.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Inner>);

struct Inner {
    actor: Actor,
    identity: String,
    role: Role,
    /// The roles in which it reviews.
    review_roles: Vec<String>,
    scope: Scope,
    /// None where there are no tokens, and the caller named itself.
    token: Option<(Arc<Token>, SecretHash)>,
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

    /// Its token; none where there are no tokens.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.0.token.as_ref().map(|(token, _)| &**token)
    }

    /// Refuses a caller whose token was revoked or has ended since it was let in: what waits asks again
    /// while it does.
    pub(crate) async fn still_allowed(&self, app: &App) -> Result<(), ApiError> {
        match (&self.0.token, &app.tokens) {
            (Some((_, hash)), Some(tokens)) => Ok(tokens.check(*hash).await.map(|_| ())?),
            _ => Ok(()),
        }
    }

    /// Refuses an order type that the caller names and may not use.
    pub(crate) fn require_type(&self, order_type: &str) -> Result<(), ApiError> {
        if self.scope().allows_type(order_type) {
            return Ok(());
        }
        let detail = "the token is limited to other order types";
        Err(ApiError::new(403, "forbidden", detail).allowed(self.scope().types()))
    }

    /// Refuses a caller with limits what shows or concerns the orders of all types.
    pub(crate) fn require_all_types(&self) -> Result<(), ApiError> {
        match self.scope().types() {
            None => Ok(()),
            types => {
                let detail =
                    "the token is limited to some order types, and this concerns all of them";
                Err(ApiError::new(403, "forbidden", detail).allowed(types))
            }
        }
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
        let Inner { actor, provenance, review_roles, key, version, .. } = &*self.0;
        let client = app.work.client(actor.clone()).provenance(provenance.clone());
        let mut client = client.roles(review_roles.iter().cloned());
        if let Some(types) = self.scope().types() {
            client = client.limited_to(types);
        }
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

/// Finds out who asks: by its token, or, where there are none, by what it says of itself.
pub(crate) async fn authenticate(
    app: &App,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Caller, ApiError> {
    let tokens = match &app.tokens {
        Some(tokens) if tokens.are_configured().await? => Some(tokens),
        _ => None,
    };
    let sent = text(headers, AUTHORIZATION.as_str())?;
    let named = text(headers, ACTOR)?;
    let request_id = extensions.get::<RequestId>().map(|id| id.0.clone());
    let provenance = Provenance {
        request_id,
        traceparent: text(headers, "traceparent")?.filter(|trace| is_traceparent(trace)),
        unverified: tokens.is_none(),
        ..Provenance::default()
    };
    let (actor, token) = match (tokens, sent) {
        (Some(_), _) if named.is_some() => {
            let detail = "with tokens a caller is whom its token names; leave this header out";
            return Err(ApiError::new(400, "invalid_argument", detail).field(ACTOR));
        }
        (Some(tokens), Some(sent)) => {
            let token = tokens.authenticate(bearer(&sent)?).await?;
            (token.0.actor()?, Some(token))
        }
        (Some(_), None) => {
            let detail = "this server asks for a token: `Authorization: Bearer lw_…`";
            return Err(ApiError::new(401, "unauthorized", detail));
        }
        (None, Some(_)) => {
            let detail = "this server has no tokens, so it cannot check yours; leave it out";
            return Err(ApiError::new(401, "unauthorized", detail));
        }
        (None, None) => (actor_of(named.as_deref())?, None),
    };
    let known = token.as_ref().map(|(token, _)| &**token);
    Ok(Caller(Arc::new(Inner {
        identity: identity_of(&actor),
        actor,
        role: known.map_or(Role::Admin, |token| token.role),
        review_roles: known.map_or_else(Vec::new, review_roles),
        scope: known.map(Token::scope).unwrap_or_default(),
        token,
        provenance,
        key: text(headers, IDEMPOTENCY_KEY)?,
        version: text(headers, "if-match")?.map(|tag| version_of(&tag)).transpose()?.flatten(),
    })))
}

/// The token of a header `Bearer lw_…`.
fn bearer(header: &str) -> Result<&str, ApiError> {
    match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => {
            let detail = "send the token as `Authorization: Bearer lw_…`";
            Err(ApiError::new(401, "unauthorized", detail))
        }
    }
}

/// A rule of an order type may name the token's own role, or one of those that it was given.
fn review_roles(token: &Token) -> Vec<String> {
    let own = token.role.as_str().to_owned();
    std::iter::once(own).chain(token.review_roles.iter().cloned()).collect()
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

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn one(name: &'static str, bytes: &[u8]) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(name), HeaderValue::from_bytes(bytes).ok()?);
        Some(headers)
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_header_are_its_text_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let Some(headers) = one(IDEMPOTENCY_KEY, &bytes) else { return Ok(()) };
            if let Ok(read) = text(&headers, IDEMPOTENCY_KEY) {
                prop_assert_eq!(read.map(String::into_bytes), Some(bytes.clone()));
            }
            let mut twice = headers.clone();
            twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("again"));
            prop_assert!(text(&twice, IDEMPOTENCY_KEY).is_err(), "two keys");
        }

        #[test]
        fn any_text_is_what_a_header_means_or_a_refusal(
            text in prop_oneof!["\\PC{0,30}", "\"-?[0-9]{0,22}\"", "(agent|user|system):\\PC{0,12}", "[Bb]earer +\\PC{0,12}"],
        ) {
            if let Ok(Some(version)) = version_of(&text) {
                prop_assert_eq!(text.trim_matches('"').parse::<i64>(), Ok(version));
            }
            if let Ok(actor) = actor_of(Some(&text)) {
                prop_assert_eq!(identity_of(&actor), text.clone());
            }
            if let Ok(token) = bearer(&text) {
                prop_assert!(text.ends_with(token) || text.trim_end().ends_with(token));
            }
        }

        #[test]
        fn only_traces_of_the_standard_are_kept(
            text in prop_oneof!["\\PC{0,60}", "[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{16}-[0-9a-f]{2}"],
        ) {
            prop_assert!(!is_traceparent(&text) || text.len() == 55 && text.is_ascii());
        }
    }
}
