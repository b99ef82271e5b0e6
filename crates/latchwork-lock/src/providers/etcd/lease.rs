//! The server's leases, and who shares them.
//!
//! A lease of etcd ends a whole number of seconds after it began or was renewed. Whoever hangs an
//! entry on one that began a moment ago gets that moment less. So each lease is taken a second
//! longer than the ttl, and serves all grants of that ttl for as long as enough of it is left:
//! an entry ends not before its ttl, and some two seconds after it at the latest.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::LeaseGrantOptions;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, TryFutureExt};
use parking_lot::Mutex;

use super::connection::Link;
use super::error::{NAME, Wrong};
use super::watcher::{self, runtime};
use crate::rules::Id;
use crate::{Clock, Error, ErrorKind, Fence, Mode, Moment, Result};

/// How much must be left above the ttl when a lease is used: the way to the server.
const WAY: Duration = Duration::from_millis(100);

/// A lease of the server. The last who uses it ends it there.
pub(super) struct Lease {
    pub(super) id: i64,
    /// Not after its beginning, by our clock.
    began: Moment,
    lasts: Duration,
    /// Somebody whom we cannot see may hang on it.
    keep: AtomicBool,
    link: Arc<Link>,
}

impl Lease {
    /// Leaves it to its time: an entry may live on it that this process does not know of.
    pub(super) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Until when an entry that is sent there lasts its ttl.
    pub(super) fn serves_until(&self, ttl: Duration) -> Moment {
        self.began.after(self.lasts).before(ttl + WAY)
    }

    fn serves(&self, ttl: Duration, now: Moment) -> bool {
        self.serves_until(ttl) >= now
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) {
            return;
        }
        let (link, id) = (self.link.clone(), self.id);
        if let Ok(runtime) = runtime() {
            runtime.spawn(async move {
                // What fails here, time ends.
                let _ =
                    link.ask("ending a lease", |member| async move {
                        member.lease.clone().revoke(id).await
                    })
                    .await;
            });
        }
    }
}

/// A lease that was found to last for a whole ttl, and when.
///
/// Its time already runs, so whoever hangs an entry on it trusts that entry from
/// [`judged_at`](Self::judged_at), never from a moment that is read later: this process may be
/// stopped in between, and the server's lease is not.
pub(super) struct Lasting {
    pub(super) lease: Arc<Lease>,
    pub(super) judged_at: Moment,
}

type Making = Shared<BoxFuture<'static, Result<Arc<Lease>, Refusal>>>;

/// Why there is no lease, for all who wait for it.
#[derive(Clone)]
enum Refusal {
    Temporary(String),
    Final(String),
}

impl Refusal {
    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unavailable { reason, .. } => Refusal::Temporary(reason.clone()),
            ErrorKind::Backend { reason, .. } => Refusal::Final(reason.clone()),
            _ => Refusal::Final(error.to_string()),
        }
    }
}

enum Slot {
    Ready(Arc<Lease>),
    Making(Making),
}

/// The leases that this process uses.
pub(super) struct Leases {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    /// By their length in seconds: what can be used yet.
    fresh: Mutex<HashMap<u64, Slot>>,
    /// The holders of this process.
    held: Mutex<HashMap<Id, Holding>>,
    /// What a question used whose answer was lost: it may be heard yet, or again, by a member that
    /// was stopped. It is not given to anybody else, and ends with whoever asked: then a question
    /// that comes late finds no lease to hang an entry on.
    doubtful: Mutex<HashMap<Id, Vec<Arc<Lease>>>>,
}

/// A holder of this process.
struct Holding {
    mode: Mode,
    /// None where it was granted elsewhere.
    fence: Option<Fence>,
    /// What it hangs on.
    lease: Arc<Lease>,
}

impl Leases {
    pub(super) fn new(link: Arc<Link>, clock: Arc<dyn Clock>) -> Self {
        let (fresh, held, doubtful) = (Mutex::default(), Mutex::default(), Mutex::default());
        Leases { link, clock, fresh, held, doubtful }
    }

    /// A lease on which an entry that is made now lasts its ttl.
    pub(super) async fn lasting(&self, during: &'static str, ttl: Duration) -> Result<Lasting> {
        // A longer one where the server took so long to grant it that it no longer serves.
        for extra in 1..=3 {
            let lease = self.of_length(during, whole_seconds(ttl) + extra).await?;
            let judged_at = self.clock.now();
            if lease.serves(ttl, judged_at) {
                return Ok(Lasting { lease, judged_at });
            }
        }
        Err(Error::unavailable(NAME, during, "the server takes seconds to answer", None))
    }

    async fn of_length(&self, during: &'static str, seconds: u64) -> Result<Arc<Lease>> {
        let making = {
            let now = self.clock.now();
            let mut fresh = self.fresh.lock();
            // Those of other lengths too, or the rarely used would stay.
            fresh.retain(|length, slot| match slot {
                Slot::Ready(lease) => lease.serves(Duration::from_secs(length - 1), now),
                Slot::Making(_) => true,
            });
            match fresh.get(&seconds) {
                Some(Slot::Ready(lease)) => return Ok(lease.clone()),
                Some(Slot::Making(making)) => making.clone(),
                None => {
                    let making = self.make(during, seconds).boxed().shared();
                    fresh.insert(seconds, Slot::Making(making.clone()));
                    making
                }
            }
        };
        let made = making.clone().await;
        let mut fresh = self.fresh.lock();
        if matches!(fresh.get(&seconds), Some(Slot::Making(own)) if own.ptr_eq(&making)) {
            match &made {
                Ok(lease) => fresh.insert(seconds, Slot::Ready(lease.clone())),
                Err(_) => fresh.remove(&seconds),
            };
        }
        made.map_err(|refused| match refused {
            Refusal::Temporary(reason) => Error::unavailable(NAME, during, reason, None),
            Refusal::Final(reason) => Error::backend(NAME, during, reason, None),
        })
    }

    /// Asks the server for a lease.
    fn make(
        &self,
        during: &'static str,
        seconds: u64,
    ) -> impl Future<Output = Result<Arc<Lease>, Refusal>> + Send + 'static {
        let (link, clock) = (self.link.clone(), self.clock.clone());
        // Callers of several runtimes may wait for it: it is made on none of them.
        let made = watcher::run_apart(during, async move {
            let granted = grant(&link, &*clock, during, seconds).await;
            granted.map(Arc::new).map_err(|wrong| wrong.error(during))
        });
        made.map_err(|error| Refusal::of(&error))
    }

    /// Forgets a lease that the server no longer knows.
    pub(super) fn forget(&self, gone: &Arc<Lease>) {
        gone.keep();
        self.use_no_more(gone);
    }

    fn use_no_more(&self, old: &Arc<Lease>) {
        self.fresh
            .lock()
            .retain(|_, slot| !matches!(slot, Slot::Ready(lease) if Arc::ptr_eq(lease, old)));
    }

    /// A question of this one's may be heard later than its answer was waited for.
    pub(super) fn doubt(&self, id: Id, lease: &Arc<Lease>) {
        self.use_no_more(lease);
        let now = self.clock.now();
        let mut doubtful = self.doubtful.lock();
        // What nobody settles, time does.
        doubtful.retain(|_, leases| {
            leases.retain(|lease| lease.began.after(lease.lasts) > now);
            !leases.is_empty()
        });
        doubtful.entry(id).or_default().push(lease.clone());
    }

    /// Remembers what a holder hangs on.
    pub(super) fn hold(&self, id: Id, mode: Mode, fence: Option<Fence>, lease: Arc<Lease>) {
        let before = self.held.lock().insert(id, Holding { mode, fence, lease });
        drop(before); // outside of the lock: it may end a lease
    }

    /// The mode and fence of a holder of this process.
    pub(super) fn held(&self, id: Id) -> Option<(Mode, Option<Fence>)> {
        self.held.lock().get(&id).map(|held| (held.mode, held.fence))
    }

    /// It is left to its time, whatever becomes of this process.
    pub(super) fn hand_over(&self, id: Id) {
        let held = self.let_go(id);
        let doubtful = self.doubtful.lock().remove(&id);
        held.iter().chain(doubtful.iter().flatten()).for_each(|lease| lease.keep());
    }

    /// Whoever asked has released all that it may have got.
    pub(super) fn released(&self, id: Id) {
        drop(self.let_go(id));
        let doubtful = self.doubtful.lock().remove(&id);
        drop(doubtful); // outside of the lock: it ends leases
    }

    /// A holder is no more, or no longer of this process.
    pub(super) fn let_go(&self, id: Id) -> Option<Arc<Lease>> {
        self.held.lock().remove(&id).map(|held| held.lease)
    }
}

/// Asks for a lease of so many seconds; the server may make it longer.
pub(super) async fn grant(
    link: &Arc<Link>,
    clock: &dyn Clock,
    during: &'static str,
    seconds: u64,
) -> Result<Lease, Wrong> {
    let began = clock.now();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let granting = link.ask_again(during, |member| async move {
        member.lease.clone().grant(seconds, None::<LeaseGrantOptions>).await
    });
    let (granted, _) = granting.await?;
    let lasts = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
    let (id, link) = (granted.id(), link.clone());
    Ok(Lease { id, began, lasts, keep: AtomicBool::new(false), link })
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
