//! Errors as RFC 9457 documents.

use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong. Programs match `code`; the list of codes is in docs/errors.md.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A reference to the code's documentation.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// The stable code, the same as in Rust and on the command line.
    pub code: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong with this request, and what to do.
    pub detail: String,
    /// The request's id, for the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The fields that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// The state that the order or item is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_state: Option<String>,
    /// The state that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted_state: Option<String>,
    /// What would have been allowed: states, names, or types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// What has changed since the caller looked, one line for each change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// What is missing or in the way, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The content version of the order, where another one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_version: Option<u32>,
    /// The digest of that content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The version of the order, where another one was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<i64>,
    /// The position up to which events were pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// The id of what is in the way: an order, or a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
}

/// The codes that only HTTP has, with their meaning, and whether they are temporary. Those of the layers
/// are the same everywhere.
pub const HTTP_CODES: [(&str, &str, bool); 15] = [
    ("host_refused", "the request names a host that is not this server's", false),
    ("origin_refused", "the request comes from a web page of another site", false),
    ("unauthorized", "the request has no token, or one that the server cannot accept", false),
    ("forbidden", "the caller may not do this, or not with this type or key", false),
    ("token_exists", "a token of this name can be used already", false),
    ("token_not_found", "there is no such token", false),
    ("malformed_request", "the body, path, query or a header cannot be read", false),
    ("body_timeout", "the body of the request did not come in time", true),
    ("unsupported_media_type", "the body is not declared as JSON", false),
    ("not_found", "there is nothing at this path", false),
    ("method_not_allowed", "the path has no such method", false),
    ("server_unreachable", "the server cannot be reached, or did not answer in time", true),
    ("unreadable_answer", "the answer is none of a Latchwork server of this version", false),
    ("server_ending", "the server ends and takes no more work; ask another one, or again", true),
    ("too_many_waiting", "too many long polls and streams wait at the server", true),
];

/// One field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldProblem {
    /// Where, as a JSON pointer or the name of a parameter.
    pub field: String,
    /// What kind of problem.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

/// The error responses that every operation may give, for its description.
#[derive(IntoResponses)]
#[allow(missing_docs, dead_code, reason = "a description, never a value")]
pub enum Problems {
    /// The request cannot be read, or an argument is not legal.
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(Problem),
    /// There is no token, or it is not a valid one.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(Problem),
    /// The caller may not do this.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is no such thing, or the caller may not see it.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// The path has no such method.
    #[response(status = 405, content_type = "application/problem+json")]
    MethodNotAllowed(Problem),
    /// The body did not come in time.
    #[response(status = 408, content_type = "application/problem+json")]
    RequestTimeout(Problem),
    /// The state does not allow it, or a request with the same idempotency key is under way.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// Events behind the position were pruned.
    #[response(status = 410, content_type = "application/problem+json")]
    Gone(Problem),
    /// The order was changed since the version of `If-Match`.
    #[response(status = 412, content_type = "application/problem+json")]
    PreconditionFailed(Problem),
    /// The body, or a document in it, is too large.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The body is not JSON.
    #[response(status = 415, content_type = "application/problem+json")]
    UnsupportedMediaType(Problem),
    /// The document does not satisfy its type, or the idempotency key was used for another request.
    #[response(status = 422, content_type = "application/problem+json")]
    Unprocessable(Problem),
    /// Too many requests wait at once.
    #[response(status = 429, content_type = "application/problem+json")]
    TooMany(Problem),
    /// The server failed; its log has the request's id.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(Problem),
    /// The server has no locks, or no flows, or its backend cannot do this.
    #[response(status = 501, content_type = "application/problem+json")]
    NotImplemented(Problem),
    /// The database does not answer, or the server ends.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_documentation_has_these_codes() {
        let page = include_str!("../../../docs/errors.md");
        for (code, meaning, temporary) in HTTP_CODES {
            let temporary = if temporary { "yes" } else { "no" };
            let row = format!("| `{code}` | {meaning} | {temporary} |\n");
            assert!(page.contains(&row), "docs/errors.md should have:\n{row}");
        }
    }
}
