//! The steps of a request for a lease.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::providers::etcd::error::{self, RequestError};
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::{KeyState, Requester};
use crate::providers::etcd::store::grant::GrantOutcome;
use crate::providers::etcd::store::{Store, contended};
use crate::providers::etcd::waiters::handle::WaiterHandle;
use crate::{Fence, Grant, Holder, Mode, Result};

const DURING: &str = "asking for a lease";

/// How often a request is repeated if other clients were faster.
const MAX_TRIES: usize = 16;

/// What a step has come to.
pub(super) enum Progress {
    Granted(Grant),
    Refused(Option<Box<Holder>>),
    /// It is in the queue.
    Queued(WaiterHandle),
}

/// Is granted the key, takes over, joins the queue, or is refused. `seen` is what a first attempt
/// has found in the way.
pub(super) async fn grant_or_enqueue(
    store: &Arc<Store>,
    requester: &Arc<Requester>,
    wanted: &Arc<AtomicBool>,
    waits: bool,
    mut seen: Option<KeyState>,
) -> Result<Progress> {
    for _ in 0..MAX_TRIES {
        let seen = match seen.take() {
            Some(seen) => seen,
            None => match store.grant_if_free(DURING, requester, waits).await? {
                GrantOutcome::Granted(grant) => return Ok(Progress::Granted(grant)),
                GrantOutcome::Blocked(seen) => seen,
            },
        };
        // Joining finds what it holds already, and keeps the position that it has (L17).
        if waits && requester.owner.is_none() {
            return enqueue(store, requester, wanted).await;
        }
        // The answer to an earlier request was lost, and this one repeats it (L17).
        if let Some(own) = seen.find(Part::Hold, requester.id) {
            return Ok(Progress::Granted(Grant::first(own.fence())));
        }
        if seen.find(Part::Wait, requester.id).is_some() {
            if waits {
                return enqueue(store, requester, wanted).await;
            }
            // A last request without waiting may find that it is first.
            if let Some(grant) = claim_if_first(store, requester).await? {
                return Ok(Progress::Granted(Grant { waited: true, ..grant }));
            }
            return give_up(store, requester).await;
        }
        if let Some(owner) = &requester.owner {
            let own = seen.held_by(owner).map_err(|what| error::unreadable(DURING, what))?;
            let outcome = match own {
                // An upgrade never waits (L7).
                Some(_) if requester.mode == Mode::Exclusive && seen.holders().count() > 1 => {
                    let holder = store.blocking_holder(DURING, &seen).await;
                    return Ok(Progress::Refused(holder.map(Box::new)));
                }
                Some(old) => Some(store.take_over(DURING, requester, old).await?),
                None if seen.waiters().next().is_none() && seen.admits(requester.mode) => {
                    Some(store.grant_beside(DURING, requester, &seen).await?)
                }
                None => None,
            };
            match outcome {
                Some(GrantOutcome::Granted(grant)) => {
                    // Of several readers it is not known which one was the last before.
                    let writer = own.filter(|old| old.mode == Mode::Exclusive);
                    let previous_fence = writer.map(|old| old.fence());
                    return Ok(Progress::Granted(Grant { previous_fence, ..grant }));
                }
                Some(GrantOutcome::Blocked(_)) => continue, // others were faster
                None => {}
            }
        }
        if waits {
            return enqueue(store, requester, wanted).await;
        }
        let holder = store.blocking_holder(DURING, &seen).await;
        return Ok(Progress::Refused(holder.map(Box::new)));
    }
    Err(contended(DURING))
}

async fn claim_if_first(store: &Arc<Store>, requester: &Requester) -> Result<Option<Grant>> {
    let seen = store.read_key(DURING, &requester.key).await?;
    let Some(position) = seen.find(Part::Wait, requester.id).map(|queued| queued.created) else {
        return Ok(None);
    };
    let mut ahead = seen.waiters().take_while(|entry| entry.created < position);
    let first = match requester.mode {
        Mode::Exclusive => ahead.next().is_none(),
        Mode::Shared => ahead.all(|entry| entry.mode == Mode::Shared),
    };
    if !first || !seen.admits(requester.mode) {
        return Ok(None);
    }
    match store.claim(DURING, requester, position).await? {
        GrantOutcome::Granted(grant) => Ok(Some(grant)),
        GrantOutcome::Blocked(_) => Ok(None),
    }
}

/// Joins the queue at its end, or stays where it was.
pub(super) async fn enqueue(
    store: &Arc<Store>,
    requester: &Arc<Requester>,
    wanted: &Arc<AtomicBool>,
) -> Result<Progress> {
    // What it held before is over, or it would not wait.
    drop(store.leases.forget_holder(requester.id));
    let handle = store.waiters.register(requester, wanted);
    for _ in 0..MAX_TRIES {
        let lease = store.session.lease().await?;
        // If every change is reported, the key need not be read.
        let read = !store.waiters.is_live(&requester.key);
        match store.enqueue(DURING, requester, lease, read).await {
            Ok((queued_at, seen)) => {
                if let Some(seen) = seen {
                    if let Some(own) = seen.find(Part::Hold, requester.id) {
                        return Ok(Progress::Granted(Grant::first(own.fence())));
                    }
                    handle.on_read(&seen, store.clock.now());
                }
                handle.mark_queued(queued_at);
                return Ok(Progress::Queued(handle));
            }
            Err(RequestError::LeaseNotFound) => store.session.forget(lease),
            Err(error) => return Err(error.into_error(DURING)),
        }
    }
    Err(RequestError::LeaseNotFound.into_error(DURING))
}

/// Claims the key for the first waiter; it goes on waiting if it was not first.
pub(super) async fn claim(
    store: &Arc<Store>,
    requester: &Requester,
    handle: WaiterHandle,
    position: i64,
    previous_fence: Option<Fence>,
) -> Result<Progress> {
    match store.claim(DURING, requester, position).await? {
        GrantOutcome::Granted(grant) => {
            if requester.mode == Mode::Exclusive {
                store.waiters.mark_served(&requester.key, position);
            }
            Ok(Progress::Granted(Grant { previous_fence, waited: true, ..grant }))
        }
        GrantOutcome::Blocked(seen) => {
            if let Some(own) = seen.find(Part::Hold, requester.id) {
                // Granted by a request whose answer was lost, which may be older than this one.
                return Ok(Progress::Granted(Grant::first(own.fence())));
            }
            handle.on_read(&seen, store.clock.now());
            handle.fall_asleep();
            Ok(Progress::Queued(handle))
        }
    }
}

/// Stops waiting.
pub(super) async fn give_up(store: &Arc<Store>, requester: &Requester) -> Result<Progress> {
    store.release(DURING, &requester.key, requester.id, true).await?;
    let seen = store.read_key(DURING, &requester.key).await?;
    let holder = store.blocking_holder(DURING, &seen).await;
    Ok(Progress::Refused(holder.map(Box::new)))
}
