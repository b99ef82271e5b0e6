//! The watchdog: renews a lease while its guard lives, up to a bound (L10).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::blocking::background_runtime;
use crate::held::Refresh;
use crate::retry::Backoff;
use crate::{Error, Held, Result};

/// Renewal in the background: at a third of the ttl, and no longer than a bound.
///
/// The bound is not optional, because unbounded renewal hides a holder that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// How long the lease may be held in all.
    pub(crate) max_hold: Duration,
}

/// A running watchdog; dropped, it stops.
pub(crate) struct Watchdog(AbortHandle);

impl Watchdog {
    pub(crate) fn start(held: Arc<Held>, renewal: Renewal) -> Result<Self> {
        // Not in the caller's runtime: work that blocks it would end the lease that it works under.
        let runtime = background_runtime().map_err(|reason| {
            Error::invalid_argument("auto_renew", format!("renewal has no thread: {reason}"))
        })?;
        Ok(Watchdog(runtime.spawn(watch(held, renewal)).abort_handle()))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn watch(held: Arc<Held>, renewal: Renewal) {
    let clock = held.locks.clock().clone();
    let last = held.since().after(renewal.max_hold);
    let mut next = held.since().after(held.ttl() / 3);
    let mut backoff = Backoff::new(held.ttl() / 20);
    loop {
        clock.sleep_until(next.min(last)).await;
        if clock.now() >= last {
            tracing::warn!(
                key = held.key(),
                "a lease reached its longest time and is no longer renewed"
            );
            return;
        }
        let asked = clock.now();
        let force = Refresh { ttl: None, threshold: Some(Duration::ZERO) };
        match held.refresh_with(force).await {
            Ok(()) => {
                held.note_renewal(None);
                next = asked.after(held.ttl() / 3);
                backoff = Backoff::new(held.ttl() / 20);
            }
            // Also what looks permanent: a right may be given back, or a full server emptied, while the
            // lease still lasts.
            Err(error) if !error.is_loss() && clock.now() < held.expires() => {
                tracing::warn!(key = held.key(), %error, "a lease could not be renewed; trying again");
                held.note_renewal(Some(Arc::new(error)));
                next = clock.now().after(backoff.pause());
            }
            Err(error) => {
                tracing::warn!(key = held.key(), %error, "a lease was lost");
                if !error.is_loss() {
                    held.note_renewal(Some(Arc::new(error)));
                }
                held.mark_lost();
                return;
            }
        }
    }
}
