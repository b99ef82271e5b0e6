//! Errors of the layers as problem documents.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use chrono::SecondsFormat;
use http::{HeaderValue, StatusCode, header};
use latchwork_api::{FieldProblem, PROBLEM_JSON, Problem};
use latchwork_work::{ErrorKind, Violation};

use crate::tokens::{TokenError, Unauthorized};

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

    /// Names what is there already.
    pub(crate) fn existing(mut self, id: uuid::Uuid) -> Self {
        self.problem.existing = Some(id.to_string());
        self
    }

    /// Whether the server could not serve, whatever the request was.
    pub(crate) fn is_of_server(&self) -> bool {
        self.problem.status >= 500
    }

    /// The document, as one entry of a larger answer.
    pub(crate) fn into_problem(self) -> Problem {
        *self.problem
    }

    /// Names no order types but these, for a caller who may see no others.
    pub(crate) fn hide_types(&mut self, types: &[String]) {
        if self.problem.code == "order_type_not_found" {
            self.problem.detail = "the server has no order type of this name".to_owned();
            if let Some(allowed) = &mut self.problem.allowed {
                allowed.retain(|name| types.contains(name));
            }
        }
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
        "lease_foreign" | "reviewer_refused" => 403,
        "order_not_found" | "item_not_found" => 404,
        "illegal_transition"
        | "lease_expired"
        | "limit_reached"
        | "conflict"
        | "order_state"
        | "not_ready"
        | "content_changed"
        | "decided"
        | "parts_incomplete"
        | "no_receipt"
        | "not_sealed"
        | "unique_conflict"
        | "idempotency_in_flight" => 409,
        "events_pruned" => 410,
        "version_mismatch" => 412,
        "too_large" => 413,
        "order_type_not_found"
        | "payload_invalid"
        | "result_invalid"
        | "part_invalid"
        | "part_limit"
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
            ErrorKind::PartInvalid { violations, .. } => {
                problem.errors = fields("/payload", violations);
            }
            ErrorKind::NotReady { violations, .. } => problem.errors = fields("", violations),
            ErrorKind::PartsIncomplete { problems, .. } => problem.missing = problems.clone(),
            ErrorKind::ContentChanged { version, digest, changes, .. } => {
                problem.changes = changes.clone();
                problem.content_version = Some(*version);
                problem.digest = Some(digest.clone());
            }
            ErrorKind::Decided { state, .. } => {
                problem.current_state = Some(state.as_str().to_owned());
            }
            ErrorKind::VersionMismatch { current, .. } => problem.current_version = Some(*current),
            ErrorKind::EventsPruned { checkpoint, .. } => problem.checkpoint = Some(*checkpoint),
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

impl From<TokenError> for ApiError {
    fn from(error: TokenError) -> Self {
        let code = error.code();
        match &error {
            TokenError::NameTaken { .. } => {
                ApiError::new(409, code, error.to_string()).field("/name")
            }
            TokenError::NotFound { .. } => ApiError::new(404, code, error.to_string()),
            TokenError::Invalid { field, reason } => {
                ApiError::new(400, code, reason.clone()).field(&format!("/{field}"))
            }
            TokenError::Exceeds { field } => {
                ApiError::new(403, code, error.to_string()).field(&format!("/{field}"))
            }
            TokenError::Store(failed) => {
                tracing::error!(code, error = %failed, "the tokens cannot be read or written");
                let detail = "the store of tokens cannot serve now; try again";
                ApiError::new(503, code, detail).retry_after(Duration::from_secs(1))
            }
        }
    }
}

impl From<Unauthorized> for ApiError {
    fn from(refused: Unauthorized) -> Self {
        let detail = match refused {
            Unauthorized::Store(error) => return error.into(),
            Unauthorized::Malformed => "this is no token: it begins with lw_".to_owned(),
            Unauthorized::Checksum => {
                "the token was cut or mistyped: its checksum is wrong".to_owned()
            }
            Unauthorized::Unknown => "there is no such token at this server".to_owned(),
            Unauthorized::Revoked => "the token was revoked".to_owned(),
            Unauthorized::Expired(end) => {
                format!("the token ended at {}", end.to_rfc3339_opts(SecondsFormat::Secs, true))
            }
        };
        ApiError::new(401, "unauthorized", detail)
    }
}
