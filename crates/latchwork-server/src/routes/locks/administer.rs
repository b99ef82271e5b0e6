//! What is done to locks of others, and to what they guard.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_lock::Fence;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::holder;
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::extract::Json;
use crate::once::once;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(break_lock)).routes(routes!(check_fence))
}

/// Ends leases of others, and says whose they were.
///
/// A holder learns of it at its next renewal; until then only the fence stops it. A request that may be
/// sent twice names the fence, or has an `Idempotency-Key`: the next holder is not meant.
#[utoipa::path(post, path = "/v1/locks/break", operation_id = "break_lock", tag = "locks",
    params(("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::BreakLock,
    responses((status = 200, body = api::BrokenLock), Problems))]
async fn break_lock(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::BreakLock>,
) -> Result<Response, ApiError> {
    let locks = app.locks()?.clone();
    caller.require_key(&request.key)?;
    let (by, asked) = (caller.clone(), request.clone());
    let effect = async move {
        let broken = match asked.fence.map(Fence::new) {
            Some(fence) => locks.break_lease(&asked.key, fence).await?.into_iter().collect(),
            None => locks.break_lock(&asked.key).await?,
        };
        let (key, count) = (&asked.key, broken.len());
        tracing::info!(key, count, by = by.identity(), "leases were broken");
        Ok(api::BrokenLock { broken: broken.into_iter().map(holder).collect() })
    };
    Ok(once(&app, &caller, "break_lock", &request, effect).await?.into_response())
}

/// Refuses a fence that is older than one already seen for the key, and remembers it otherwise.
///
/// For exclusive leases only. Between this answer and a write elsewhere a newer holder may come: where
/// the write is in the same database, check the fence in its transaction instead.
#[utoipa::path(post, path = "/v1/locks/check-fence", operation_id = "check_fence", tag = "locks",
    request_body = api::CheckFence,
    responses((status = 200, body = api::CheckedFence), Problems))]
async fn check_fence(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<api::CheckFence>,
) -> Result<Answer<api::CheckedFence>, ApiError> {
    let locks = app.locks()?;
    caller.require_key(&request.key)?;
    locks.check_fence(&request.key, Fence::new(request.fence)).await??;
    Ok(Answer(api::CheckedFence { fence: request.fence }))
}
