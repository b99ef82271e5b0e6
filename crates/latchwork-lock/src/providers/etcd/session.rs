//! The server lease of a process's waiters: their entries expire with it when the process dies.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::background::BACKGROUND;
use super::cluster::Cluster;
use super::error::RequestError;
use super::lease;
use crate::{Clock, Moment, Result};

/// How often it is renewed.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// How long the server keeps the waiters of a process that is dead or stopped, in seconds.
const TTL_SECONDS: u64 = 3;

const DURING: &str = "waiting";

pub(super) struct Session {
    cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    /// The lease's id, and a time at which it was alive.
    current: Mutex<Option<(i64, Moment)>>,
    creating: tokio::sync::Mutex<()>,
}

impl Session {
    pub(super) fn new(cluster: Arc<Cluster>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (current, creating) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Arc::new(Session { cluster, clock, current, creating })
    }

    /// The id of a lease that is alive as far as is known.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<i64> {
        if let Some(lease) = self.recently_alive() {
            return Ok(lease);
        }
        // In the background, since waiters of all runtimes need it.
        let own = self.clone();
        BACKGROUND.run(DURING, async move { own.renew_or_create().await }).await
    }

    async fn renew_or_create(&self) -> Result<i64> {
        let _one_at_a_time = self.creating.lock().await;
        if let Some(lease) = self.recently_alive() {
            return Ok(lease);
        }
        // Other waiters may be attached to the current one: it is replaced only if it has ended.
        let current = *self.current.lock();
        if let Some((lease, _)) = current
            && self.renew(lease).await.map_err(|error| error.into_error(DURING))?
        {
            return Ok(lease);
        }
        let before = self.clock.now();
        let granted = lease::grant(&self.cluster, &*self.clock, DURING, TTL_SECONDS).await;
        let granted = granted.map_err(|error| error.into_error(DURING))?;
        granted.keep(); // it expires when nobody renews it
        *self.current.lock() = Some((granted.id, before));
        Ok(granted.id)
    }

    fn recently_alive(&self) -> Option<i64> {
        let (lease, alive) = (*self.current.lock())?;
        // Not up to its very end, or a new waiter could lose its place with it.
        (self.clock.now().since(alive) < RENEW_INTERVAL * 3 / 2).then_some(lease)
    }

    /// Whether the waiters of this process are attached to this lease.
    pub(super) fn is_current(&self, lease: i64) -> bool {
        self.current.lock().is_some_and(|(current, _)| current == lease)
    }

    /// Forgets a lease that the server does not know.
    pub(super) fn forget(&self, ended: i64) {
        let mut current = self.current.lock();
        if current.is_some_and(|(lease, _)| lease == ended) {
            *current = None;
        }
    }

    /// Renews the lease, if there is one.
    pub(super) async fn keep_alive(&self) -> Result<(), RequestError> {
        let current = *self.current.lock();
        match current {
            Some((lease, _)) => self.renew(lease).await.map(drop),
            None => Ok(()),
        }
    }

    /// Renews a lease; false if it has ended.
    async fn renew(&self, lease: i64) -> Result<bool, RequestError> {
        let before = self.clock.now();
        let renewed = lease::renew(&self.cluster, DURING, lease).await?;
        if !renewed {
            self.forget(lease);
        } else if let Some((_, alive)) =
            self.current.lock().as_mut().filter(|(current, _)| *current == lease)
        {
            *alive = before;
        }
        Ok(renewed)
    }
}
