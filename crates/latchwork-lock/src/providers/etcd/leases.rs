//! The server's leases that this process uses, and its entries that share them.
//!
//! A lease of etcd ends a whole number of seconds after it was granted or renewed. An entry that is
//! attached to a lease some time after that has less time. So each lease is requested a second
//! longer than the ttl, and used for all grants of that ttl for as long as enough of it is left: an
//! entry never ends before its ttl, and at most some two seconds after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, TryFutureExt};
use parking_lot::Mutex;

use super::background::BACKGROUND;
use super::cluster::Cluster;
use super::error::NAME;
use super::lease::{self, CheckedLease, Lease};
use crate::rules::Id;
use crate::{Clock, Error, ErrorKind, Fence, Mode, Moment, Result};

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
            let old = usable.extract_if(|length, slot| match slot {
                Slot::Ready(lease) => !lease.is_usable(Duration::from_secs(length - 1), now),
                Slot::Pending(_) => false,
            });
            let old: HashMap<u64, Slot> = old.collect();
            match usable.get(&seconds) {
                Some(Slot::Ready(lease)) => return Ok(lease.clone()),
                Some(Slot::Pending(pending)) => pending.clone(),
                None => {
                    let unused = unused(old, seconds, now);
                    let pending = self.request(during, seconds, unused).boxed().shared();
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

    /// Renews an unused lease, or requests one from the server.
    fn request(
        &self,
        during: &'static str,
        seconds: u64,
        unused: Option<Lease>,
    ) -> impl Future<Output = Result<Arc<Lease>, GrantError>> + Send + 'static {
        let (cluster, clock) = (self.cluster.clone(), self.clock.clone());
        // In the background, since callers of several runtimes may wait for it.
        let granted = BACKGROUND.run(during, async move {
            if let Some(unused) = unused
                && let Some(lease) = unused.renewed(&*clock, during).await
            {
                return Ok(Arc::new(lease));
            }
            let granted = lease::grant(&cluster, &*clock, during, seconds).await;
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
            leases.retain(|lease| !lease.has_expired(now));
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

/// Of leases of which too little is left, the one of this length, if it can be renewed and nobody else
/// has it at hand. A renewal writes nothing to the disks of the members and a new lease does, which a
/// waiter whose turn has come would have to wait for.
fn unused(mut old: HashMap<u64, Slot>, seconds: u64, now: Moment) -> Option<Lease> {
    let Some(Slot::Ready(lease)) = old.remove(&seconds) else { return None };
    let lease = Arc::into_inner(lease)?;
    lease.is_renewable(now).then_some(lease)
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
