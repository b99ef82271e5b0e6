//! Events as figures.

use metrics::{counter, histogram};

use super::Observer;
use crate::{Event, EventKind, State};

/// Counts and times events through the `metrics` facade.
///
/// | name | labels |
/// | --- | --- |
/// | `latchwork_flow_transitions_total` | machine, status |
/// | `latchwork_flow_gates_total` | machine, gate, verdict |
/// | `latchwork_flow_actions_total` | machine, action, execution |
/// | `latchwork_flow_action_seconds` | machine, action |
/// | `latchwork_flow_lock_contention_total` | machine |
/// | `latchwork_flow_lock_lost_total` | machine |
///
/// A lock's key is no label: there are as many of them as entities.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsObserver;

impl<S: State> Observer<S> for MetricsObserver {
    fn observe(&self, event: &Event<'_, S>) {
        let machine = || event.machine.to_owned();
        match event.kind {
            EventKind::TransitionCompleted
            | EventKind::TransitionPaused { .. }
            | EventKind::TransitionStopped { .. }
            | EventKind::TransitionFailed { .. } => {
                let status = event.context.status().name();
                counter!("latchwork_flow_transitions_total", "machine" => machine(), "status" => status)
                    .increment(1);
            }
            EventKind::GateEvaluated { gate, result, .. } => {
                let verdict = result.verdict().name();
                counter!("latchwork_flow_gates_total", "machine" => machine(), "gate" => gate.to_owned(), "verdict" => verdict)
                    .increment(1);
            }
            EventKind::ActionExecuted { action, execution, took, .. } => {
                let execution = execution.name();
                counter!("latchwork_flow_actions_total", "machine" => machine(), "action" => action.to_owned(), "execution" => execution)
                    .increment(1);
                histogram!("latchwork_flow_action_seconds", "machine" => machine(), "action" => action.to_owned())
                    .record(took);
            }
            EventKind::LockFailed { .. } => {
                counter!("latchwork_flow_lock_contention_total", "machine" => machine())
                    .increment(1);
            }
            EventKind::LockLost { .. } => {
                counter!("latchwork_flow_lock_lost_total", "machine" => machine()).increment(1);
            }
            _ => {}
        }
    }
}
