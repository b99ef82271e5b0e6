//! One error type, with a code that is the same in Rust, HTTP and the shell.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, Utc};

use crate::{Status, TransitionId};

/// The result of a flow operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What gates, actions and the user's other parts may fail with: anything, through `?`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong with a transition.
///
/// Match [`kind`](Error::kind), or hand [`code`](Error::code) on; retry layers ask
/// [`is_temporary`](Error::is_temporary). No message ever shows a token.
///
/// It is one pointer wide, because every step that goes well carries room for it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock could not be taken, kept or resumed. The code is the lock's own.
    #[error(transparent)]
    Lock(latchwork_lock::Error),
    /// The table does not allow this move.
    #[error("{table}: {from} cannot become {to}; from {from} it can become {}", list(allowed))]
    #[non_exhaustive]
    IllegalTransition {
        /// The table's name: what is moved.
        table: String,
        /// Where it stands.
        from: String,
        /// Where it should have gone.
        to: String,
        /// Where it may go instead.
        allowed: Vec<String>,
    },
    /// A transition table does not hold together.
    #[error("the transition table {table:?} does not hold together: {}", problems.join("; "))]
    #[non_exhaustive]
    InvalidTable {
        /// Its name.
        table: String,
        /// All that is wrong with it.
        problems: Vec<String>,
    },
    /// The state has another shape than this machine's.
    #[error("the state has the wrong shape: {reason}")]
    #[non_exhaustive]
    InvalidState {
        /// What is wrong with it.
        reason: String,
    },
    /// The delta has another shape than this machine's.
    #[error("the delta has the wrong shape: {reason}")]
    #[non_exhaustive]
    InvalidDelta {
        /// What is wrong with it.
        reason: String,
    },
    /// The state says nothing from which its lock's key could be made.
    #[error(
        "the state has no {missing}, which the lock's key is made of: \
         give it one (`State::id`, `State::status`, `State::target`), or lock by other keys"
    )]
    #[non_exhaustive]
    NoEntityId {
        /// What it lacks.
        missing: &'static str,
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
    /// A gate or action is named that the machine does not have.
    #[error(
        "the machine {machine:?} has no {what} {name:?}: register it when the machine is built; \
         it has {}",
        list(known)
    )]
    #[non_exhaustive]
    UnknownStep {
        /// The machine.
        machine: String,
        /// "gate" or "action".
        what: &'static str,
        /// The name.
        name: String,
        /// The names that it has.
        known: Vec<String>,
    },
    /// A gate failed or panicked.
    #[error("the gate {gate:?} failed: {reason}")]
    #[non_exhaustive]
    GateFailed {
        /// Its name.
        gate: String,
        /// What it said.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// Its error.
        #[source]
        source: Option<BoxError>,
    },
    /// An action failed or panicked.
    #[error("the action {action:?} (number {index}) failed: {reason}")]
    #[non_exhaustive]
    ActionFailed {
        /// Its name.
        action: String,
        /// Its place in the transition, from zero.
        index: usize,
        /// What it said.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// Its error.
        #[source]
        source: Option<BoxError>,
    },
    /// An action took longer than its time limit, and was dropped.
    #[error("the action {action:?} (number {index}) took longer than its limit of {limit:?}")]
    #[non_exhaustive]
    ActionTimedOut {
        /// Its name.
        action: String,
        /// Its place in the transition, from zero.
        index: usize,
        /// The limit.
        limit: std::time::Duration,
    },
    /// The machine's `migrate` could not bring a stored context up to its definition.
    #[error("a context of definition {from} could not be migrated to {to}: {reason}")]
    #[non_exhaustive]
    MigrationFailed {
        /// The definition that wrote it.
        from: u32,
        /// The machine's definition.
        to: u32,
        /// Why.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// What it failed with.
        #[source]
        source: Option<BoxError>,
    },
    /// The configuration provider or the key provider failed or panicked.
    #[error("the {what} provider of {machine:?} failed: {reason}")]
    #[non_exhaustive]
    ProviderFailed {
        /// The machine.
        machine: String,
        /// "configuration" or "lock key".
        what: &'static str,
        /// What it said.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// Its error.
        #[source]
        source: Option<BoxError>,
    },
    /// The entity of a transition is not there.
    #[error("there is no entity {entity:?}: its loader found nothing")]
    #[non_exhaustive]
    EntityNotFound {
        /// Its id.
        entity: String,
    },
    /// The entity could not be loaded.
    #[error("the entity {entity:?} could not be loaded: {reason}")]
    #[non_exhaustive]
    LoadFailed {
        /// Its id.
        entity: String,
        /// What the loader said.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// Its error.
        #[source]
        source: Option<BoxError>,
    },
    /// The entity could not be saved. Whether it was is not known.
    #[error("the entity {entity:?} could not be saved: {reason}")]
    #[non_exhaustive]
    SaveFailed {
        /// Its id.
        entity: String,
        /// What was said.
        reason: String,
        /// Whether it panicked.
        panicked: bool,
        /// The error.
        #[source]
        source: Option<BoxError>,
    },
    /// The entity was changed by a writer that did not hold its lock.
    #[error(
        "the entity {entity:?} was changed meanwhile without its lock; \
         run the transition again to load it anew"
    )]
    #[non_exhaustive]
    EntityChanged {
        /// Its id.
        entity: String,
    },
    /// The lock was not held without a break, so that the state may be stale. The code is
    /// `lock_lost`.
    #[error(
        "the transition {id} cannot go on from its state, which may be stale: {reason}; \
         name the entity (`transition_of`, with `load` and `rebase`), or go on with \
         `resume_or_reacquire` or `FlowRunner::reload`"
    )]
    #[non_exhaustive]
    StaleState {
        /// The transition.
        id: TransitionId,
        /// Why it may be stale.
        reason: String,
    },
    /// The stored context belongs to another machine.
    #[error("the context belongs to the machine {found:?}, and this is {expected:?}")]
    #[non_exhaustive]
    ForeignContext {
        /// This machine.
        expected: String,
        /// The context's.
        found: String,
    },
    /// The stored context was written by a newer program.
    #[error(
        "the context has {what} version {found}, and this program knows up to {known}: \
         let a newer program go on with it"
    )]
    #[non_exhaustive]
    NewerContext {
        /// "format" or "definition".
        what: &'static str,
        /// The version that it has.
        found: u64,
        /// The highest that is known.
        known: u64,
    },
    /// What was stored cannot be read.
    #[error("the stored context cannot be read: {reason}")]
    #[non_exhaustive]
    CorruptContext {
        /// What is wrong with it.
        reason: String,
    },
    /// There is no context of this id.
    #[error("there is no context {id}; it was pruned, or never stored here")]
    #[non_exhaustive]
    ContextNotFound {
        /// The id.
        id: TransitionId,
    },
    /// A context of this id is already there.
    #[error("the context {id} is already stored")]
    #[non_exhaustive]
    ContextExists {
        /// The id.
        id: TransitionId,
    },
    /// The context was changed by another since it was read.
    #[error(
        "the context {id} is not at revision {expected} any more{}: \
         somebody else went on with it",
        found.map(|found| format!(" but at {found}")).unwrap_or_default()
    )]
    #[non_exhaustive]
    ContextConflict {
        /// The id.
        id: TransitionId,
        /// The revision that the caller had.
        expected: u64,
        /// The revision that it has.
        found: Option<u64>,
    },
    /// Another process is at this context.
    #[error("the context {id} is being run by {runner} until {until} unless renewed")]
    #[non_exhaustive]
    ContextBusy {
        /// The id.
        id: TransitionId,
        /// Who.
        runner: String,
        /// The end of its run-lease.
        until: DateTime<Utc>,
    },
    /// The context was tried too often without getting on, and is left alone.
    #[error(
        "the context {id} is quarantined after {attempts} attempts: find out why \
         (`Contexts::show`), then release or cancel it"
    )]
    #[non_exhaustive]
    ContextQuarantined {
        /// The id.
        id: TransitionId,
        /// How often it was tried.
        attempts: u32,
    },
    /// The transition is over: nothing can be done with it any more.
    #[error("the transition {id} is {status}: there is nothing left to do with it")]
    #[non_exhaustive]
    TransitionOver {
        /// The id.
        id: TransitionId,
        /// How it ended.
        status: Status,
    },
    /// A paused transition was not woken in time, and its policy was to fail then.
    #[error("the transition {id} was paused and nothing woke it before {at}")]
    #[non_exhaustive]
    PauseTimedOut {
        /// The id.
        id: TransitionId,
        /// When its time was over.
        at: DateTime<Utc>,
    },
    /// The store did not answer. Whether it did what was asked is not known.
    #[error("the {store} context store is unavailable ({during}): {reason}")]
    #[non_exhaustive]
    StoreUnavailable {
        /// Which store.
        store: &'static str,
        /// What was tried.
        during: &'static str,
        /// What came back instead.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<BoxError>,
    },
    /// The store answered, and trying again will not help until somebody repairs it.
    #[error("the {store} context store refused ({during}): {reason}")]
    #[non_exhaustive]
    StoreBackend {
        /// Which store.
        store: &'static str,
        /// What was tried.
        during: &'static str,
        /// What is wrong and what to do.
        reason: String,
        /// The driver's error.
        #[source]
        source: Option<BoxError>,
    },
    /// The program was built without this store.
    #[error(
        "this program was not built with the context store for `{scheme}:`; \
         build it with the feature `{feature}` of latchwork-flow"
    )]
    #[non_exhaustive]
    NotBuilt {
        /// The scheme of the url.
        scheme: String,
        /// The cargo feature to enable.
        feature: &'static str,
    },
}

fn list(names: &[String]) -> Cow<'static, str> {
    if names.is_empty() { Cow::Borrowed("nothing") } else { Cow::Owned(names.join(", ")) }
}

impl Error {
    /// Every code of this layer, with what it means and whether trying again may help. The
    /// documentation's table is made of it. Besides them, [`code`](Self::code) gives those of
    /// [`latchwork_lock::Error`].
    pub const CODES: [(&'static str, &'static str, bool); 25] = [
        ("illegal_transition", "the transition table does not allow this move", false),
        ("invalid_table", "a transition table does not hold together", false),
        ("invalid_state", "the state has the wrong shape", false),
        ("invalid_delta", "the delta has the wrong shape", false),
        ("no_entity_id", "the state says nothing from which its lock's key could be made", false),
        ("unknown_step", "a gate or action is named that the machine does not have", false),
        ("gate_failed", "a gate failed or panicked", false),
        ("action_failed", "an action failed or panicked", false),
        ("action_timed_out", "an action took longer than its time limit", false),
        (
            "migration_failed",
            "a stored context could not be brought up to its machine's definition",
            false,
        ),
        ("provider_failed", "a configuration or key provider failed or panicked", false),
        ("entity_not_found", "the entity of a transition is not there", false),
        ("load_failed", "the entity could not be loaded", true),
        ("save_failed", "the entity could not be saved", true),
        ("entity_changed", "the entity was changed by a writer that did not hold its lock", true),
        ("foreign_context", "the context belongs to another machine", false),
        ("newer_context", "the context was written by a newer program", false),
        ("corrupt_context", "the stored context cannot be read", false),
        ("context_not_found", "there is no context of this id", false),
        ("context_exists", "a context of this id is already there", false),
        ("context_conflict", "the context was changed by another since it was read", false),
        ("context_busy", "another process is at this context", true),
        ("context_quarantined", "the context was tried too often, and is left alone", false),
        ("transition_over", "the transition is over", false),
        ("pause_timed_out", "nothing woke the paused transition in time", false),
    ];

    /// The codes of the stores, after the same pattern.
    pub const STORE_CODES: [(&'static str, &'static str, bool); 2] = [
        ("store_unavailable", "the store did not answer", true),
        ("store_backend", "the store rejected the request; an operator has to act", false),
    ];

    /// What kind of error it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self.kind() {
            ErrorKind::Lock(error) => error.code(),
            ErrorKind::IllegalTransition { .. } => "illegal_transition",
            ErrorKind::InvalidTable { .. } => "invalid_table",
            ErrorKind::InvalidState { .. } => "invalid_state",
            ErrorKind::InvalidDelta { .. } => "invalid_delta",
            ErrorKind::NoEntityId { .. } => "no_entity_id",
            ErrorKind::InvalidArgument { .. } => "invalid_argument",
            ErrorKind::UnknownStep { .. } => "unknown_step",
            ErrorKind::GateFailed { .. } => "gate_failed",
            ErrorKind::ActionFailed { .. } => "action_failed",
            ErrorKind::ActionTimedOut { .. } => "action_timed_out",
            ErrorKind::MigrationFailed { .. } => "migration_failed",
            ErrorKind::ProviderFailed { .. } => "provider_failed",
            ErrorKind::EntityNotFound { .. } => "entity_not_found",
            ErrorKind::LoadFailed { .. } => "load_failed",
            ErrorKind::SaveFailed { .. } => "save_failed",
            ErrorKind::EntityChanged { .. } => "entity_changed",
            ErrorKind::StaleState { .. } => "lock_lost",
            ErrorKind::ForeignContext { .. } => "foreign_context",
            ErrorKind::NewerContext { .. } => "newer_context",
            ErrorKind::CorruptContext { .. } => "corrupt_context",
            ErrorKind::ContextNotFound { .. } => "context_not_found",
            ErrorKind::ContextExists { .. } => "context_exists",
            ErrorKind::ContextConflict { .. } => "context_conflict",
            ErrorKind::ContextBusy { .. } => "context_busy",
            ErrorKind::ContextQuarantined { .. } => "context_quarantined",
            ErrorKind::TransitionOver { .. } => "transition_over",
            ErrorKind::PauseTimedOut { .. } => "pause_timed_out",
            ErrorKind::StoreUnavailable { .. } => "store_unavailable",
            ErrorKind::StoreBackend { .. } => "store_backend",
            ErrorKind::NotBuilt { .. } => "not_built",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        match self.kind() {
            ErrorKind::Lock(error) => error.is_temporary(),
            ErrorKind::ContextBusy { .. }
            | ErrorKind::StoreUnavailable { .. }
            | ErrorKind::LoadFailed { .. }
            | ErrorKind::SaveFailed { .. }
            | ErrorKind::EntityChanged { .. } => true,
            _ => false,
        }
    }

    /// Whether trying the stored context again gives the same error, so that it was an attempt.
    pub(crate) fn is_of_context(&self) -> bool {
        use ErrorKind::{CorruptContext, InvalidArgument, MigrationFailed, StaleState};
        matches!(
            self.kind(),
            CorruptContext { .. }
                | InvalidArgument { .. }
                | MigrationFailed { .. }
                | StaleState { .. }
        )
    }

    /// The lock's error, where it is one.
    pub fn lock_error(&self) -> Option<&latchwork_lock::Error> {
        match self.kind() {
            ErrorKind::Lock(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the lock was lost or ran out: what `resume_or_reacquire` can repair.
    pub fn is_lock_loss(&self) -> bool {
        matches!(self.kind(), ErrorKind::StaleState { .. })
            || self.lock_error().is_some_and(latchwork_lock::Error::is_loss)
    }

    /// Whether somebody else has the lock.
    pub fn is_lock_taken(&self) -> bool {
        let taken = |e: &latchwork_lock::Error| {
            matches!(e.kind(), latchwork_lock::ErrorKind::LockAcquisition { .. })
        };
        self.lock_error().is_some_and(taken)
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub fn invalid_argument(name: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::InvalidArgument { name, reason: reason.into() }.into()
    }

    /// An [`ErrorKind::InvalidState`].
    pub fn invalid_state(reason: impl Into<String>) -> Self {
        ErrorKind::InvalidState { reason: reason.into() }.into()
    }

    /// An [`ErrorKind::InvalidDelta`].
    pub fn invalid_delta(reason: impl Into<String>) -> Self {
        ErrorKind::InvalidDelta { reason: reason.into() }.into()
    }

    /// An [`ErrorKind::CorruptContext`].
    pub fn corrupt_context(reason: impl Into<String>) -> Self {
        ErrorKind::CorruptContext { reason: reason.into() }.into()
    }

    /// An [`ErrorKind::ContextNotFound`], for stores.
    pub fn context_not_found(id: TransitionId) -> Self {
        ErrorKind::ContextNotFound { id }.into()
    }

    /// An [`ErrorKind::ContextExists`], for stores.
    pub fn context_exists(id: TransitionId) -> Self {
        ErrorKind::ContextExists { id }.into()
    }

    /// An [`ErrorKind::StoreUnavailable`], for stores.
    pub fn store_unavailable(
        store: &'static str,
        during: &'static str,
        reason: impl Into<String>,
        source: Option<BoxError>,
    ) -> Self {
        ErrorKind::StoreUnavailable { store, during, reason: reason.into(), source }.into()
    }

    /// An [`ErrorKind::StoreBackend`], for stores.
    pub fn store_backend(
        store: &'static str,
        during: &'static str,
        reason: impl Into<String>,
        source: Option<BoxError>,
    ) -> Self {
        ErrorKind::StoreBackend { store, during, reason: reason.into(), source }.into()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<latchwork_lock::Error> for Error {
    fn from(error: latchwork_lock::Error) -> Self {
        ErrorKind::Lock(error).into()
    }
}

/// A [`BoxError`] as text with its causes, for a context's record of a failure.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            // Many say their cause's message themselves.
            let said = error.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.as_deref().unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_not_those_of_the_lock() {
        let own = Error::CODES.iter().chain(&Error::STORE_CODES);
        let mut codes: Vec<_> = own.chain(&latchwork_lock::Error::CODES).map(|row| row.0).collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }

    #[test]
    fn the_table_in_the_documentation_is_this_list() {
        let page = include_str!("../../../docs/errors.md");
        let mut table = String::new();
        for (code, meaning, temporary) in Error::CODES.iter().chain(&Error::STORE_CODES) {
            let temporary = if *temporary { "yes" } else { "no" };
            table += &format!("| `{code}` | {meaning} | {temporary} |\n");
        }
        assert!(page.contains(&table), "docs/errors.md should have:\n{table}");
    }

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn a_temporary_code_is_temporary() {
        let busy = Error::store_unavailable("memory", "load", "away", None);
        assert!(busy.is_temporary());
        let row = Error::STORE_CODES.iter().find(|row| row.0 == busy.code());
        assert!(row.is_some_and(|row| row.2));
    }
}
