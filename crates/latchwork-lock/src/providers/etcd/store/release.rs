//! How a lease ends: by a message of its own, or in the transaction that starts the next one.
//!
//! If a writer releases and the next waiter is a writer of this process, one transaction ends the one
//! lease and starts the other: one round trip instead of two and a watch event. It compares that the
//! holder still exists, and that the waiter still has the position in which it was first. If that is
//! not so, the lease just ends. It does not compare that nobody is before the waiter, which would
//! read the whole queue: positions are revisions, so new waiters come behind, and a waiter that was
//! first once stays first for as long as it keeps its position, however old that knowledge is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp};

use super::compare::{created_at, exists};
use super::{Store, has_deleted};
use crate::providers::etcd::cluster::batch::SendOutcome;
use crate::providers::etcd::error::{NAME, RequestError};
use crate::providers::etcd::lease::CheckedLease;
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::{Requester, fence_of, txn_revision};
use crate::providers::etcd::waiters::GrantInTransit;
use crate::retry::Backoff;
use crate::rules::Id;
use crate::{Error, Fence, Grant, Key, Mode, Result};

/// How often a background release is tried while the server is away; then the lease expires.
const MAX_TRIES: usize = 6;

/// How long after a request was abandoned the server may still receive it.
const REPEAT_DELAY: Duration = Duration::from_secs(1);

const RELEASING: &str = "releasing";

impl Store {
    /// Ends a lease, or leaves the queue. True if it was held. With `grants_next`, a waiter of this
    /// process is granted the key in the same transaction.
    ///
    /// Cancel safety: not cancel safe; it must run as a job of its own.
    pub(crate) async fn release(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        grants_next: bool,
    ) -> Result<bool> {
        // One operation if it is known what is held; otherwise all possible entries are deleted.
        let mut answer_lost = false;
        if let Some((mode, fence)) = self.leases.held(id) {
            match self.end_held(during, key, id, mode, fence, grants_next).await {
                Ok(true) => {
                    self.leases.released(id);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(RequestError::Unknown(_)) => answer_lost = true,
                Err(error) => return Err(error.into_error(during)),
            }
        }
        let delete =
            |part, mode| TxnOp::delete(self.names.entry(key.as_str(), part, mode, id), None);
        let txn = Txn::new().and_then([
            delete(Part::Hold, Mode::Exclusive),
            delete(Part::Hold, Mode::Shared),
            delete(Part::Wait, Mode::Exclusive),
            delete(Part::Wait, Mode::Shared),
        ]);
        let (answer, twice) =
            self.execute(during, txn).await.map_err(|error| error.into_error(during))?;
        self.leases.released(id);
        let held = answer.op_responses().iter().take(2).any(has_deleted);
        if !held && (twice || answer_lost) {
            // Ended by the request whose answer was lost, or before: nobody can tell.
            let reason = "the answer was lost, and the lease is over";
            return Err(Error::unavailable(NAME, during, reason, None));
        }
        Ok(held)
    }

    /// Ends a lease that this process knows; false if it does not exist.
    async fn end_held(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        mode: Mode,
        fence: Option<Fence>,
        grants_next: bool,
    ) -> Result<bool, RequestError> {
        if grants_next
            && mode == Mode::Exclusive
            && let Some(next) = self.waiters.next_writer(key)
            && let Some(ended) = self.release_to(during, key, id, fence, next).await?
        {
            return Ok(ended);
        }
        let name = self.names.entry(key.as_str(), Part::Hold, mode, id);
        let operation = || TxnOp::delete(name.clone(), None);
        match self.cluster.enqueue_op(&self.clock, key, None, operation).await {
            SendOutcome::Batched(response, _) => Ok(has_deleted(&response)),
            SendOutcome::Unknown => Err(RequestError::answer_lost(during)),
            SendOutcome::Direct(slot) => {
                let deleting = self.cluster.request(during, move |member| async move {
                    member.kv.clone().delete(name, None).await
                });
                let answer = deleting.await;
                drop(slot);
                Ok(answer?.deleted() > 0)
            }
        }
    }

    /// Ends a writer's lease and starts that of the next one; whether the first one existed. `None`
    /// if there is no server lease for the next one: then nothing was changed.
    async fn release_to(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        fence: Option<Fence>,
        next: GrantInTransit,
    ) -> Result<Option<bool>, RequestError> {
        let requester = next.requester().clone();
        let Ok(checked) = self.leases.for_ttl(during, requester.ttl).await else { return Ok(None) };
        let CheckedLease { lease, checked_at } = checked;
        let name = |part, id| self.names.entry(key.as_str(), part, Mode::Exclusive, id);
        let (own, queued) = (name(Part::Hold, id), name(Part::Wait, requester.id));
        let end = TxnOp::delete(own.clone(), None);
        let attached = PutOptions::new().with_lease(lease.id);
        let value = self.entry_value(&requester);
        let start = TxnOp::put(name(Part::Hold, requester.id), value, Some(attached));
        let txn = Txn::new()
            // While this writer exists, nobody else holds the key.
            .when([exists(own), created_at(queued.clone(), next.position)])
            .and_then([end.clone(), TxnOp::delete(queued, None), start])
            .or_else([end]);
        lease.attach();
        let abandoned = ReleaseIfAbandoned::new(self, &requester, next.wanted());
        let executing = self
            .cluster
            .request(during, move |member| async move { member.kv.clone().txn(txn).await });
        let answer = executing.await;
        if !matches!(answer, Err(RequestError::Unknown(_))) {
            abandoned.disarm();
        }
        match answer {
            Ok(answer) if answer.succeeded() => {
                let granted = fence_of(txn_revision(&answer));
                self.leases.hold(requester.id, Mode::Exclusive, Some(granted), lease);
                self.waiters.mark_served(key, next.position);
                let grant = Grant {
                    previous_fence: fence,
                    waited: true,
                    trusted_from: Some(checked_at),
                    ..Grant::first(granted)
                };
                if !next.deliver(grant, self.clock.now())
                    && let Err(error) =
                        Box::pin(self.release(during, key, requester.id, true)).await
                {
                    tracing::warn!(%key, %error, "an abandoned grant was not released: it expires");
                }
                Ok(Some(true))
            }
            Ok(answer) => Ok(Some(answer.op_responses().iter().any(has_deleted))),
            Err(RequestError::LeaseNotFound) => {
                self.leases.forget(&lease);
                Ok(None)
            }
            Err(error) => {
                // It may have been executed: an entry may be attached to the lease.
                self.leases.keep_until_known(requester.id, &lease);
                Err(error)
            }
        }
    }
}

/// Releases in the background, for a guard or a request that was dropped (L21).
pub(crate) fn release_later(store: &Arc<Store>, key: Key, id: Id) {
    let own = store.clone();
    store.releases.spawn(&key.clone(), async move {
        let _permit = own.releases.permits.acquire().await;
        release_with_retries(&own, &key, id).await;
    });
}

async fn release_with_retries(store: &Arc<Store>, key: &Key, id: Id) {
    let mut backoff = Backoff::new(Duration::from_millis(100));
    for left in (0..MAX_TRIES).rev() {
        match store.release(RELEASING, key, id, true).await {
            Ok(_) => return,
            Err(error) if error.is_temporary() && left > 0 => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => {
                tracing::warn!(%key, %error, "a background release failed: the lease expires");
                return;
            }
        }
    }
}

/// A request for a lease. If it is dropped without an answer, by the end of the caller's runtime or
/// because none came, the server may still execute it, also after the release of a requester that
/// is gone. So that release is repeated.
pub(crate) struct ReleaseIfAbandoned {
    store: Arc<Store>,
    requester: Arc<Requester>,
    wanted: Arc<AtomicBool>,
    armed: bool,
}

impl ReleaseIfAbandoned {
    pub(crate) fn new(
        store: &Arc<Store>,
        requester: &Arc<Requester>,
        wanted: &Arc<AtomicBool>,
    ) -> Self {
        let (store, requester, wanted) = (store.clone(), requester.clone(), wanted.clone());
        ReleaseIfAbandoned { store, requester, wanted, armed: true }
    }

    /// The request was answered.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for ReleaseIfAbandoned {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (store, requester) = (self.store.clone(), self.requester.clone());
        let wanted = self.wanted.clone();
        self.store.releases.spawn(&self.requester.key, async move {
            tokio::time::sleep(REPEAT_DELAY).await;
            // A requester that still wants it repeats the request with the same token.
            if !wanted.load(Ordering::Acquire) {
                release_with_retries(&store, &requester.key, requester.id).await;
            }
        });
    }
}
