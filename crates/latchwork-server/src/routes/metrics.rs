//! `/metrics`.

use std::fmt::Write as _;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use latchwork_api::Problems;
use latchwork_work::StateCount;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Figures in the text format of Prometheus, for a caller without limits: they are of the whole server.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain"), Problems))]
async fn show(State(app): State<App>, caller: Caller) -> Result<Response, ApiError> {
    if caller.scope().types().is_some() || caller.scope().key_prefixes().is_some() {
        let detail = "metrics are of the whole server; it takes a token without limits";
        return Err(ApiError::new(403, "forbidden", detail));
    }
    let Some(metrics) = &app.metrics else {
        let detail = "this program does not count; see Metrics::install";
        return Err(ApiError::new(404, "not_found", detail));
    };
    let mut text = metrics.render();
    add_store(&mut text, &app).await?;
    let mut response = text.into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// What the store knows, read when somebody asks.
async fn add_store(text: &mut String, app: &App) -> Result<(), ApiError> {
    let orders = app.work.order_states().await?;
    by_state(text, "latchwork_orders", "Orders by type and state.", &orders);
    let items = app.work.item_states().await?;
    by_state(text, "latchwork_items", "Items by type and state.", &items);
    let leases: u64 = app.work.agents().await?.iter().map(|agent| agent.leases).sum();
    gauge(text, "latchwork_leases", "Leases on items.", leases as f64);
    let (unsealed, lag) = app.work.sealing_lag().await?;
    let help = "Events that are not sealed yet.";
    gauge(text, "latchwork_events_unsealed", help, unsealed as f64);
    let help = "The age of the oldest event that is not sealed yet, in seconds.";
    gauge(text, "latchwork_sealing_lag_seconds", help, lag.as_secs_f64());
    let help = "Long polls and event streams that wait at this server.";
    gauge(text, "latchwork_http_waiting", help, app.waiting_count() as f64);
    Ok(())
}

fn gauge(text: &mut String, name: &str, help: &str, value: f64) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
}

fn by_state(text: &mut String, name: &str, help: &str, counts: &[StateCount]) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n");
    for count in counts {
        let (kind, state) = (label(&count.order_type), label(&count.state));
        let _ = writeln!(text, "{name}{{type=\"{kind}\",state=\"{state}\"}} {}", count.count);
    }
}

/// The value of a label, escaped as the format asks.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        let mut text = String::new();
        gauge(&mut text, "x", "A thing.", 1.5);
        assert_eq!(text, "# HELP x A thing.\n# TYPE x gauge\nx 1.5\n");
    }
}
