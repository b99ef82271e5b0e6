//! Whether what was read can be the context of a transition, before anything of it is run.
//!
//! A stored context may have lost a field or got another's, by hand or by a broken disk. Each field
//! was read by itself; here they are held against each other, since a context that contradicts itself
//! would run the wrong actions, none, or the same one for ever.

use crate::store::ContextHead;
use crate::{ContextDetails, Error, Execution, Result, State, Status, TransitionContext};

impl<S: State> TransitionContext<S> {
    /// Checks that it can go on.
    pub(crate) fn check_shape(&self) -> Result<()> {
        let begun = self.plan.is_some();
        let done = self.actions.as_slice().iter();
        let done = done.filter(|done| done.execution != Execution::Repeat).map(|done| done.index);
        let past = done.chain(self.skips.iter().map(|skip| skip.index)).max();
        let next = past.map_or(0, |index| index.saturating_add(1));
        let wrong = match self.status {
            Status::Pending if begun => "it has not begun, and has actions left",
            Status::Pending if self.next > 0 => "it has not begun, and actions are done",
            Status::Running | Status::Paused if !begun => "it does not say which actions are left",
            Status::Paused if self.paused.is_none() => {
                "it is paused, and does not say what it waits for"
            }
            Status::Quarantined => "it is not the context that is quarantined, but its row",
            Status::Running | Status::Paused if self.next < next => {
                "its next action comes before one that is done"
            }
            _ => return Ok(()),
        };
        Err(Error::corrupt_context(wrong))
    }

    /// Checks that it is the context of its row.
    pub(crate) fn check_row(&self, head: &ContextHead) -> Result<()> {
        if self.id != head.id {
            return Err(Error::corrupt_context("it is another transition's"));
        }
        let details = serde_json::from_str::<ContextDetails>(&head.details).ok();
        // A migration may have changed which actions are left.
        let details = details.filter(|details| details.definition == self.definition);
        let left = self.remaining_actions().len();
        if details.is_some_and(|details| (details.done, details.left) != (self.next, left)) {
            return Err(Error::corrupt_context("it has other actions left than its row says"));
        }
        Ok(())
    }

    /// Takes a failed one up again, where its row says so: at the action that failed, or from the
    /// beginning. True when it did.
    pub(crate) fn retried(&mut self, head: &ContextHead) -> bool {
        let again = self.status == Status::Failed && !head.status.is_over();
        if again {
            self.status = if self.plan.is_some() { Status::Running } else { Status::Pending };
            self.failure = None;
        }
        again
    }
}
