//! Apply workers beside a server.

use std::time::Duration;

use latchwork_work::WorkManager;
use tokio::task::JoinSet;

use crate::Shutdown;

/// Workers that apply approved orders until a server ends.
///
/// Dropped, they end in the middle of what they do; other workers go on with it when its lease has run out.
pub struct ApplyWorkers(JoinSet<()>);

impl ApplyWorkers {
    /// Starts so many workers. Their names have the machine and the process.
    ///
    /// # Errors
    /// [`InvalidArgument`](latchwork_work::ErrorKind::InvalidArgument) where the machine's name is none that
    /// an actor can have.
    pub fn start(
        work: &WorkManager,
        shutdown: &Shutdown,
        count: usize,
    ) -> latchwork_work::Result<Self> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut workers = JoinSet::new();
        for n in 1..=count {
            let name = format!("{host}:{}:apply-{n}", std::process::id());
            let mut ending = shutdown.watch();
            let stop = async move { drop(ending.wait_for(|ending| *ending).await) };
            workers.spawn(work.apply_worker(name)?.run_until(stop));
        }
        Ok(ApplyWorkers(workers))
    }

    /// Waits, after the shutdown has begun, until they have finished what they are at; for so long at most.
    pub async fn finish(mut self, grace: Duration) {
        let all = async { while self.0.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!(
                "apply workers were ended in the middle; others go on with their orders"
            );
        }
    }
}
