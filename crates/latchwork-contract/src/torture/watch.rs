//! Sees who stands in which queue, and when nobody gets an answer.

use std::time::Duration;

use super::stage::Stage;
use crate::history::What;

/// Writes down everybody in every queue, until the run is over.
///
/// One key after another, so that whatever holds up a part of the backend holds up this, too. An
/// offer lapses after two seconds, or after the ttl where that is shorter: a silence of half the
/// shortest one is worth writing down.
pub(super) async fn watch(stage: &Stage) {
    let silence = stage.part.torture.unit / 2;
    let mut looked = stage.now();
    while !stage.is_over() {
        for key in &stage.keys {
            let seen = stage.locks.inspect(key).await;
            if stage.now().since(looked) > silence {
                stage.record("", 0, What::Stalled { since: looked });
            }
            looked = stage.now();
            // An outage is the business of those who ask.
            for waiter in seen.into_iter().flat_map(|seen| seen.waiters) {
                if let Some(request) = waiter.note.and_then(|note| note.parse().ok()) {
                    stage.record(key, request, What::Queued { position: waiter.position });
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
