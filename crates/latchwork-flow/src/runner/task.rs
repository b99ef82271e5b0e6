//! One claimed context.

use std::time::Duration;

use super::{Leaving, Reload, RunTerms};
use crate::store::{ContextStore, Due, GiveBack, Proof, RunClaim, StoredContext};
use crate::{Contexts, Error, Result, State, StateMachine, StateWorker, Status, TransitionId};

/// What a task needs.
pub(super) struct Task<S: State> {
    pub(super) machine: StateMachine<S>,
    pub(super) contexts: Contexts,
    pub(super) stored: StoredContext,
    pub(super) claim: RunClaim,
    pub(super) reload: Option<Reload<S>>,
    pub(super) leaving: Leaving,
    /// How long to leave it alone, should it not go on.
    pub(super) postpone: Duration,
}

/// What came of it.
pub(super) struct Done {
    pub(super) id: TransitionId,
    pub(super) outcome: Outcome,
}

/// How far it came.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// It has gone on, or somebody else has it.
    On,
    /// It is to be tried again.
    Again,
    /// This program cannot read it; another may.
    Foreign,
}

impl<S: State> Task<S> {
    pub(super) fn proof(&self) -> Proof {
        Proof { id: self.stored.head.id, token: self.claim.token }
    }

    pub(super) async fn run(self) -> Done {
        let id = self.stored.head.id;
        Done { id, outcome: self.run_context().await }
    }

    async fn run_context(self) -> Outcome {
        let proof = self.proof();
        let (id, contexts) = (proof.id, self.contexts);
        let mut worker = match self.machine.take(self.stored, self.claim) {
            Ok(worker) => worker,
            Err(error) => {
                tracing::warn!(transition = %id, %error, "this runner cannot continue a context");
                let (reason, counts) = (error.to_string(), error.is_of_context());
                // What nobody can read is left alone. What another program may know (a newer one, or
                // one that has the action) is left to it, at once.
                let postpone = counts.then_some(self.postpone);
                let how = GiveBack { postpone, counts, reason: Some(&reason) };
                later(id, contexts.release(proof, &how).await);
                return if counts { Outcome::Again } else { Outcome::Foreign };
            }
        };
        let under_way = matches!(worker.context().status(), Status::Paused | Status::Running);
        let reload = self.reload.filter(|_| under_way);
        // The recovery claims it a second time, which it could not while it is postponed.
        let postpone = Some(self.postpone).filter(|_| reload.is_none());
        worker.set_terms(RunTerms { leaving: self.leaving, postpone });
        let ended = match (worker.due(), reload) {
            (Some(Due::Nothing), _) => {
                later(id, contexts.release(proof, &GiveBack::default()).await);
                return Outcome::On;
            }
            (Some(Due::RenewLock), _) => worker.renew_lock().await,
            (_, Some(reload)) => {
                let ended = worker.execute_or_reacquire(|context| reload(context)).await.map(drop);
                if ended.is_err() && !worker.context().status().is_over() {
                    later(id, postponed(&contexts, id, self.postpone).await);
                }
                ended
            }
            _ => worker.execute().await.map(drop),
        };
        report(&worker, ended)
    }
}

/// Leaves alone for a while what the recovery has given back.
async fn postponed(contexts: &Contexts, id: TransitionId, span: Duration) -> Result<bool> {
    let claim = RunClaim::new(span);
    contexts.claim(id, None, &claim).await?;
    let how = GiveBack { postpone: Some(span), ..GiveBack::default() };
    contexts.release(Proof { id, token: claim.token }, &how).await
}

fn later(id: TransitionId, answer: Result<bool>) {
    if let Err(error) = answer {
        tracing::debug!(transition = %id, %error, "a run-lease is left to its end");
    }
}

/// Says what came of it, as far as the machine's observers were not told.
fn report<S: State>(worker: &StateWorker<S>, ended: Result<()>) -> Outcome {
    let context = worker.context();
    let (transition, status) = (context.id(), context.status());
    match ended {
        Ok(()) => Outcome::On,
        Err(error) if status.is_over() => {
            tracing::warn!(%transition, %status, %error, "a transition has ended with an error");
            Outcome::On
        }
        Err(error) if is_another_s(&error) => {
            tracing::debug!(%transition, %error, "another process has continued a transition");
            Outcome::On
        }
        Err(error) => {
            tracing::warn!(%transition, %status, %error, "a transition could not continue yet");
            Outcome::Again
        }
    }
}

fn is_another_s(error: &Error) -> bool {
    ["context_conflict", "context_busy", "transition_over", "context_not_found"]
        .contains(&error.code())
}
