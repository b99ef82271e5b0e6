//! Errors of the layers as problem documents.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use latchwork_api::{FieldProblem, PROBLEM_JSON, Problem};
use latchwork_work::{ErrorKind, Violation};

/// A refusal, on its way to the caller. The middleware of request ids renders it, since it knows the id.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    problem: Box<Problem>,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub(crate) fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let problem = Problem {
            problem_type: format!("urn:latchwork:error:{code}"),
            code: code.to_owned(),
            title: title.unwrap_or("Error").to_owned(),
            status,
            detail: detail.into(),
            ..Problem::default()
        };
        ApiError { problem: Box::new(problem), retry_after: None }
    }

    pub(crate) fn retry_after(mut self, span: Duration) -> Self {
        self.retry_after = Some(span);
        self
    }

    /// Names the field or parameter that is wrong.
    pub(crate) fn field(mut self, field: &str) -> Self {
        let (code, message) = (self.problem.code.clone(), self.problem.detail.clone());
        self.problem.errors.push(FieldProblem { field: field.to_owned(), code, message });
        self
    }

    /// Lists what would have been allowed.
    pub(crate) fn allowed(mut self, allowed: Option<&[String]>) -> Self {
        self.problem.allowed = allowed.map(<[String]>::to_vec);
        self
    }

    /// The document, as it is sent.
    pub(crate) fn render(mut self, request_id: &str) -> Response {
        self.problem.request_id = Some(request_id.to_owned());
        let status =
            StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(span) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(span.as_secs().max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() =
            StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(self);
        response
    }
}

/// The HTTP status of a code of the work layer.
fn status_of(code: &str) -> u16 {
    match code {
        "invalid_argument" | "unknown_name" | "invalid_key" => 400,
        "lease_foreign" => 403,
        "order_not_found" | "item_not_found" => 404,
        "illegal_transition"
        | "lease_expired"
        | "conflict"
        | "order_state"
        | "unique_conflict"
        | "idempotency_in_flight" => 409,
        "events_pruned" => 410,
        "version_mismatch" => 412,
        "too_large" => 413,
        "order_type_not_found"
        | "payload_invalid"
        | "result_invalid"
        | "plan_empty"
        | "idempotency_conflict" => 422,
        "work_store_unavailable" => 503,
        _ => 500,
    }
}

impl From<latchwork_work::Error> for ApiError {
    fn from(error: latchwork_work::Error) -> Self {
        let (code, status) = (error.code(), status_of(error.code()));
        let mut refusal = match status {
            // What a database or the code of an order type says is for the log, not for the caller.
            500 | 503 => {
                tracing::error!(code, %error, "a request failed");
                let detail = match status {
                    503 => "the store of orders cannot serve now; try again",
                    _ => "the server failed; its log has this request's id",
                };
                ApiError::new(status, code, detail)
            }
            _ => ApiError::new(status, code, error.to_string()),
        };
        if error.is_temporary() {
            refusal.retry_after = Some(Duration::from_secs(1));
        }
        let problem = &mut refusal.problem;
        match error.kind() {
            ErrorKind::IllegalTransition { from, to, allowed, .. } => {
                problem.current_state = Some(from.clone());
                problem.attempted_state = Some(to.clone());
                problem.allowed = Some(allowed.clone());
            }
            ErrorKind::OrderState { state, .. } => {
                problem.current_state = Some(state.as_str().to_owned());
            }
            ErrorKind::UnknownName { known, .. } => {
                problem.allowed = Some(known.iter().map(|&name| name.to_owned()).collect());
            }
            ErrorKind::OrderTypeNotFound { known, .. } => problem.allowed = Some(known.clone()),
            ErrorKind::PayloadInvalid { violations, .. } => {
                problem.errors = fields("/payload", violations);
            }
            ErrorKind::ResultInvalid { violations, .. } => {
                problem.errors = fields("/result", violations);
            }
            ErrorKind::UniqueConflict { existing, .. } => {
                problem.existing = Some(existing.to_string());
            }
            ErrorKind::InvalidArgument { name, reason, .. } => {
                let (field, message) = ((*name).to_owned(), reason.clone());
                problem.errors.push(FieldProblem { field, code: code.to_owned(), message });
            }
            ErrorKind::IdempotencyInFlight { retry_after, .. } => {
                refusal.retry_after = Some(*retry_after);
            }
            _ => {}
        }
        refusal
    }
}

fn fields(root: &str, violations: &[Violation]) -> Vec<FieldProblem> {
    let field = |found: &Violation| FieldProblem {
        field: format!("{root}{}", found.field),
        code: found.code.clone(),
        message: found.message.clone(),
    };
    violations.iter().map(field).collect()
}
