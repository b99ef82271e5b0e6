//! Errors of the lock and flow layers as refusals. What a backend says goes to the log only.

use std::fmt::Display;
use std::time::Duration;

use latchwork_lock::StaleFence;

use crate::error::ApiError;

/// The HTTP status of a code of the lock and flow layers.
fn status_of(code: &str) -> u16 {
    match code {
        "invalid_argument" | "invalid_key" => 400,
        "context_not_found" => 404,
        "lock_taken"
        | "lock_expired"
        | "lock_lost"
        | "lock_deadlock"
        | "stale_fence"
        | "context_exists"
        | "context_conflict"
        | "context_busy"
        | "context_quarantined"
        | "transition_over" => 409,
        "not_supported" | "not_built" => 501,
        "lock_unavailable" | "store_unavailable" => 503,
        _ => 500,
    }
}

fn refusal(code: &'static str, error: &dyn Display, is_temporary: bool) -> ApiError {
    let status = status_of(code);
    let refusal = match status {
        500 | 503 => {
            tracing::error!(code, %error, "a request failed");
            let detail = match status {
                503 => "the backend of locks or flows cannot serve now; try again",
                _ => "the server failed; its log has this request's id",
            };
            ApiError::new(status, code, detail)
        }
        _ => ApiError::new(status, code, error.to_string()),
    };
    if is_temporary { refusal.retry_after(Duration::from_secs(1)) } else { refusal }
}

impl From<latchwork_lock::Error> for ApiError {
    fn from(error: latchwork_lock::Error) -> Self {
        refusal(error.code(), &error, error.is_temporary())
    }
}

impl From<latchwork_flow::Error> for ApiError {
    fn from(error: latchwork_flow::Error) -> Self {
        refusal(error.code(), &error, error.is_temporary())
    }
}

impl From<StaleFence> for ApiError {
    fn from(stale: StaleFence) -> Self {
        refusal(StaleFence::CODE, &stale, false)
    }
}
