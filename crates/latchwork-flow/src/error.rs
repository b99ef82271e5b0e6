//! One error type, with a code that is the same in Rust, HTTP and the shell.

mod kind;

use std::fmt;

pub use kind::ErrorKind;

use crate::TransitionId;

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

    /// Whether trying the stored context again gives the same error, so that it was an attempt. A panic
    /// is such: what is away for a while is an error.
    pub(crate) fn is_of_context(&self) -> bool {
        use ErrorKind::{
            CorruptContext, InvalidArgument, LoadFailed, MigrationFailed, SaveFailed, StaleState,
        };
        matches!(
            self.kind(),
            CorruptContext { .. }
                | InvalidArgument { .. }
                | MigrationFailed { .. }
                | StaleState { .. }
                | LoadFailed { panicked: true, .. }
                | SaveFailed { panicked: true, .. }
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
