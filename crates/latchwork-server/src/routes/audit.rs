//! `/v1/audit`: checking the trail, and taking it along; `/v1/listeners`: who follows it.

use axum::Json as Answer;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use latchwork_api as api;
use latchwork_api::Problems;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::{number, unknown};
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::Pairs;
use crate::once::once;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(verify))
        .routes(routes!(export))
        .routes(routes!(checkpoints))
        .routes(routes!(listeners))
        .routes(routes!(forget))
}

/// Checks the whole trail: gaps, order, and every hash. It reads all of it.
#[utoipa::path(get, path = "/v1/audit/verify", operation_id = "verify", tag = "audit",
    responses((status = 200, body = api::Verification), Problems))]
async fn verify(
    State(app): State<App>,
    caller: Caller,
) -> Result<Answer<api::Verification>, ApiError> {
    caller.require_all_types()?;
    Ok(Answer(convert::verification(&app.work.verify().await?)))
}

/// The largest page of an export.
const MAX_LINES: u32 = 1_000;

/// Sealed events as lines of JSON, as `docs/verify.py` reads them.
///
/// The header `Link` has the address of the next page.
#[utoipa::path(get, path = "/v1/audit/export", operation_id = "export", tag = "audit",
    params(("after" = Option<u64>, Query, description = "Behind this position; from the beginning unless told"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000, which is the default")),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), Problems))]
async fn export(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    caller.require_all_types()?;
    let (mut after, mut limit) = (0_u64, MAX_LINES);
    for (name, value) in &pairs {
        match name.as_str() {
            "after" => after = number("after", value)?,
            "limit" => limit = number("limit", value)?,
            _ => return Err(unknown(name, &["after", "limit"])),
        }
    }
    if !(1..=MAX_LINES).contains(&limit) {
        let detail = format!("a page has 1 to {MAX_LINES} lines");
        return Err(ApiError::new(400, "invalid_argument", detail).field("limit"));
    }
    if after > i64::MAX as u64 {
        let detail = "no position is that high";
        return Err(ApiError::new(400, "invalid_argument", detail).field("after"));
    }
    let found = app.work.export(after, limit).await?;
    let mut lines = String::new();
    for event in &found {
        lines.push_str(&serde_json::to_string(event).unwrap_or_default());
        lines.push('\n');
    }
    let mut response = lines.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    let last = found.last().filter(|_| found.len() == limit as usize);
    if let Some(last) = last {
        let next = last.seal.position;
        let link = format!("</v1/audit/export?after={next}&limit={limit}>; rel=\"next\"");
        if let Ok(link) = HeaderValue::from_str(&link) {
            headers.insert(header::LINK, link);
        }
    }
    Ok(response)
}

/// Where the chains of orders stood whose events were pruned. Keep them where nobody can change them.
#[utoipa::path(get, path = "/v1/audit/checkpoints", operation_id = "checkpoints", tag = "audit",
    responses((status = 200, body = api::Checkpoints), Problems))]
async fn checkpoints(
    State(app): State<App>,
    caller: Caller,
) -> Result<Answer<api::Checkpoints>, ApiError> {
    caller.require_all_types()?;
    let checkpoint = |at: latchwork_work::audit::Checkpoint| api::Checkpoint {
        order_id: at.order_id.as_uuid(),
        seal: api::Seal { position: at.seal.position, hash: at.seal.hash.to_string() },
    };
    let found = app.work.checkpoints().await?;
    Ok(Answer(api::Checkpoints { checkpoints: found.into_iter().map(checkpoint).collect() }))
}

/// How far each named listener of the programs on this database has come.
#[utoipa::path(get, path = "/v1/listeners", operation_id = "list_listeners", tag = "audit",
    responses((status = 200, body = api::Listeners), Problems))]
async fn listeners(
    State(app): State<App>,
    caller: Caller,
) -> Result<Answer<api::Listeners>, ApiError> {
    caller.require_all_types()?;
    let one = |found: latchwork_work::ListenerPosition| api::ListenerPosition {
        name: found.name,
        position: found.position,
        updated_at: found.updated_at,
    };
    let found = app.work.listeners().await?;
    Ok(Answer(api::Listeners { listeners: found.into_iter().map(one).collect() }))
}

/// Forgets how far a named listener has come: one that comes again begins where it is told to.
#[utoipa::path(post, path = "/v1/listeners/{name}/forget", operation_id = "forget_listener",
    tag = "audit", params(("name" = String, Path, description = "Its name"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::Forgotten), Problems))]
async fn forget(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response, ApiError> {
    caller.require_all_types()?;
    let Ok(Path(name)) = path else {
        let detail = "the path cannot be read: it is not UTF-8";
        return Err(ApiError::new(400, "malformed_request", detail));
    };
    let (work, asked) = (app.work.clone(), name.clone());
    let effect = async move {
        // A name that no database keeps is nobody's.
        let known = !name.contains('\0') && work.forget_listener(&name).await?;
        Ok(api::Forgotten { known })
    };
    Ok(once(&app, &caller, "forget_listener", &asked, effect).await?.into_response())
}
