//! What a server does besides answering: maintenance, sealing, and applying orders.

use std::time::Duration;

use latchwork_lock::Locks;
use latchwork_lock::provider::process_label;
use latchwork_work::{Maintenance, MaintenanceSettings, WorkManager};
use tokio::task::JoinSet;

use crate::Shutdown;

/// So many approved orders are applied at once.
const APPLY_WORKERS: usize = 4;

/// How long an order that is being applied may take when the server ends; after that another server
/// takes it over.
const APPLY_GRACE: Duration = Duration::from_secs(30);

/// The background work of one server. Every server on a database runs it: maintenance and sealing are done
/// by one at a time, elected by a lock, and each approved order is leased by one apply worker; when a
/// server ends or dies, the others go on.
///
/// Dropped, it ends in the middle of what it does; other servers go on with an order when its apply lease has
/// run out.
#[derive(Debug)]
pub struct Duties {
    maintenance: JoinSet<()>,
    apply_workers: JoinSet<()>,
}

impl Duties {
    /// Begins to run: expired leases, late reviews, the trail's seals, and the apply step of the manager's
    /// order types, until the server ends.
    ///
    /// # Errors
    /// That of a name which no worker can have; the process's own name is legal.
    pub fn start(
        work: &WorkManager,
        locks: &Locks,
        settings: MaintenanceSettings,
        shutdown: &Shutdown,
    ) -> latchwork_work::Result<Self> {
        let (mut maintenance, mut apply_workers) = (JoinSet::new(), JoinSet::new());
        maintenance.spawn(Maintenance::new(work.clone(), locks.clone(), settings).run());
        for n in 1..=APPLY_WORKERS {
            let mut ending = shutdown.watch();
            let stop = async move { drop(ending.wait_for(|ending| *ending).await) };
            let worker = work.apply_worker(format!("{}:apply-{n}", process_label()))?;
            apply_workers.spawn(worker.run_until(stop));
        }
        Ok(Duties { maintenance, apply_workers })
    }

    /// Ends them, after the shutdown has begun: orders that are being applied are finished first, for
    /// thirty seconds at most; maintenance is handed on at once.
    ///
    /// Cancel safe: dropped, they end too.
    pub async fn end(mut self) {
        self.maintenance.shutdown().await;
        let all = async { while self.apply_workers.join_next().await.is_some() {} };
        if tokio::time::timeout(APPLY_GRACE, all).await.is_err() {
            tracing::warn!(
                "apply workers were ended in the middle; others go on with their orders"
            );
        }
    }
}
