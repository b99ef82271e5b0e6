//! The server's leases, and the entries of this process that share them.
//!
//! A lease of etcd ends a whole number of seconds after it was granted or renewed. An entry that is
//! attached to a lease some time after that has less time. So each lease is requested a second
//! longer than the ttl, and used for all grants of that ttl for as long as enough of it is left: an
//! entry never ends before its ttl, and at most some two seconds after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::LeaseGrantOptions;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, TryFutureExt};
use parking_lot::Mutex;

use super::background::BACKGROUND;
use super::cluster::Cluster;
use super::error::{NAME, RequestError};
use crate::rules::Id;
use crate::{Clock, Error, ErrorKind, Fence, Mode, Moment, Result};

/// How much of a lease must be left above the ttl when it is used: the time to reach the server.
const TRANSIT: Duration = Duration::from_millis(100);

/// A lease of the server. It is revoked there when its last user is gone.
pub(super) struct Lease {
    pub(super) id: i64,
    /// By our clock, and not after the server's start of it.
    started: Moment,
    length: Duration,
    /// Set if an entry that this process does not know of may be attached to it.
    keep: AtomicBool,
    cluster: Arc<Cluster>,
}

impl Lease {
    /// Leaves it to expire by itself, since an entry may live on it that this process does not know.
    pub(super) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Until when an entry that is sent lasts for its ttl.
    pub(super) fn usable_until(&self, ttl: Duration) -> Moment {
        self.started.after(self.length).before(ttl + TRANSIT)
    }

    fn is_usable(&self, ttl: Duration, now: Moment) -> bool {
        self.usable_until(ttl) >= now
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) {
            return;
        }
        let (cluster, id) = (self.cluster.clone(), self.id);
        if let Ok(runtime) = BACKGROUND.handle() {
            runtime.spawn(async move {
                let revoked = cluster.request("ending a lease", |member| async move {
                    member.lease.clone().revoke(id).await
                });
                let _ = revoked.await; // if it fails, the lease expires
            });
        }
    }
}

/// A lease of which enough is left for a ttl, and when that was checked.
///
/// The lease's time already runs, so an entry that is attached to it is trusted from
/// [`checked_at`](Self::checked_at), never from a moment that is read later: this process may be
/// stopped in between, and the server's lease is not.
pub(super) struct CheckedLease {
    pub(super) lease: Arc<Lease>,
    pub(super) checked_at: Moment,
}

type PendingLease = Shared<BoxFuture<'static, Result<Arc<Lease>, GrantError>>>;

/// Why there is no lease, for all callers that wait for it.
#[derive(Clone)]
enum GrantError {
    Temporary(String),
    Permanent(String),
}

impl GrantError {
    fn new(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unavailable { reason, .. } => GrantError::Temporary(reason.clone()),
            ErrorKind::Backend { reason, .. } => GrantError::Permanent(reason.clone()),
            _ => GrantError::Permanent(error.to_string()),
        }
    }
}

enum Slot {
    Ready(Arc<Lease>),
    Pending(PendingLease),
}

/// The leases that this process uses.
pub(super) struct Leases {
    cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    /// Leases for new entries, by their length in seconds.
    usable: Mutex<HashMap<u64, Slot>>,
    /// The holders of this process.
    held: Mutex<HashMap<Id, Holding>>,
    /// Leases of requests whose answer was lost: a member that was stopped may execute such a
    /// request later. No other request uses them, and they are revoked when their requester
    /// releases: then the late request finds no lease to attach an entry to.
    unknown: Mutex<HashMap<Id, Vec<Arc<Lease>>>>,
}

/// A holder of this process.
struct Holding {
    mode: Mode,
    /// `None` if another process was granted it.
    fence: Option<Fence>,
    /// The lease that its entry is attached to.
    lease: Arc<Lease>,
}

impl Leases {
    pub(super) fn new(cluster: Arc<Cluster>, clock: Arc<dyn Clock>) -> Self {
        let (usable, held, unknown) = (Mutex::default(), Mutex::default(), Mutex::default());
        Leases { cluster, clock, usable, held, unknown }
    }

    /// A lease on which an entry that is created now lasts for its ttl.
    pub(super) async fn for_ttl(
        &self,
        during: &'static str,
        ttl: Duration,
    ) -> Result<CheckedLease> {
        // A longer one if the server took so long to grant it that too little of it is left.
        for extra in 1..=3 {
            let lease = self.with_length(during, whole_seconds(ttl) + extra).await?;
            let checked_at = self.clock.now();
            if lease.is_usable(ttl, checked_at) {
                return Ok(CheckedLease { lease, checked_at });
            }
        }
        Err(Error::unavailable(NAME, during, "the server takes seconds to answer", None))
    }

    async fn with_length(&self, during: &'static str, seconds: u64) -> Result<Arc<Lease>> {
        let pending = {
            let now = self.clock.now();
            let mut usable = self.usable.lock();
            // Of all lengths, or leases of a rare length would stay.
            usable.retain(|length, slot| match slot {
                Slot::Ready(lease) => lease.is_usable(Duration::from_secs(length - 1), now),
                Slot::Pending(_) => true,
            });
            match usable.get(&seconds) {
                Some(Slot::Ready(lease)) => return Ok(lease.clone()),
                Some(Slot::Pending(pending)) => pending.clone(),
                None => {
                    let pending = self.request(during, seconds).boxed().shared();
                    usable.insert(seconds, Slot::Pending(pending.clone()));
                    pending
                }
            }
        };
        let granted = pending.clone().await;
        let mut usable = self.usable.lock();
        if matches!(usable.get(&seconds), Some(Slot::Pending(own)) if own.ptr_eq(&pending)) {
            match &granted {
                Ok(lease) => usable.insert(seconds, Slot::Ready(lease.clone())),
                Err(_) => usable.remove(&seconds),
            };
        }
        granted.map_err(|error| match error {
            GrantError::Temporary(reason) => Error::unavailable(NAME, during, reason, None),
            GrantError::Permanent(reason) => Error::backend(NAME, during, reason, None),
        })
    }

    /// Requests a lease from the server.
    fn request(
        &self,
        during: &'static str,
        seconds: u64,
    ) -> impl Future<Output = Result<Arc<Lease>, GrantError>> + Send + 'static {
        let (cluster, clock) = (self.cluster.clone(), self.clock.clone());
        // In the background, since callers of several runtimes may wait for it.
        let granted = BACKGROUND.run(during, async move {
            let granted = grant(&cluster, &*clock, during, seconds).await;
            granted.map(Arc::new).map_err(|error| error.into_error(during))
        });
        granted.map_err(|error| GrantError::new(&error))
    }

    /// Forgets a lease that the server no longer knows.
    pub(super) fn forget(&self, lease: &Arc<Lease>) {
        lease.keep();
        self.retire(lease);
    }

    fn retire(&self, old: &Arc<Lease>) {
        self.usable
            .lock()
            .retain(|_, slot| !matches!(slot, Slot::Ready(lease) if Arc::ptr_eq(lease, old)));
    }

    /// Keeps the lease of a request whose answer was lost until its requester releases.
    pub(super) fn keep_until_known(&self, id: Id, lease: &Arc<Lease>) {
        self.retire(lease);
        let now = self.clock.now();
        let mut unknown = self.unknown.lock();
        // Those that have expired need not be revoked.
        unknown.retain(|_, leases| {
            leases.retain(|lease| lease.started.after(lease.length) > now);
            !leases.is_empty()
        });
        unknown.entry(id).or_default().push(lease.clone());
    }

    /// Remembers a holder of this process.
    pub(super) fn hold(&self, id: Id, mode: Mode, fence: Option<Fence>, lease: Arc<Lease>) {
        let before = self.held.lock().insert(id, Holding { mode, fence, lease });
        drop(before); // outside of the lock: it may revoke a lease
    }

    /// The mode and fence of a holder of this process.
    pub(super) fn held(&self, id: Id) -> Option<(Mode, Option<Fence>)> {
        self.held.lock().get(&id).map(|held| (held.mode, held.fence))
    }

    /// Leaves a holder's leases to expire, whatever becomes of this process.
    pub(super) fn hand_over(&self, id: Id) {
        let held = self.forget_holder(id);
        let unknown = self.unknown.lock().remove(&id);
        held.iter().chain(unknown.iter().flatten()).for_each(|lease| lease.keep());
    }

    /// A requester has released everything that it may have been granted.
    pub(super) fn released(&self, id: Id) {
        drop(self.forget_holder(id));
        let unknown = self.unknown.lock().remove(&id);
        drop(unknown); // outside of the lock: it revokes leases
    }

    /// A holder no longer holds, or no longer belongs to this process.
    pub(super) fn forget_holder(&self, id: Id) -> Option<Arc<Lease>> {
        self.held.lock().remove(&id).map(|held| held.lease)
    }
}

/// Requests a lease of so many seconds; the server may grant a longer one.
pub(super) async fn grant(
    cluster: &Arc<Cluster>,
    clock: &dyn Clock,
    during: &'static str,
    seconds: u64,
) -> Result<Lease, RequestError> {
    let started = clock.now();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let granting = cluster.request_with_retry(during, |member| async move {
        member.lease.clone().grant(seconds, None::<LeaseGrantOptions>).await
    });
    let (granted, _) = granting.await?;
    let length = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
    let (id, cluster) = (granted.id(), cluster.clone());
    Ok(Lease { id, started, length, keep: AtomicBool::new(false), cluster })
}

fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up() {
        for (ttl, seconds) in [(10, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(whole_seconds(Duration::from_millis(ttl)), seconds);
        }
    }
}
