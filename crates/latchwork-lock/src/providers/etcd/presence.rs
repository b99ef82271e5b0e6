//! The lease on which all waiters of a process hang: they go when it dies.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::connection::Link;
use super::error::Wrong;
use super::{lease, watcher};
use crate::{Clock, Moment, Result};

/// How often it is renewed.
pub(super) const PULSE: Duration = Duration::from_secs(1);

/// How long the server keeps the waiters of a process that is dead or stopped, in seconds.
const LASTS: u64 = 3;

const DURING: &str = "waiting";

pub(super) struct Presence {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    /// Which, and when it was surely alive last.
    current: Mutex<Option<(i64, Moment)>>,
    making: tokio::sync::Mutex<()>,
}

impl Presence {
    pub(super) fn new(link: Arc<Link>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (current, making) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Arc::new(Presence { link, clock, current, making })
    }

    /// One that lives, as far as is known.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<i64> {
        if let Some(lease) = self.known() {
            return Ok(lease);
        }
        // Waiters of all runtimes need it: none of them makes it.
        let own = self.clone();
        watcher::run_apart(DURING, async move { own.make().await }).await
    }

    async fn make(&self) -> Result<i64> {
        let _one_at_a_time = self.making.lock().await;
        if let Some(lease) = self.known() {
            return Ok(lease);
        }
        // Others may hang on the old one: it is left only when it is dead.
        let current = *self.current.lock();
        if let Some((lease, _)) = current
            && self.renew(lease).await.map_err(|wrong| wrong.error(DURING))?
        {
            return Ok(lease);
        }
        let before = self.clock.now();
        let made = lease::grant(&self.link, &*self.clock, DURING, LASTS).await;
        let made = made.map_err(|wrong| wrong.error(DURING))?;
        made.keep(); // when nobody renews it, it ends by itself
        *self.current.lock() = Some((made.id, before));
        Ok(made.id)
    }

    fn known(&self) -> Option<i64> {
        let (lease, alive) = (*self.current.lock())?;
        // Not up to its very end: who hangs on it would lose its place with it.
        (self.clock.now().since(alive) < PULSE * 3 / 2).then_some(lease)
    }

    /// Whether this one is what the waiters of this process hang on.
    pub(super) fn is(&self, lease: i64) -> bool {
        self.current.lock().is_some_and(|(current, _)| current == lease)
    }

    /// The server does not know it.
    pub(super) fn forget(&self, gone: i64) {
        let mut current = self.current.lock();
        if current.is_some_and(|(lease, _)| lease == gone) {
            *current = None;
        }
    }

    /// Starts its time anew, where there is one.
    pub(super) async fn beat(&self) -> Result<(), Wrong> {
        let current = *self.current.lock();
        match current {
            Some((lease, _)) => self.renew(lease).await.map(drop),
            None => Ok(()),
        }
    }

    /// Starts its time anew; false when it is dead.
    async fn renew(&self, lease: i64) -> Result<bool, Wrong> {
        let before = self.clock.now();
        let asked = self.link.ask_again(DURING, move |member| async move {
            // The driver has only words for a lease that is gone.
            match member.lease.clone().keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        let (alive, _) = asked.await?;
        if !alive {
            self.forget(lease);
        } else if let Some((_, known)) =
            self.current.lock().as_mut().filter(|(current, _)| *current == lease)
        {
            *known = before;
        }
        Ok(alive)
    }
}
