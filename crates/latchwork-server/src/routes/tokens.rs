//! `/v1/tokens`, and `/v1/whoami`.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::TimeDelta;
use http::StatusCode;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_lock::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::events::{number, unknown};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::extract::{Json, Name, Pairs};
use crate::once::once;
use crate::page::page;
use crate::tokens::{NewToken, Token, TokenError, Tokens};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(whoami))
        .routes(routes!(list, create))
        .routes(routes!(show))
        .routes(routes!(revoke))
}

/// Who the caller is, and what it may do.
#[utoipa::path(get, path = "/v1/whoami", operation_id = "whoami", tag = "tokens",
    responses((status = 200, body = api::WhoAmI), Problems))]
async fn whoami(caller: Caller) -> Answer<api::WhoAmI> {
    let actor = caller.actor();
    Answer(api::WhoAmI {
        actor: api::Actor {
            actor_type: actor.actor_type.as_str().to_owned(),
            id: actor.id.clone(),
        },
        role: caller.role().to_string(),
        verified: caller.token().is_some(),
        types: caller.scope().types().map(<[String]>::to_vec),
        key_prefixes: caller.scope().key_prefixes().map(<[String]>::to_vec),
        token: caller.token().map(|token| token.id),
        expires_at: caller.token().and_then(|token| token.expires_at),
    })
}

/// The tokens that may do no more than the caller's own, oldest first; revoked ones too.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 100; 50 unless told"),
        ("after" = Option<uuid::Uuid>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, body = api::TokenPage), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let (tokens, own) = allowed(&app, &caller)?;
    let (mut after, mut limit) = (None, 50_usize);
    for (name, value) in &pairs {
        match name.as_str() {
            "after" => after = Some(id_of(value)?),
            "limit" => limit = number("limit", value)?,
            _ => return Err(unknown(name, &["limit", "after"])),
        }
    }
    if !(1..=100).contains(&limit) {
        let detail = "a page has 1 to 100 tokens";
        return Err(ApiError::new(400, "invalid_argument", detail).field("limit"));
    }
    let mut found = Vec::new();
    // Those that the caller may not see are passed over here, so that a page is full or the last one.
    while found.len() <= limit {
        let page = tokens.list(after, BATCH).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        found.extend(page.into_iter().filter(|token| is_below(own, token)));
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| last.id.to_string());
    let body = api::TokenPage { tokens: found.iter().map(token).collect(), next: next.clone() };
    Ok(page("/v1/tokens", &pairs, "after", next.as_deref(), body))
}

/// So many tokens are read at once.
const BATCH: u32 = 200;

/// Makes a token. Its text is in this answer and nowhere else: an answer that was lost cannot be had again,
/// so revoke the token and make another.
///
/// It may do no more than the caller's own: limits and the end that are left out are the caller's.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "One token is made; a repeated request is 409 `token_exists` and names it in `existing`")),
    request_body = api::TokenRequest,
    responses((status = 201, body = api::CreatedToken), Problems))]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::TokenRequest>,
) -> Result<Response, ApiError> {
    let (tokens, own) = allowed(&app, &caller)?;
    let asked = request.clone();
    let expires_at = match (request.expires_at, request.expires_in_s) {
        (Some(_), Some(_)) => {
            let detail = "name expires_at or expires_in_s, not both";
            return Err(ApiError::new(400, "invalid_argument", detail).field("/expires_in_s"));
        }
        (None, Some(seconds)) => Some(in_seconds(seconds)?),
        (at, None) => at,
    };
    let role = request.role.parse().map_err(|error: crate::role::UnknownRole| {
        ApiError::new(400, "unknown_name", error.to_string()).field("/role")
    })?;
    let wanted = NewToken {
        name: request.name,
        role,
        review_roles: request.review_roles,
        types: request.types,
        key_prefixes: request.key_prefixes,
        expires_at,
    };
    let (tokens, own) = (tokens.clone(), own.clone());
    let effect = async move {
        let (made, secret) = tokens.create(wanted, Some(&own)).await?;
        tracing::info!(id = %made.id, name = made.name, role = %made.role, by = own.name, "made a token");
        let secret = secret.expose().to_owned();
        Ok(Made { id: made.id, created: Some(api::CreatedToken { token: token(&made), secret }) })
    };
    let made = once(&app, &caller, "create_token", &asked, effect).await?.answer;
    match made.created {
        Some(created) => Ok((StatusCode::CREATED, Answer(created)).into_response()),
        None => {
            let detail = "the token was made by an earlier request with this idempotency key, and its text \
                          was in that answer only: where it was lost, revoke the token and make another";
            Err(ApiError::new(409, "token_exists", detail).existing(made.id))
        }
    }
}

/// What is stored of a token under the idempotency key of its request: which one it is, never its text.
#[derive(Serialize, Deserialize)]
struct Made {
    id: Uuid,
    #[serde(skip)]
    created: Option<api::CreatedToken>,
}

/// One token.
#[utoipa::path(get, path = "/v1/tokens/{id}", operation_id = "show_token", tag = "tokens",
    params(("id" = uuid::Uuid, Path, description = "The token's id")),
    responses((status = 200, body = api::Token), Problems))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<Answer<api::Token>, ApiError> {
    let (tokens, own) = allowed(&app, &caller)?;
    Ok(Answer(token(&find(tokens, own, &id).await?)))
}

/// Revokes a token: every server refuses it within a second. Revoking it again changes nothing.
#[utoipa::path(post, path = "/v1/tokens/{id}/revoke", operation_id = "revoke_token", tag = "tokens",
    params(("id" = uuid::Uuid, Path, description = "The token's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::Token), Problems))]
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<Response, ApiError> {
    let (tokens, own) = allowed(&app, &caller)?;
    let found = find(tokens, own, &id).await?.id;
    let (tokens, by) = (tokens.clone(), own.name.clone());
    let effect = async move {
        let revoked = tokens.revoke(found).await?;
        tracing::info!(id = %revoked.id, name = revoked.name, by, "revoked a token");
        Ok(token(&revoked))
    };
    Ok(once(&app, &caller, "revoke_token", &found, effect).await?.into_response())
}

/// The tokens, and the one of the caller.
fn allowed<'a>(app: &'a App, caller: &'a Caller) -> Result<(&'a Tokens, &'a Token), ApiError> {
    match (&app.tokens, caller.token()) {
        (Some(tokens), Some(own)) => Ok((tokens, own)),
        _ => Err(ApiError::new(
            403,
            "forbidden",
            "this server has no tokens yet; make the first one on its database: \
             latchwork tokens create NAME --role admin",
        )),
    }
}

/// Whether the caller may see a token: one that may do no more than its own, for however long.
fn is_below(own: &Token, other: &Token) -> bool {
    let forever = Token { expires_at: None, ..own.clone() };
    forever.covers(other).is_ok()
}

async fn find(tokens: &Tokens, own: &Token, id: &str) -> Result<Token, ApiError> {
    let id = id_of(id)?;
    let found = tokens.get(id).await?;
    if is_below(own, &found) {
        return Ok(found);
    }
    Err(TokenError::NotFound { token: id.to_string() }.into())
}

fn id_of(text: &str) -> Result<Uuid, ApiError> {
    text.parse().map_err(|_| {
        let detail = format!("{text:?} is not the id of a token");
        ApiError::new(400, "invalid_argument", detail).field("id")
    })
}

fn in_seconds(seconds: u64) -> Result<chrono::DateTime<chrono::Utc>, ApiError> {
    let span = i64::try_from(seconds).ok().and_then(TimeDelta::try_seconds);
    span.and_then(|span| SystemClock.wall().checked_add_signed(span)).ok_or_else(|| {
        let detail = "no calendar reaches that far";
        ApiError::new(400, "invalid_argument", detail).field("/expires_in_s")
    })
}

fn token(known: &Token) -> api::Token {
    let now = SystemClock.wall();
    let state = match known.revoked_at {
        None if known.is_live(now) => "live",
        None => "expired",
        Some(_) => "revoked",
    };
    api::Token {
        id: known.id,
        name: known.name.clone(),
        role: known.role.to_string(),
        state: state.to_owned(),
        review_roles: known.review_roles.clone(),
        types: known.types.clone(),
        key_prefixes: known.key_prefixes.clone(),
        created_at: known.created_at,
        created_by: known.created_by.clone(),
        expires_at: known.expires_at,
        last_used_at: known.last_used_at,
        revoked_at: known.revoked_at,
    }
}
