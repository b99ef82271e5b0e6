//! `/metrics` in the text format of Prometheus: what the layers count through the `metrics` facade, and
//! what is read from the store when somebody asks.

use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use latchwork_lock::{Clock as _, SystemClock};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// What the program counts. One in a process, since the layers count for the process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

/// Another recorder of metrics is installed in this process.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("another recorder of metrics is installed in this process")]
pub struct MetricsInstalled;

/// The bounds of times, in seconds.
const SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

impl Metrics {
    /// Begins to count, for this process.
    ///
    /// # Errors
    /// [`MetricsInstalled`].
    pub fn install() -> Result<Self, MetricsInstalled> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("seconds".to_owned()), &SECONDS)
            .map_err(|_| MetricsInstalled)?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| MetricsInstalled)?;
        Ok(Metrics(handle))
    }

    /// What was counted, as text.
    pub(crate) fn render(&self) -> String {
        // Moves what was recorded into the buckets; nothing else does.
        self.0.run_upkeep();
        self.0.render()
    }
}

/// Counts requests by route and status. The path as it is declared: the number of series must not depend
/// on what callers send.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let route = path.as_ref().map_or("none", MatchedPath::as_str).to_owned();
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => {
            known.to_owned()
        }
        _ => "other".to_owned(),
    };
    let begun = SystemClock.now();
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    let took = SystemClock.now().since(begun).as_secs_f64();
    metrics::counter!("latchwork_http_requests_total",
        "method" => method, "route" => route.clone(), "status" => status)
    .increment(1);
    metrics::histogram!("latchwork_http_request_seconds", "route" => route).record(took);
    response
}

/// Times one wait for a lock, by whether it ended with the turn. A client that waits on in a second request
/// is timed twice: a request is what the server sees.
pub(crate) fn lock_wait(got_its_turn: bool, took: Duration) {
    let outcome = if got_its_turn { "turn" } else { "over" };
    metrics::histogram!("latchwork_lock_wait_seconds", "outcome" => outcome)
        .record(took.as_secs_f64());
}
