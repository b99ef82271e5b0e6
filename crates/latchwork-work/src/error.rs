//! One error type, with a code that is the same in Rust, HTTP and the shell.

use std::time::Duration;

use crate::{ItemId, LeaseId, OrderId, OrderState, Violation};

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
    /// A part of a result does not satisfy the type's schema.
    #[error(
        "the part {key:?} does not satisfy the order type {order_type:?}: {}",
        join(violations)
    )]
    #[non_exhaustive]
    PartInvalid {
        /// The type.
        order_type: String,
        /// The part.
        key: String,
        /// Everything that is wrong.
        violations: Vec<Violation>,
    },
    /// An item has too many parts, or they are too large together.
    #[error("the item would have more than {limit} {what}, the limit of its order type")]
    #[non_exhaustive]
    PartLimit {
        /// "parts" or "bytes of parts".
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The parts of an item do not make up a result yet.
    #[error("the parts do not make up a result yet: {}", problems.join("; "))]
    #[non_exhaustive]
    PartsIncomplete {
        /// Everything that is missing.
        problems: Vec<String>,
    },
    /// A declaration in a file has a mistake.
    #[error("{file}:{line}: {}{reason}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
    #[non_exhaustive]
    InvalidDeclaration {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The field, such as `review.approvals`; empty where the text is no TOML.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A document is too large.
    #[error("the {what} is larger than {limit} bytes, which is its limit; make it smaller")]
    #[non_exhaustive]
    TooLarge {
        /// "payload", "input", "part", "result" or "preview".
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
    /// There is no such order.
    #[error("there is no order {id}; it may have been pruned")]
    #[non_exhaustive]
    OrderNotFound {
        /// Its id.
        id: OrderId,
    },
    /// There is no such item.
    #[error("there is no item {id}; its order may have been pruned")]
    #[non_exhaustive]
    ItemNotFound {
        /// Its id.
        id: ItemId,
    },
    /// The lease is over: it ran out, was given back, or the item was submitted or taken back.
    #[error("the lease {id} is over: {reason}; check out an item again")]
    #[non_exhaustive]
    LeaseExpired {
        /// The lease.
        id: LeaseId,
        /// What became of it, as far as it is known.
        reason: &'static str,
    },
    /// The lease belongs to another agent.
    #[error("the lease {id} belongs to another agent; use the lease of your own checkout")]
    #[non_exhaustive]
    LeaseForeign {
        /// The lease.
        id: LeaseId,
    },
    /// A limit on leases is reached.
    #[error(
        "the limit {limit:?} is reached: {held} of {max} are leased; wait until one of them ends"
    )]
    #[non_exhaustive]
    LimitReached {
        /// `agent:…`, `type:…` or `key:…`.
        limit: String,
        /// How many leases count for it.
        held: u32,
        /// How many may.
        max: u32,
    },
    /// The order was changed by somebody else since it was read.
    #[error("the {entity} was changed by somebody else meanwhile; read it again and decide anew")]
    #[non_exhaustive]
    Conflict {
        /// "order" or "item".
        entity: &'static str,
    },
    /// The order is not the version that the caller has seen.
    #[error("the order has version {current}, and version {expected} was expected; read it again")]
    #[non_exhaustive]
    VersionMismatch {
        /// What the caller has seen.
        expected: i64,
        /// What it is.
        current: i64,
    },
    /// The order is in no state for this.
    #[error("the order is {state}: {reason}")]
    #[non_exhaustive]
    OrderState {
        /// The state that it is in.
        state: OrderState,
        /// Why that does not do, and what to do.
        reason: &'static str,
    },
    /// The order is not ready for approval.
    #[error("the order cannot be approved yet: {}", join(violations))]
    #[non_exhaustive]
    NotReady {
        /// Everything that is missing.
        violations: Vec<Violation>,
    },
    /// What was seen is not what would be applied.
    #[error(
        "what was seen has changed (content version {seen}, now {version}): {}; preview the order again",
        list(changes)
    )]
    #[non_exhaustive]
    ContentChanged {
        /// The content version that was seen.
        seen: u32,
        /// The content version of the order.
        version: u32,
        /// The digest that would have to be named.
        digest: String,
        /// What is different, one line for each change.
        changes: Vec<String>,
    },
    /// The order was decided otherwise.
    #[error("the order is {state}, by {by}: it cannot be {wanted} any more")]
    #[non_exhaustive]
    Decided {
        /// The state that it is in.
        state: OrderState,
        /// Who decided, as far as it is known.
        by: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// This actor may not make the decision.
    #[error("{actor} may not approve the order: {reason}")]
    #[non_exhaustive]
    ReviewerRefused {
        /// Who asked.
        actor: String,
        /// Why not.
        reason: String,
    },
    /// The order has no receipt.
    #[error("the order {id} has no receipt: {reason}")]
    #[non_exhaustive]
    NoReceipt {
        /// The order.
        id: OrderId,
        /// Why there is none.
        reason: &'static str,
    },
    /// The events of an order are not sealed yet.
    #[error("events of the order {id} are not sealed yet; maintenance seals them, so ask again")]
    #[non_exhaustive]
    NotSealed {
        /// The order.
        id: OrderId,
    },
    /// Another live order has the same `unique_key`.
    #[error(
        "the order {existing} of type {order_type:?} has the unique key {key:?}, and it is live"
    )]
    #[non_exhaustive]
    UniqueConflict {
        /// The type.
        order_type: String,
        /// The key.
        key: String,
        /// The order that has it.
        existing: OrderId,
    },
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request of {scope}; take a fresh key")]
    #[non_exhaustive]
    IdempotencyConflict {
        /// The operation.
        scope: &'static str,
    },
    /// A request with this idempotency key is under way.
    #[error("a request with this idempotency key is under way; ask again in {} s", retry_after.as_secs())]
    #[non_exhaustive]
    IdempotencyInFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Events behind a listener's position were pruned.
    #[error(
        "events behind position {position} were pruned, up to the checkpoint at {checkpoint}; a \
         listener that resumes there has missed them: begin anew with the oldest that is kept"
    )]
    #[non_exhaustive]
    EventsPruned {
        /// Where the listener wanted to read on.
        position: u64,
        /// The last position that was pruned.
        checkpoint: u64,
    },
    /// The store did not answer, or could not serve now.
    #[error("the work store {store} is unavailable: {message}")]
    #[non_exhaustive]
    StoreUnavailable {
        /// Which store.
        store: &'static str,
        /// What it said, and what to do.
        message: String,
        /// The driver's error.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The store refuses, and an operator has to act.
    #[error("the work store {store} failed: {message}")]
    #[non_exhaustive]
    StoreBackend {
        /// Which store.
        store: &'static str,
        /// What it said, and what to do.
        message: String,
        /// The driver's error.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
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
    pub const CODES: [(&'static str, &'static str, bool); 31] = [
        ("unknown_name", "a state, event type or other name does not exist", false),
        ("invalid_declaration", "a declaration in a file has a mistake", false),
        ("order_type_not_found", "there is no order type of this name", false),
        ("payload_invalid", "the payload does not satisfy its order type", false),
        ("result_invalid", "the result does not satisfy its order type", false),
        ("part_invalid", "a part of a result does not satisfy its order type", false),
        ("part_limit", "an item has too many parts, or they are too large together", false),
        ("parts_incomplete", "the parts of an item do not make up a result yet", false),
        (
            "too_large",
            "a payload, input, part or result is over the limit of its order type",
            false,
        ),
        ("plan_empty", "the order type planned no items", false),
        ("order_type_failed", "the code of an order type failed", false),
        ("order_not_found", "there is no order with this id", false),
        ("item_not_found", "there is no item with this id", false),
        ("lease_expired", "the lease is over", false),
        ("lease_foreign", "the lease on an item belongs to another agent", false),
        ("limit_reached", "a limit on leases is reached", true),
        ("conflict", "an order or item was changed by somebody else meanwhile", true),
        ("version_mismatch", "the order has another version than the caller has seen", false),
        ("order_state", "the order is in no state for this operation", false),
        ("not_ready", "the order is not ready for approval", false),
        ("content_changed", "what a reviewer has seen is not what would be applied", false),
        ("decided", "the order was decided otherwise already", false),
        ("reviewer_refused", "this actor may not approve the order", false),
        ("no_receipt", "the order was not approved and applied, or its events were pruned", false),
        ("not_sealed", "the events of the order are not sealed yet", true),
        ("unique_conflict", "another live order has the same unique key", false),
        ("idempotency_conflict", "the idempotency key was used for another request", false),
        ("idempotency_in_flight", "a request with this idempotency key is under way", true),
        ("events_pruned", "events that a listener has not seen yet were pruned", false),
        ("work_store_unavailable", "the store of orders did not answer or cannot serve now", true),
        ("work_store_backend", "the store of orders refuses, and an operator has to act", false),
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
            ErrorKind::InvalidDeclaration { .. } => "invalid_declaration",
            ErrorKind::UnknownName { .. } => "unknown_name",
            ErrorKind::OrderTypeNotFound { .. } => "order_type_not_found",
            ErrorKind::PayloadInvalid { .. } => "payload_invalid",
            ErrorKind::ResultInvalid { .. } => "result_invalid",
            ErrorKind::PartInvalid { .. } => "part_invalid",
            ErrorKind::PartLimit { .. } => "part_limit",
            ErrorKind::PartsIncomplete { .. } => "parts_incomplete",
            ErrorKind::TooLarge { .. } => "too_large",
            ErrorKind::PlanEmpty { .. } => "plan_empty",
            ErrorKind::OrderTypeFailed { .. } => "order_type_failed",
            ErrorKind::OrderNotFound { .. } => "order_not_found",
            ErrorKind::ItemNotFound { .. } => "item_not_found",
            ErrorKind::LeaseExpired { .. } => "lease_expired",
            ErrorKind::LeaseForeign { .. } => "lease_foreign",
            ErrorKind::LimitReached { .. } => "limit_reached",
            ErrorKind::Conflict { .. } => "conflict",
            ErrorKind::VersionMismatch { .. } => "version_mismatch",
            ErrorKind::OrderState { .. } => "order_state",
            ErrorKind::NotReady { .. } => "not_ready",
            ErrorKind::ContentChanged { .. } => "content_changed",
            ErrorKind::Decided { .. } => "decided",
            ErrorKind::ReviewerRefused { .. } => "reviewer_refused",
            ErrorKind::NoReceipt { .. } => "no_receipt",
            ErrorKind::NotSealed { .. } => "not_sealed",
            ErrorKind::UniqueConflict { .. } => "unique_conflict",
            ErrorKind::IdempotencyConflict { .. } => "idempotency_conflict",
            ErrorKind::IdempotencyInFlight { .. } => "idempotency_in_flight",
            ErrorKind::EventsPruned { .. } => "events_pruned",
            ErrorKind::StoreUnavailable { .. } => "work_store_unavailable",
            ErrorKind::StoreBackend { .. } => "work_store_backend",
            ErrorKind::InvalidArgument { .. } => "invalid_argument",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        let code = self.code();
        Self::CODES.iter().any(|(known, _, temporary)| *known == code && *temporary)
    }

    pub(crate) fn invalid(name: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { name, reason: reason.into() }.into()
    }

    /// A row that no program of ours has written.
    pub(crate) fn damaged(what: impl std::fmt::Display) -> Self {
        let message = format!("what is stored cannot be read ({what}); restore the row");
        ErrorKind::StoreBackend { store: "work", message, source: None }.into()
    }

    /// Whether a row cannot be read, and not the store.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_damage(&self) -> bool {
        // Errors of a driver have a source, and the name of their store.
        matches!(self.kind(), ErrorKind::StoreBackend { store: "work", source: None, .. })
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
