//! What a server does besides answering: maintenance, sealing, and applying orders.

use latchwork_lock::Locks;
use latchwork_lock::provider::process_label;
use latchwork_work::{Maintenance, MaintenanceSettings, WorkManager};
use tokio::task::JoinSet;

/// The background work of one server. Every server on a database runs it: maintenance and sealing are done
/// by one at a time, elected by a lock, and each approved order is leased by one apply worker; when a
/// server ends or dies, the others go on.
#[derive(Debug)]
pub struct Duties(JoinSet<()>);

impl Duties {
    /// Begins to run: expired leases, late reviews, the trail's seals, and the apply step of the manager's
    /// order types.
    ///
    /// # Errors
    /// That of a name which no worker can have; the process's own name is legal.
    pub fn start(
        work: &WorkManager,
        locks: &Locks,
        settings: MaintenanceSettings,
    ) -> latchwork_work::Result<Self> {
        let mut tasks = JoinSet::new();
        tasks.spawn(Maintenance::new(work.clone(), locks.clone(), settings).run());
        tasks.spawn(work.apply_worker(format!("server {}", process_label()))?.run());
        Ok(Duties(tasks))
    }

    /// Ends them. An order that was being applied is taken up by another server when its lease has run
    /// out; maintenance is handed on at once.
    ///
    /// Cancel safe: dropped, they end too.
    pub async fn end(mut self) {
        self.0.shutdown().await;
    }
}
