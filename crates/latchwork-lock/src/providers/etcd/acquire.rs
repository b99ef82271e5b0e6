//! Requests for a lease: how one is made, and how a waiter goes on when it is woken.

mod steps;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steps::Progress;

use super::background::{run_inline, run_to_completion};
use super::notify::Notifier;
use super::record::{self, Requester};
use super::store::Store;
use super::store::grant::GrantOutcome;
use super::store::release::{ReleaseIfAbandoned, release_later};
use super::waiters::handle::NextStep;
use crate::{AcquireRequest, Acquired, Moment, Result, Wait};

const DURING: &str = "asking for a lease";

/// Requests a lease and waits as the request says.
///
/// Cancel safety: if the future is dropped, everything that it was granted or waits for is released
/// in the background.
pub(super) async fn acquire(
    store: &Arc<Store>,
    notifier: &Notifier,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let clock = &store.clock;
    let deadline = match request.wait {
        Wait::No => Moment::default(),
        Wait::For(span) => clock.now().after(span),
        Wait::Forever => Moment::NEVER,
    };
    let requester = Arc::new(Requester {
        key: request.key.clone(),
        id: record::id(request.token),
        mode: request.mode,
        owner: request.owner.clone(),
        note: request.note.clone(),
        ttl: request.ttl,
    });
    let mut pending =
        PendingAcquire { store, requester, wanted: Arc::new(AtomicBool::new(true)), armed: true };
    let waits = clock.now() < deadline;
    if waits {
        // Before joining the queue: changes before the watch starts are seen only in part.
        notifier.start(store);
    }
    let mut progress = pending.start(waits).await;
    let mut has_waited = false;
    loop {
        let handle = match progress {
            Ok(Progress::Granted(mut grant)) => {
                pending.armed = false;
                grant.waited |= has_waited;
                return Ok(Acquired::Granted(grant));
            }
            Ok(Progress::Refused(holder)) => {
                pending.armed = false;
                return Ok(Acquired::Taken(holder));
            }
            Ok(Progress::Queued(handle)) => handle,
            Err(error) => {
                // A retry with this token keeps its position: no release may overtake it.
                pending.armed = !error.is_temporary();
                return Err(error);
            }
        };
        has_waited = true;
        progress = match handle.next_step(&**clock, deadline).await {
            NextStep::Granted(grant) => Ok(Progress::Granted(grant)),
            NextStep::Claim { position, previous } => {
                let previous_fence = previous.map(record::fence_of);
                pending
                    .run(async move |store, requester| {
                        steps::claim(&store, &requester, handle, position, previous_fence).await
                    })
                    .await
            }
            NextStep::Enqueue => pending.enqueue().await,
            NextStep::GiveUp => pending.give_up().await,
        };
    }
}

/// A request that its caller waits for. Dropped, it releases what it was granted or waits for.
struct PendingAcquire<'a> {
    store: &'a Arc<Store>,
    requester: Arc<Requester>,
    wanted: Arc<AtomicBool>,
    armed: bool,
}

impl PendingAcquire<'_> {
    /// The first request.
    async fn start(&self, waits: bool) -> Result<Progress> {
        let mut seen = None;
        if self.requester.owner.is_none() {
            // If the key is known to have waiters, it cannot be free for this one.
            if waits && self.store.waiters.has_waiters(&self.requester.key) {
                return self.enqueue().await;
            }
            let granting = self.job(async move |store, requester| {
                store.grant_if_free(DURING, &requester, waits).await
            });
            match run_inline(DURING, granting).await? {
                GrantOutcome::Granted(grant) => return Ok(Progress::Granted(grant)),
                GrantOutcome::Blocked(state) => seen = Some(state),
            }
        }
        let wanted = self.wanted.clone();
        self.run(async move |store, requester| {
            steps::grant_or_enqueue(&store, &requester, &wanted, waits, seen).await
        })
        .await
    }

    async fn enqueue(&self) -> Result<Progress> {
        let wanted = self.wanted.clone();
        self.run(async move |store, requester| steps::enqueue(&store, &requester, &wanted).await)
            .await
    }

    /// Runs one step to completion, also if nobody waits for it any more.
    fn run<T: Send + 'static, F>(
        &self,
        step: impl FnOnce(Arc<Store>, Arc<Requester>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send,
    {
        run_to_completion(DURING, self.job(step))
    }

    /// A step that releases what it was granted if nobody waits for it any more.
    fn job<T: Send + 'static, F>(
        &self,
        step: impl FnOnce(Arc<Store>, Arc<Requester>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        F: Future<Output = Result<T>> + Send,
    {
        let (store, requester) = (self.store.clone(), self.requester.clone());
        let wanted = self.wanted.clone();
        async move {
            let abandoned = ReleaseIfAbandoned::new(&store, &requester, &wanted);
            let answer = step(store.clone(), requester.clone()).await;
            abandoned.disarm();
            if !wanted.load(Ordering::Acquire) {
                // The release of the abandoned request may have been executed before this step.
                store.release(DURING, &requester.key, requester.id, true).await?;
            }
            answer
        }
    }

    /// Stops waiting.
    async fn give_up(&self) -> Result<Progress> {
        // Before the release, as in `drop`: a grant may be in transit.
        self.wanted.store(false, Ordering::Release);
        let (store, requester) = (self.store.clone(), self.requester.clone());
        run_to_completion(DURING, async move { steps::give_up(&store, &requester).await }).await
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if self.armed {
            // Clear the flag before the release, so that a step that is granted a lease afterwards
            // sees the flag and releases, and one that was granted it before is released by us.
            self.wanted.store(false, Ordering::Release);
            let Requester { key, id, .. } = &*self.requester;
            release_later(self.store, key.clone(), *id);
        }
    }
}
