//! One claimed context.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::{Either, select};

use super::{Reload, Terms};
use crate::store::{ContextStore, Due, GiveBack, Proof, RunClaim, StoredContext};
use crate::{Contexts, Error, Result, State, StateMachine, StateWorker, Status, TransitionId};

/// What a task needs.
pub(super) struct Task<S: State> {
    pub(super) machine: StateMachine<S>,
    pub(super) contexts: Contexts,
    pub(super) stored: StoredContext,
    pub(super) claim: RunClaim,
    pub(super) reload: Option<Reload<S>>,
    pub(super) leaving: Arc<AtomicBool>,
    /// How long to leave it alone, should it not go on.
    pub(super) postpone: Duration,
}

/// What came of it.
pub(super) struct Done {
    pub(super) id: TransitionId,
    /// Whether it is to be tried again.
    pub(super) again: bool,
}

impl<S: State> Task<S> {
    pub(super) fn proof(&self) -> Proof {
        Proof { id: self.stored.head.id, token: self.claim.token }
    }

    pub(super) async fn run(self) -> Done {
        let proof = self.proof();
        let (machine, contexts) = (self.machine.clone(), self.contexts.clone());
        let work = std::pin::pin!(self.go_on());
        let beat = std::pin::pin!(keep_alive(&machine, &contexts, proof));
        let again = match select(work, beat).await {
            Either::Left((again, _)) => again,
            Either::Right((never, _)) => match never {},
        };
        Done { id: proof.id, again }
    }

    /// Goes on with it; true when it is to be tried again.
    async fn go_on(self) -> bool {
        let proof = self.proof();
        let (id, contexts) = (proof.id, self.contexts);
        let mut worker = match self.machine.take(self.stored, self.claim) {
            Ok(worker) => worker,
            Err(error) => {
                // Another program may know it: a newer one, or one that has the action.
                tracing::warn!(transition = %id, %error, "this runner cannot go on with a context");
                let reason = error.to_string();
                let how = GiveBack {
                    postpone: Some(self.postpone),
                    counts: error.code() == "corrupt_context",
                    reason: Some(&reason),
                };
                later(id, contexts.release(proof, &how).await);
                return true;
            }
        };
        let under_way = matches!(worker.context().status(), Status::Paused | Status::Running);
        let reload = self.reload.filter(|_| under_way);
        // The recovery claims it a second time, which it could not while it is postponed.
        let postpone = Some(self.postpone).filter(|_| reload.is_none());
        worker.under(Terms { leaving: self.leaving, postpone });
        let ended = match (worker.due(), reload) {
            (Some(Due::Nothing), _) => {
                later(id, contexts.release(proof, &GiveBack::default()).await);
                return false;
            }
            (Some(Due::RenewLock), _) => worker.renew_lock().await,
            (_, Some(reload)) => {
                let ended = worker.execute_or_reacquire(|context| reload(context)).await.map(drop);
                if ended.is_err() && !worker.context().status().is_over() {
                    let wait = RunClaim::new(self.postpone);
                    later(id, contexts.claim(id, None, &wait).await.map(|_| true));
                }
                ended
            }
            _ => worker.execute().await.map(drop),
        };
        report(&worker, ended)
    }
}

/// Renews the run-lease for as long as it is ours, whatever the worker waits for: a lock, a gate, an
/// action.
async fn keep_alive<S: State>(
    machine: &StateMachine<S>,
    contexts: &Contexts,
    proof: Proof,
) -> std::convert::Infallible {
    let (clock, ttl) = (machine.clock(), machine.run_lease());
    loop {
        clock.sleep_until(clock.now().after(ttl / 3)).await;
        match contexts.heartbeat(proof, ttl).await {
            Ok(beat) if beat.held => {}
            // It was given back, or taken over: whoever saves next learns which.
            Ok(_) => std::future::pending().await,
            Err(error) => {
                tracing::debug!(transition = %proof.id, %error, "a heartbeat was missed");
            }
        }
    }
}

fn later(id: TransitionId, answer: Result<bool>) {
    if let Err(error) = answer {
        tracing::debug!(transition = %id, %error, "a run-lease is left to its end");
    }
}

/// Says what came of it, as far as the machine's observers were not told; true when it is to be
/// tried again.
fn report<S: State>(worker: &StateWorker<S>, ended: Result<()>) -> bool {
    let context = worker.context();
    let (transition, status) = (context.id(), context.status());
    match ended {
        Ok(()) => false,
        Err(error) if status.is_over() => {
            tracing::warn!(%transition, %status, %error, "a transition has ended with an error");
            false
        }
        Err(error) if is_another_s(&error) => {
            tracing::debug!(%transition, %error, "somebody else has gone on with a transition");
            false
        }
        Err(error) => {
            tracing::warn!(%transition, %status, %error, "a transition could not go on yet");
            true
        }
    }
}

fn is_another_s(error: &Error) -> bool {
    ["context_conflict", "context_busy", "transition_over", "context_not_found"]
        .contains(&error.code())
}
