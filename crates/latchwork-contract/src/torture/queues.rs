//! Sees who stands in which queue, and when nobody gets an answer.

use std::time::Duration;

use super::process_context::ProcessContext;
use crate::history::What;

/// Writes down everybody in every queue, until the run is over.
///
/// One key after another, so that whatever holds up a part of the backend holds up this, too. An
/// offer lapses after two seconds, or after the ttl where that is shorter: a silence of half the
/// shortest one is worth writing down.
pub(super) async fn record_queues(context: &ProcessContext) {
    let silence = context.assignment.torture.unit / 2;
    let mut looked = context.now();
    while !context.is_over() {
        for key in &context.keys {
            let seen = context.locks.inspect(key).await;
            if context.now().since(looked) > silence {
                context.record("", 0, What::Stalled { since: looked });
            }
            looked = context.now();
            // An outage is the business of those who ask.
            for waiter in seen.into_iter().flat_map(|seen| seen.waiters) {
                if let Some(request) = waiter.note.and_then(|note| note.parse().ok()) {
                    context.record(key, request, What::Queued { position: waiter.position });
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
