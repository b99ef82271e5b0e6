//! Sees when this process does not run.

use std::time::Duration;

use super::process_context::ProcessContext;
use crate::history::What;

/// Writes down when this process stood still, for as long as it is polled.
///
/// An offer lapses after two seconds, or after the ttl where that is shorter. On a busy machine a
/// process may miss it by no fault of the locks; a quarter of the shortest ttl is worth writing
/// down, since several such stretches may add up.
pub(super) async fn record_pauses(context: &ProcessContext) {
    let long = context.assignment.torture.unit / 4;
    let mut before = context.now();
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if context.now().since(before) > long {
            context.record("", 0, What::StoodStill { since: before });
        }
        before = context.now();
    }
}
