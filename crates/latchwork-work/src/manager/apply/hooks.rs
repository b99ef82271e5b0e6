//! Running the type's own code: bounded in time, and only as long as the lease is ours.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use latchwork_lock::provider::Moment;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Claimed;
use crate::manager::{WorkManager, transact};
use crate::{Result, TypeError};

/// What became of a hook.
pub(super) enum Ran<T> {
    /// It came to its end.
    Done(T),
    /// It failed, panicked, or took too long.
    Failed { code: &'static str, message: String },
    /// The lease is another worker's by now; nothing is recorded.
    Lost,
}

/// Extends the lease of an order while its hooks run.
pub(super) struct Heartbeat {
    lost: watch::Receiver<bool>,
    task: JoinHandle<()>,
    limit: Duration,
    clock: Arc<dyn latchwork_lock::Clock>,
}

/// So many hooks a lease is extended for: preview, before_apply, apply and after_apply.
const HOOKS: u32 = 4;

impl Heartbeat {
    /// From the claim on.
    pub(super) fn start(manager: &WorkManager, claimed: &Claimed) -> Self {
        let first = claimed.order.settings.apply.lease_ttl / 3;
        Self::begin(manager, claimed, claimed.asked_at, first)
    }

    /// After a transaction in which nobody could extend the lease. It was recorded with a long one for
    /// that time; the first sign of life makes it as short as any.
    pub(super) fn resume(manager: &WorkManager, claimed: &Claimed) -> Self {
        Self::begin(manager, claimed, manager.inner.clock.now(), Duration::ZERO)
    }

    /// With the moment from which the lease certainly lasts for its ttl, and a pause before the first sign
    /// of life.
    fn begin(manager: &WorkManager, claimed: &Claimed, held_from: Moment, first: Duration) -> Self {
        let (tell, lost) = watch::channel(false);
        let settings = &claimed.order.settings.apply;
        let (limit, ttl) = (settings.time_limit, settings.lease_ttl);
        let clock = manager.inner.clock.clone();
        // A hook that blocks its thread cannot be dropped: then the lease runs out after all.
        let end = clock.now().after(limit.saturating_mul(HOOKS).saturating_add(ttl));
        let task = {
            let (manager, claimed, clock) = (manager.clone(), claimed.clone(), clock.clone());
            async move {
                // From before the request: the store counts the lease from later on.
                let (mut extended, mut pause) = (held_from, first);
                while clock.now() < end {
                    tokio::time::sleep(pause).await;
                    pause = ttl / 3;
                    let sent = clock.now();
                    // A store that does not answer extends nothing: the lease may be another's by then.
                    let left = extended.after(ttl).since(sent);
                    match tokio::time::timeout(left, extend(&manager, &claimed)).await {
                        Ok(Ok(true)) => extended = sent,
                        Ok(Ok(false)) | Err(_) => break,
                        Ok(Err(error)) => {
                            tracing::warn!(order = %claimed.order.id, %error, "an apply lease was not extended");
                        }
                    }
                }
                let _ = tell.send(true);
            }
        };
        Heartbeat { lost, task: tokio::spawn(task), limit, clock }
    }

    /// Leaves the lease as it is. Those who wait for its loss wait on.
    pub(super) fn stop(&self) {
        self.task.abort();
    }

    /// Runs a hook.
    pub(super) async fn run<T>(&self, hook: impl Future<Output = Result<T, TypeError>>) -> Ran<T> {
        let mut lost = self.lost.clone();
        let lost = async {
            // A heartbeat that was stopped says nothing more.
            if lost.wait_for(|lost| *lost).await.is_err() {
                futures::future::pending::<()>().await;
            }
        };
        let hook = AssertUnwindSafe(hook).catch_unwind();
        let late = self.clock.sleep_until(self.clock.now().after(self.limit));
        tokio::select! {
            // The loss first: a hook that never waits must not begin behind it.
            biased;
            () = lost => Ran::Lost,
            done = hook => match done {
                Ok(Ok(value)) => Ran::Done(value),
                Ok(Err(error)) => Ran::Failed { code: "apply_failed", message: storable(&error.to_string()) },
                Err(panic) => Ran::Failed { code: "apply_panicked", message: storable(&said(panic.as_ref())) },
            },
            () = late => Ran::Failed {
                code: "apply_timeout",
                message: format!(
                    "it took longer than {:?}; what it did elsewhere may be done", self.limit
                ),
            },
        }
    }
}

/// So many bytes of a failure's message are kept.
const MAX_MESSAGE: usize = 8_192;

const CUT_OFF: &str = " … (cut off)";

/// A message as every database takes it: without NUL, which PostgreSQL refuses in a text, and bounded. A
/// failure that cannot be recorded would be run again and again.
pub(super) fn storable(message: &str) -> String {
    let message = message.replace('\0', "\u{fffd}");
    match message.len() > MAX_MESSAGE {
        true => {
            // Within the bound together, so that a message which was cut off is taken as it is.
            let kept = message.floor_char_boundary(MAX_MESSAGE - CUT_OFF.len());
            format!("{}{CUT_OFF}", &message[..kept])
        }
        false => message,
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn extend(manager: &WorkManager, claimed: &Claimed) -> Result<bool> {
    transact!(manager, session => {
        let until = session.now() + claimed.order.settings.apply.lease_ttl;
        session.extend_apply(claimed.order.id, claimed.fence, until).await
    })
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("its code panicked: {}", text.unwrap_or("without a message"))
}
