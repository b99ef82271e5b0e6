//! Waiting for a condition instead of sleeping for luck.

use std::time::Duration;

/// How long anything may take that should happen soon, on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// Looks until the condition holds.
///
/// # Panics
/// When it does not within ten seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let look = async {
        let mut pause = Duration::from_millis(1);
        while !condition().await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    };
    assert!(tokio::time::timeout(SOON, look).await.is_ok(), "not within {SOON:?}: {what}");
}
