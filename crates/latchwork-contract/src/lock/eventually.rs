//! Waiting for a condition instead of sleeping for luck.

use std::time::Duration;

/// How long anything may take that should happen soon, on a busy machine; less than a ttl lasts that
/// must not be what made it happen.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Looks until the condition holds.
///
/// # Panics
/// When it does not within twenty seconds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let look = async {
        let mut pause = Duration::from_millis(1);
        while !condition().await {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    };
    assert!(tokio::time::timeout(SOON, look).await.is_ok(), "not within {SOON:?}: {what}");
}
