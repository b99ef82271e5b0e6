//! Watching for lock contention: an observer that counts who was kept out, and who lost a lock.
//!
//! `cargo run -p latchwork-flow --example lock_monitoring`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_flow::{
    ActionResult, EntityKey, Event, EventKind, JsonState, Observer, Pause, Result, State,
    StateMachine,
};
use latchwork_lock::{LockConfig, Locks};
use serde_json::json;

/// Counts by key. In a service this would be `MetricsObserver`, or a counter of your own.
#[derive(Clone, Default)]
struct LockMonitor {
    seen: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl LockMonitor {
    fn count(&self, what: &str, key: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(|broken| broken.into_inner());
        *seen.entry(format!("{what} {key}")).or_default() += 1;
    }
}

impl<S: State> Observer<S> for LockMonitor {
    fn observe(&self, event: &Event<'_, S>) {
        match event.kind {
            EventKind::LockFailed { key, error, .. } => {
                self.count("contention", key);
                // The error names the holder: the first thing that somebody on duty wants to know.
                tracing::warn!(transition = %event.transition, %error, "lock contention");
            }
            EventKind::LockLost { key, .. } => self.count("lost", key),
            _ => {}
        }
    }
}

/// Two transitions of one article at a time, and one that comes back too late; what was counted.
pub(crate) async fn run() -> Result<Vec<String>> {
    let monitor = LockMonitor::default();
    let locks = Locks::connect("memory:").await?;
    let machine = StateMachine::<JsonState>::builder("publish")
        .locks(&locks, EntityKey::new())
        .lock_config(LockConfig { ttl: Duration::from_millis(50), ..LockConfig::default() })
        .observe(monitor.clone())
        .action_fn("wait", |_| async { Ok(ActionResult::pause(Pause::new())) })
        .build()?;
    let article = JsonState::new(json!({"id": "A-1"}))?;

    let mut first = machine.transition(article.clone(), Default::default());
    first.execute().await?;
    for _ in 0..2 {
        let late = machine.transition(article.clone(), Default::default()).execute().await;
        debug_assert!(late.is_err_and(|error| error.is_lock_taken()));
    }
    while locks.exists("flow:entity:A-1").await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let late = first.execute().await;
    debug_assert!(late.is_err_and(|error| error.is_lock_loss()));

    let seen = monitor.seen.lock().unwrap_or_else(|broken| broken.into_inner());
    Ok(seen.iter().map(|(what, count)| format!("{count} × {what}")).collect())
}

#[allow(dead_code, reason = "the tests call `run`")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    for line in run().await? {
        println!("{line}");
    }
    Ok(())
}
