//! Sees when this process does not run.

use std::time::Duration;

use super::stage::Stage;
use crate::history::What;

/// Writes down when this process stood still, for as long as it is polled.
///
/// An offer lapses after two seconds, or after the ttl where that is shorter. On a busy machine a
/// process may miss it by no fault of the locks; a quarter of the shortest ttl is worth writing
/// down, since several such stretches may add up.
pub(super) async fn pulse(stage: &Stage) {
    let long = stage.part.torture.unit / 4;
    let mut before = stage.now();
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if stage.now().since(before) > long {
            stage.record("", 0, What::StoodStill { since: before });
        }
        before = stage.now();
    }
}
