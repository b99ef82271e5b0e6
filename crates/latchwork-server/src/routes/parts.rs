//! `/v1/parts`: results that come part by part.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_work::{Finalize, FinalizeMode, ItemId, LeaseId, PartQuery, PartSubmission};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::unknown;
use super::marked;
use crate::app::App;
use crate::caller::Caller;
use crate::convert;
use crate::error::ApiError;
use crate::extract::{Id, Json, Pairs};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(submit_part))
        .routes(routes!(list))
        .routes(routes!(finalize))
}

/// Hands in a part of an item's result. The lease goes on.
///
/// A part that the type refuses is kept as `rejected`, and never takes the place of a validated one.
#[utoipa::path(post, path = "/v1/parts", operation_id = "submit_part", tag = "parts",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::PartRequest,
    responses((status = 200, body = api::SubmittedPart), Problems))]
async fn submit_part(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::PartRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let part = PartSubmission {
        lease: LeaseId::from_uuid(request.lease),
        key: request.key,
        seq: request.seq,
        payload: request.payload,
        evidence: request.evidence,
        notes: request.notes,
        draft: request.draft,
    };
    let part = client.submit_part(part).await?;
    Ok(marked(&client, Answer(convert::submitted_part(part))))
}

/// The parts of an item, also those of agents before.
#[utoipa::path(get, path = "/v1/items/{id}/parts", operation_id = "list_parts", tag = "parts",
    params(("id" = uuid::Uuid, Path, description = "The item"),
        ("key" = Option<String>, Query, description = "Of this key"),
        ("status" = Option<String>, Query, description = "validated, rejected or draft"),
        ("bodies" = Option<bool>, Query, description = "With the parts themselves")),
    responses((status = 200, body = api::Parts), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ItemId>,
    Pairs(pairs): Pairs,
) -> Result<Answer<api::Parts>, ApiError> {
    caller.require_item(&app, id).await?;
    let mut query = PartQuery::default();
    for (name, value) in pairs {
        match name.as_str() {
            "key" => query.key = Some(value),
            "status" => query.status = Some(value.parse()?),
            "bodies" => {
                query.bodies = value.parse().map_err(|_| {
                    let detail = format!("{value:?} is neither true nor false");
                    ApiError::new(400, "invalid_argument", detail).field("bodies")
                })?;
            }
            _ => return Err(unknown(&name, &["key", "status", "bodies"])),
        }
    }
    let parts = app.work.list_parts(id, &query).await?;
    Ok(Answer(api::Parts { parts: parts.into_iter().map(convert::part).collect() }))
}

/// Assembles the validated parts of an item and submits what they make up.
///
/// 409 `parts_incomplete` lists in `missing` what is not there yet.
#[utoipa::path(post, path = "/v1/parts/finalize", operation_id = "finalize", tag = "parts",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::FinalizeRequest,
    responses((status = 200, body = api::Submitted), Problems))]
async fn finalize(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::FinalizeRequest>,
) -> Result<Response, ApiError> {
    let client = caller.client(&app);
    let wanted = Finalize {
        lease: LeaseId::from_uuid(request.lease),
        mode: match request.mode {
            api::FinalizeMode::Strict => FinalizeMode::Strict,
            api::FinalizeMode::BestEffort => FinalizeMode::BestEffort,
        },
        evidence: request.evidence,
        notes: request.notes,
    };
    let done = client.finalize(wanted).await?;
    Ok(marked(&client, Answer(convert::submitted(done))))
}
