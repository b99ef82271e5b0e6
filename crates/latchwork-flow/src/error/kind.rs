//! What can go wrong, and what each of it says.

use std::borrow::Cow;

use chrono::{DateTime, Utc};

use super::BoxError;
use crate::{Status, TransitionId};

/// The kinds of [`Error`](crate::Error).
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
