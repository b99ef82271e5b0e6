//! Events for the log.

use super::Observer;
use crate::{Event, EventKind, State};

/// Tells each event to `tracing`, with the target `latchwork_flow`: failures and contention as
/// warnings, the ends of transitions as information, the rest for those who debug.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

impl<S: State> Observer<S> for TracingObserver {
    fn observe(&self, event: &Event<'_, S>) {
        // The level of an event must be a constant, so there is one line for each level.
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(
                    target: "latchwork_flow",
                    transition = %event.transition,
                    machine = event.machine,
                    sequence = event.sequence,
                    status = event.context.status().name(),
                    kind = ?event.kind,
                    "{}",
                    event.kind.name()
                )
            };
        }
        match event.kind {
            EventKind::TransitionFailed { .. }
            | EventKind::LockFailed { .. }
            | EventKind::LockLost { .. } => tell!(warn),
            EventKind::TransitionCompleted
            | EventKind::TransitionPaused { .. }
            | EventKind::TransitionStopped { .. } => tell!(info),
            _ => tell!(debug),
        }
    }
}
