//! Bringing stored contexts up to the definition of their machine.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Chain, panic_text};
use crate::{BoxError, ErrorKind, Result};

/// What a program with an older [definition](crate::StateMachineBuilder::definition) has stored of a
/// transition, for [`migrate`](crate::StateMachineBuilder::migrate) to change.
///
/// What is not here stays as it was: the id, the history, the lock, and how many actions are done,
/// which their idempotency keys are made of.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OlderContext {
    /// The definition that wrote it.
    pub definition: u32,
    /// The state as it was written; none while an entity is not loaded yet.
    pub state: Option<Value>,
    /// The delta as it was written.
    pub delta: Value,
    /// The names of the actions that are left, in order. Rename, remove and add as the new definition
    /// wants; none while the gates have not been asked, since the machine then decides anew.
    pub remaining: Option<Vec<String>>,
}

/// The user's hook.
#[derive(Clone)]
pub(crate) struct Migrate(Arc<Hook>);

type Hook = dyn Fn(&mut OlderContext) -> Result<(), BoxError> + Send + Sync;

impl Migrate {
    pub(crate) fn new(
        migrate: impl Fn(&mut OlderContext) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        Migrate(Arc::new(migrate))
    }

    /// Changes what was stored, for the definition `to`.
    pub(crate) fn run(&self, context: &mut OlderContext, to: u32) -> Result<()> {
        let from = context.definition;
        let (reason, panicked, source) = match catch_unwind(AssertUnwindSafe(|| (self.0)(context)))
        {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => (Chain(&*error).to_string(), false, Some(error)),
            Err(panic) => (panic_text(&*panic), true, None),
        };
        Err(ErrorKind::MigrationFailed { from, to, reason, panicked, source }.into())
    }
}

impl fmt::Debug for Migrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Migrate")
    }
}
