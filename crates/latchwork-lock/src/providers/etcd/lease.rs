//! A lease of the server, to which entries are attached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::LeaseGrantOptions;

use super::background::BACKGROUND;
use super::cluster::Cluster;
use super::error::RequestError;
use crate::{Clock, Moment};

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
    /// The requests that have attached an entry to it, or may have.
    attached: AtomicUsize,
    cluster: Arc<Cluster>,
}

impl Lease {
    /// Leaves it to expire by itself, since an entry may live on it that this process does not know.
    pub(super) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// A request that attaches an entry to it is about to be sent.
    pub(super) fn attach(&self) {
        self.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a request was answered, and has attached nothing.
    pub(super) fn not_attached(&self) {
        self.attached.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it can be renewed without prolonging an entry: nothing is attached to it.
    pub(super) fn is_renewable(&self, now: Moment) -> bool {
        let unused =
            !self.keep.load(Ordering::Relaxed) && self.attached.load(Ordering::Relaxed) == 0;
        unused && !self.has_expired(now)
    }

    pub(super) fn has_expired(&self, now: Moment) -> bool {
        self.started.after(self.length) <= now
    }

    /// Starts its time anew; `None` if it has ended, or nobody answers.
    pub(super) async fn renewed(mut self, clock: &dyn Clock, during: &'static str) -> Option<Self> {
        let started = clock.now();
        if let Ok(true) = renew(&self.cluster, during, self.id).await {
            self.started = started;
            return Some(self);
        }
        self.keep(); // there may be nothing to revoke
        None
    }

    /// Until when an entry that is sent lasts for its ttl.
    pub(super) fn usable_until(&self, ttl: Duration) -> Moment {
        self.started.after(self.length).before(ttl + TRANSIT)
    }

    pub(super) fn is_usable(&self, ttl: Duration, now: Moment) -> bool {
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
    let (keep, attached) = (AtomicBool::new(false), AtomicUsize::new(0));
    Ok(Lease { id, started, length, keep, attached, cluster })
}

/// Renews a lease; false if it has ended.
pub(super) async fn renew(
    cluster: &Arc<Cluster>,
    during: &'static str,
    lease: i64,
) -> Result<bool, RequestError> {
    let renewing = cluster.request_with_retry(during, move |member| async move {
        // The driver has no other error for a lease that has ended.
        match member.lease.clone().keep_alive(lease).await {
            Ok(_) => Ok(true),
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
            Err(error) => Err(error),
        }
    });
    let (renewed, _) = renewing.await?;
    Ok(renewed)
}
