//! `/v1/flows`: stored transitions. A server without the user's actions runs none of them: it shows
//! them, and changes what a runner finds.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use latchwork_api as api;
use latchwork_api::Problems;
use latchwork_flow::store::{
    Cancelled, ContextFilter, ContextPageRequest, ContextStore as _, View,
};
use latchwork_flow::{Contexts, Status, TransitionId};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::{number, unknown};
use crate::app::App;
use crate::caller::Caller;
use crate::convert_flow;
use crate::error::ApiError;
use crate::explain::is_within;
use crate::extract::{Json, Name, Pairs};
use crate::once::once;
use crate::page::page;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(signal))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(release))
        .routes(routes!(wake))
}

/// A page of stored flows, with what they wait for.
#[utoipa::path(get, path = "/v1/flows", operation_id = "list_flows", tag = "flows",
    params(
        ("machine" = Option<String>, Query, description = "Of this machine"),
        ("entity" = Option<String>, Query, description = "Of this entity"),
        ("status" = Option<String>, Query, description = "In this status"),
        ("view" = Option<String>, Query, description = "all, due, orphaned or held"),
        ("limit" = Option<u32>, Query, description = "1 to 1,000 are looked at; 100 unless told"),
        ("after" = Option<uuid::Uuid>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, body = api::FlowPage), Problems))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let flows = app.flows()?;
    let mut filter = ContextFilter::default();
    let mut wanted = ContextPageRequest::default();
    for (name, value) in &pairs {
        match name.as_str() {
            "machine" => filter.machine = Some(value.clone()),
            "entity" => filter.entity = Some(value.clone()),
            "status" => filter.status = Some(status(value)?),
            "view" => filter.view = view(value)?,
            "limit" => wanted.limit = number("limit", value)?,
            "after" => wanted.after = Some(id(value)?),
            _ => {
                let known = ["machine", "entity", "status", "view", "limit", "after"];
                return Err(unknown(name, &known));
            }
        }
    }
    let found = Contexts::list(flows, &filter, &wanted).await?;
    let now = flows.now().await?;
    let seen = found.contexts.into_iter().filter(|flow| is_within(&caller, flow));
    let next = found.next.map(|next| next.to_string());
    // Of a row that cannot be read nobody knows whether it is within the limits.
    let unreadable = match caller.scope().key_prefixes() {
        Some(_) => Vec::new(),
        None => found
            .unreadable
            .into_iter()
            .map(|row| api::UnreadableFlow { id: row.id, reason: row.reason })
            .collect(),
    };
    let flows = seen.map(|flow| convert_flow::flow(flow, now)).collect();
    let body = api::FlowPage { flows, unreadable, next: next.clone() };
    Ok(page("/v1/flows", &pairs, "after", next.as_deref(), body))
}

/// A stored flow: where it stands, and what it waits for.
#[utoipa::path(get, path = "/v1/flows/{id}", operation_id = "show_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow")),
    responses((status = 200, body = api::Flow), Problems))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<Answer<api::Flow>, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    Ok(Answer(answer(app.flows()?, id).await?))
}

/// Sends a signal. A flow that waits for it goes on; one that does not (yet) keeps it.
#[utoipa::path(post, path = "/v1/flows/{id}/signal", operation_id = "signal_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::SignalRequest, responses((status = 200, body = api::Flow), Problems))]
async fn signal(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<api::SignalRequest>,
) -> Result<Response, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    let (flows, asked) = (app.flows()?.clone(), (id, request.clone()));
    let effect = async move {
        flows.signal(id, &request.name, request.payload).await?;
        answer(&flows, id).await
    };
    Ok(once(&app, &caller, "signal_flow", &asked, effect).await?.into_response())
}

/// Calls a flow off: at once if no process is at it, else with the next heartbeat of that process.
#[utoipa::path(post, path = "/v1/flows/{id}/cancel", operation_id = "cancel_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    request_body = api::ReasonRequest,
    responses((status = 200, body = api::CancelledFlow), Problems))]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<api::ReasonRequest>,
) -> Result<Response, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    let (flows, asked) = (app.flows()?.clone(), (id, request.clone()));
    let effect = async move {
        let cancelled = flows.cancel(id, &request.reason).await?;
        let flow = answer(&flows, id).await?;
        Ok(api::CancelledFlow { done: cancelled == Cancelled::Done, flow })
    };
    Ok(once(&app, &caller, "cancel_flow", &asked, effect).await?.into_response())
}

/// Lets a failed flow go on from the action that failed, with the same idempotency key.
#[utoipa::path(post, path = "/v1/flows/{id}/retry", operation_id = "retry_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::Flow), Problems))]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<Response, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    let flows = app.flows()?.clone();
    let effect = async move {
        flows.retry(id).await?;
        answer(&flows, id).await
    };
    Ok(once(&app, &caller, "retry_flow", &id, effect).await?.into_response())
}

/// Lets a quarantined flow be tried again.
#[utoipa::path(post, path = "/v1/flows/{id}/release", operation_id = "release_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::Flow), Problems))]
async fn release(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<Response, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    let flows = app.flows()?.clone();
    let effect = async move {
        if !flows.release_quarantined(id).await? {
            let detail = "the flow is not quarantined, so there is nothing to release it from";
            return Err(ApiError::new(409, "context_conflict", detail));
        }
        answer(&flows, id).await
    };
    Ok(once(&app, &caller, "release_flow", &id, effect).await?.into_response())
}

/// Marks a flow as due: the next runner goes on with it.
#[utoipa::path(post, path = "/v1/flows/{id}/wake", operation_id = "wake_flow", tag = "flows",
    params(("id" = uuid::Uuid, Path, description = "The flow"),
        ("Idempotency-Key" = Option<String>, Header, description = "The request has its effect once")),
    responses((status = 200, body = api::Flow), Problems))]
async fn wake(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<Response, ApiError> {
    let id = allowed(&app, &caller, &name).await?;
    let flows = app.flows()?.clone();
    let effect = async move {
        flows.wake(id).await?;
        answer(&flows, id).await
    };
    Ok(once(&app, &caller, "wake_flow", &id, effect).await?.into_response())
}

async fn answer(flows: &Contexts, id: TransitionId) -> Result<api::Flow, ApiError> {
    let found = flows.show(id).await?;
    Ok(convert_flow::flow(found, flows.now().await?))
}

/// The flow that a path names. One outside of the caller's limits is answered like one that is not there.
pub(super) async fn allowed(
    app: &App,
    caller: &Caller,
    name: &str,
) -> Result<TransitionId, ApiError> {
    let id = id(name)?;
    if caller.scope().key_prefixes().is_none() {
        return Ok(id);
    }
    match app.flows()?.show(id).await? {
        found if is_within(caller, &found) => Ok(id),
        _ => {
            let detail = format!("there is no context {id}");
            Err(ApiError::new(404, "context_not_found", detail))
        }
    }
}

fn id(text: &str) -> Result<TransitionId, ApiError> {
    let found: Option<TransitionId> = text.parse().ok();
    found.ok_or_else(|| {
        ApiError::new(400, "invalid_argument", "the id of a flow is a UUID").field("id")
    })
}

fn status(text: &str) -> Result<Status, ApiError> {
    Status::of_name(text).ok_or_else(|| {
        let names: Vec<_> = Status::ALL.iter().map(|status| status.name()).collect();
        let detail = format!("there is no such status; there are {}", names.join(", "));
        ApiError::new(400, "unknown_name", detail).field("status")
    })
}

fn view(text: &str) -> Result<View, ApiError> {
    Ok(match text {
        "all" => View::All,
        "due" => View::Due,
        "orphaned" => View::Orphaned,
        "held" => View::Held,
        _ => {
            let detail = "there are the views all, due, orphaned and held";
            return Err(ApiError::new(400, "unknown_name", detail).field("view"));
        }
    })
}
