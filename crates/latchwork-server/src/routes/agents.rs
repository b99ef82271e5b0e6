//! `/v1/agents`.

use axum::Json;
use axum::extract::State;
use latchwork_api::{Agent, Agents, Problems};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// The agents that hold leases.
#[utoipa::path(get, path = "/v1/agents", operation_id = "list_agents", tag = "stats",
    responses((status = 200, body = Agents), Problems))]
async fn list(State(app): State<App>, caller: Caller) -> Result<Json<Agents>, ApiError> {
    let agent = |agent: latchwork_work::Agent| Agent {
        id: agent.id,
        leases: agent.leases,
        last_heartbeat_at: agent.last_heartbeat_at,
    };
    let found = match caller.scope().types() {
        None => app.work.agents().await?,
        Some(types) => app.work.agents_of_types(types).await?,
    };
    Ok(Json(Agents { agents: found.into_iter().map(agent).collect() }))
}
