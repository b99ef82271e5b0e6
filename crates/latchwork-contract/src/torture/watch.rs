//! Sees who stands in which queue.

use std::time::Duration;

use super::stage::Stage;
use crate::history::What;

/// Writes down everybody in every queue, until the run is over.
pub(super) async fn watch(stage: &Stage) {
    while !stage.is_over() {
        for key in &stage.keys {
            // An outage is the business of those who ask.
            let Ok(found) = stage.locks.inspect(key).await else { continue };
            for waiter in found.waiters {
                if let Some(request) = waiter.note.and_then(|note| note.parse().ok()) {
                    stage.record(key, request, What::Queued { position: waiter.position });
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
