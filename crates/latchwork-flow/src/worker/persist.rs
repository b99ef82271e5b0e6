//! The store of a transition: claimed, saved after every action, kept alive meanwhile.

use std::time::Duration;

use super::StateWorker;
use super::run::Run;
use super::steps::not_ours;
use crate::store::{
    CancelRequest, ContextDraft, ContextHead, Due, GiveBack, Proof, RunClaim, Save, Saved, Waiting,
};
use crate::{ContextStore, Error, PauseLock, Result, State, Woken};

impl<S: State> StateWorker<S> {
    /// The context as a store wants it.
    pub(crate) fn draft(&self) -> Result<ContextDraft> {
        let context = &self.context;
        let details = serde_json::to_string(&context.details())
            .map_err(|error| Error::invalid_state(error.to_string()))?;
        Ok(ContextDraft {
            id: context.id,
            machine: context.machine.name.to_string(),
            entity: context.entity().map(Into::into),
            status: context.status,
            body: context.to_json()?,
            details,
            waiting: self.waiting(),
            holds_lock: context.lease.is_some(),
        })
    }

    fn waiting(&self) -> Option<Waiting> {
        let paused = self.context.paused()?;
        let renew_at = match (paused.lock, &self.context.lease) {
            (PauseLock::Renew, Some(lease)) => Some(self.machine.clock.wall() + lease.ttl / 3),
            _ => None,
        };
        Some(Waiting {
            wake_at: paused.wake_at,
            signal: paused.signal.clone(),
            timeout_at: paused.timeout.map(|timeout| timeout.at),
            renew_at,
        })
    }

    /// Takes the run-lease of a stored context, unless it is ours already.
    pub(super) async fn claim(&mut self) -> Result<()> {
        let Some(store) = &self.machine.store else { return Ok(()) };
        if let Some(run) = &self.run {
            // The heartbeats ended with the call that was dropped.
            let lost = self.interrupted && !store.heartbeat(run.proof, run.claim.ttl).await?.held;
            self.interrupted = false;
            if lost {
                self.run = None;
                return Err(not_ours(self));
            }
            return Ok(());
        }
        if self.context.revision == 0 {
            return Ok(());
        }
        let claim = RunClaim::new(self.machine.run_ttl);
        let (id, revision) = (self.context.id, self.context.revision);
        let stored = store.claim(id, Some(revision), &claim).await?;
        self.claimed(&stored.head, claim);
        Ok(())
    }

    /// Notes that the context is claimed, and why it was due.
    pub(crate) fn claimed(&mut self, head: &ContextHead, claim: RunClaim) {
        self.runs(claim, head.attempts);
        self.context_mut().revision = head.revision;
        self.cancelled = head.cancel.as_ref().map(|request| request.reason.clone());
        // At the time of the claim, by the store's clock: ours may be behind, and would not see what
        // the store saw.
        self.due = Some(Box::new(head.due(head.updated_at)));
    }

    /// Notes the right to save, and has it kept alive.
    fn runs(&mut self, claim: RunClaim, attempt: u32) {
        let Some(heartbeats) = &self.machine.heartbeats else { return };
        let proof = Proof { id: self.context.id, token: claim.token };
        let mut run = Run::new(heartbeats, &self.calls, proof, claim, attempt);
        run.saved_next = self.context.next;
        self.run = Some(Box::new(run));
    }

    /// What woke it, from why it was due.
    pub(super) fn woken_by(&self) -> Woken {
        match self.due.as_deref() {
            Some(Due::Signal(signal)) => Woken::Signal {
                name: signal.name.clone(),
                payload: signal.payload.clone(),
                at: signal.at,
            },
            Some(Due::Time) => Woken::Time,
            Some(Due::Timeout) => Woken::Timeout,
            _ => Woken::Hand,
        }
    }

    /// Gives the run-lease back without a save. It was no attempt, unless the context itself is to
    /// blame for what went wrong.
    pub(super) async fn unclaim(&mut self, why: Option<&Error>) {
        let Some(run) = self.run.take() else { return };
        let Some(store) = &self.machine.store else { return };
        let reason = why.map(ToString::to_string);
        let how = GiveBack {
            postpone: self.terms.as_ref().and_then(|terms| terms.postpone),
            counts: run.counts || why.is_some_and(Error::is_of_context),
            reason: reason.as_deref(),
        };
        if let Err(error) = store.release(run.proof, &how).await {
            tracing::debug!(transition = %self.context.id, %error, "a run-lease is left to its end");
        }
    }

    /// Saves a context that goes on, and ends it if it was called off.
    pub(super) async fn checkpoint(&mut self) -> Result<()> {
        if self.machine.store.is_none() {
            return Ok(());
        }
        if self.run.is_none() {
            self.runs(RunClaim::new(self.machine.run_ttl), 1);
        }
        match self.save(Some(self.machine.run_ttl)).await? {
            Some(request) => self.cancel_with(&request.reason).await,
            None => Ok(()),
        }
    }

    /// Saves the context, if it is stored at all. An error ends this run: the context is another's,
    /// or will be.
    pub(super) async fn save(&mut self, keep: Option<Duration>) -> Result<Option<CancelRequest>> {
        if self.machine.store.is_none() {
            return Ok(None);
        }
        if self.run.is_none() {
            return Ok(None);
        }
        let events = self.events.max(self.context.events);
        self.context_mut().events = events;
        let saved = match self.draft() {
            Ok(draft) => self.save_with_retry(&draft, keep).await,
            Err(error) => Err(error),
        };
        match saved {
            Ok(saved) => {
                self.used_signal = None;
                self.context_mut().revision = saved.revision;
                let next = self.context.next;
                if let Some(run) = &mut self.run {
                    run.saved(next);
                }
                Ok(saved.cancel)
            }
            Err(error) => Err(Box::pin(self.abandon_run(error)).await),
        }
    }

    /// Asks again while the store is away, for as long as the run-lease can be hoped to last.
    async fn save_with_retry(&self, draft: &ContextDraft, keep: Option<Duration>) -> Result<Saved> {
        let (Some(store), Some(run)) = (&self.machine.store, &self.run) else {
            return Err(not_ours(self));
        };
        let progress = run.saved_next != self.context.next;
        let clock = &self.machine.clock;
        let deadline = clock.now().after(run.claim.ttl / 2);
        let mut pause = Duration::from_millis(20);
        loop {
            let answer = match self.context.revision {
                0 => match store.create(draft, Some(&run.claim)).await {
                    Ok(revision) => Ok(Saved { revision, cancel: None }),
                    Err(error) => Err(error),
                },
                revision => {
                    let (token, used_signal) = (run.proof.token, self.used_signal);
                    store.save(&Save { draft, revision, token, keep, used_signal, progress }).await
                }
            };
            match answer {
                Err(error) if error.is_temporary() && clock.now() < deadline => {
                    tracing::warn!(transition = %draft.id, %error, "saving again");
                    clock.sleep_until(clock.now().after(pause).min(deadline)).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                other => return other,
            }
        }
    }
}
