//! One error type, with a code that is the same in Rust, HTTP and the shell.

use crate::Violation;

/// The result of an operation of the work layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with an operation of the work layer.
///
/// Match [`kind`](Error::kind), or hand [`code`](Error::code) on; retry layers ask
/// [`is_temporary`](Error::is_temporary). No message shows a lease's secret.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The transition table does not allow this move.
    #[error(
        "the {entity} is {from} and cannot become {to}; from {from} it can become {}",
        list(allowed)
    )]
    #[non_exhaustive]
    IllegalTransition {
        /// "order" or "item".
        entity: &'static str,
        /// The state that it is in.
        from: String,
        /// The state that was asked for.
        to: String,
        /// The states that it can become.
        allowed: Vec<String>,
    },
    /// A transition table does not hold together.
    #[error("the transition table {table:?} does not hold together: {}", problems.join("; "))]
    #[non_exhaustive]
    InvalidTable {
        /// Its name.
        table: String,
        /// Everything that is wrong with it.
        problems: Vec<String>,
    },
    /// A name is not one of those that exist.
    #[error("there is no {what} {name:?}; there are {}", list(known))]
    #[non_exhaustive]
    UnknownName {
        /// What it should name.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// There is no such order type.
    #[error("there is no order type {name:?}; there are {}", list(known))]
    #[non_exhaustive]
    OrderTypeNotFound {
        /// The name.
        name: String,
        /// The types that there are.
        known: Vec<String>,
    },
    /// The payload does not satisfy the type's schema or rules.
    #[error("the payload does not satisfy the order type {order_type:?}: {}", join(violations))]
    #[non_exhaustive]
    PayloadInvalid {
        /// The type.
        order_type: String,
        /// Everything that is wrong.
        violations: Vec<Violation>,
    },
    /// The result does not satisfy the type's schema or rules.
    #[error("the result does not satisfy the order type {order_type:?}: {}", join(violations))]
    #[non_exhaustive]
    ResultInvalid {
        /// The type.
        order_type: String,
        /// Everything that is wrong.
        violations: Vec<Violation>,
    },
    /// A document is too large.
    #[error("the {what} is larger than {limit} bytes, the limit of its order type")]
    #[non_exhaustive]
    TooLarge {
        /// "payload", "input" or "result".
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A plan has no items, so the order could never end.
    #[error("the order type {order_type:?} planned no items: an order needs at least one")]
    #[non_exhaustive]
    PlanEmpty {
        /// The type.
        order_type: String,
    },
    /// The code of an order type failed.
    #[error("the order type {order_type:?} failed in {during}: {source}")]
    #[non_exhaustive]
    OrderTypeFailed {
        /// The type.
        order_type: String,
        /// What it was doing.
        during: &'static str,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another argument is not legal.
    #[error("invalid {name}: {reason}")]
    #[non_exhaustive]
    InvalidArgument {
        /// Which argument.
        name: &'static str,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

impl Error {
    /// Every code with its meaning, and whether it is temporary.
    pub const CODES: [(&'static str, &'static str, bool); 7] = [
        ("unknown_name", "a state, event type or other name does not exist", false),
        ("order_type_not_found", "there is no order type of this name", false),
        ("payload_invalid", "the payload does not satisfy its order type", false),
        ("result_invalid", "the result does not satisfy its order type", false),
        ("too_large", "a payload, input or result is over the limit of its order type", false),
        ("plan_empty", "the order type planned no items", false),
        ("order_type_failed", "the code of an order type failed", false),
    ];

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The stable code. A code that means the same as one of the lower layers is that one.
    pub fn code(&self) -> &'static str {
        match self.kind() {
            ErrorKind::IllegalTransition { .. } => "illegal_transition",
            ErrorKind::InvalidTable { .. } => "invalid_table",
            ErrorKind::UnknownName { .. } => "unknown_name",
            ErrorKind::OrderTypeNotFound { .. } => "order_type_not_found",
            ErrorKind::PayloadInvalid { .. } => "payload_invalid",
            ErrorKind::ResultInvalid { .. } => "result_invalid",
            ErrorKind::TooLarge { .. } => "too_large",
            ErrorKind::PlanEmpty { .. } => "plan_empty",
            ErrorKind::OrderTypeFailed { .. } => "order_type_failed",
            ErrorKind::InvalidArgument { .. } => "invalid_argument",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        false
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

fn join(violations: &[Violation]) -> String {
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
}

fn list(names: &[impl AsRef<str>]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_documentation_has_this_list() {
        let page = include_str!("../../../docs/errors.md");
        for (code, meaning, temporary) in Error::CODES {
            let temporary = if temporary { "yes" } else { "no" };
            let row = format!("| `{code}` | {meaning} | {temporary} |\n");
            assert!(page.contains(&row), "docs/errors.md should have:\n{row}");
        }
    }
}
