//! Round after round: claim what is due, run it, sleep until there is more.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::task::{Id, JoinError, JoinSet};

use super::FlowRunner;
use super::retries::{Retries, jittered, pause};
use super::task::{Done, Task};
use crate::store::{ContextStore, DueClaim, GiveBack, Proof, RunClaim, StoredContext};
use crate::{Result, State};

/// So many are claimed at once at most: what one process claims and then dies with, all wait for.
const BATCH: usize = 64;

/// The first pause when the store is away.
const AWAY: Duration = Duration::from_millis(100);

pub(super) async fn run<S: State>(
    runner: FlowRunner<S>,
    stop: impl Future<Output = ()> + Send,
) -> Result<()> {
    let mut rounds = Rounds {
        retries: Retries::new(runner.retry),
        runner,
        tasks: JoinSet::new(),
        proofs: HashMap::new(),
        leaving: Arc::default(),
        stop: stop.boxed().shared(),
    };
    let ended = loop {
        if rounds.is_to_stop() {
            break Ok(());
        }
        if let Err(error) = rounds.round().await {
            break Err(error);
        }
    };
    rounds.finish().await;
    ended
}

struct Rounds<'a, S: State> {
    runner: FlowRunner<S>,
    tasks: JoinSet<Done>,
    /// What is being run, to be given back if it has to be dropped.
    proofs: HashMap<Id, Proof>,
    retries: Retries,
    leaving: Arc<AtomicBool>,
    stop: Shared<BoxFuture<'a, ()>>,
}

impl<S: State> Rounds<'_, S> {
    /// One round. Every wait in it ends when the runner is to stop, but a question to the store does
    /// not: what it claims must be known.
    async fn round(&mut self) -> Result<()> {
        while let Some(done) = self.tasks.try_join_next_with_id() {
            self.note(done);
        }
        let free = self.runner.concurrency.saturating_sub(self.tasks.len());
        if free == 0 {
            let stop = self.stop.clone();
            tokio::select! {
                () = stop => {}
                () = self.one_ends() => {}
            }
            return Ok(());
        }
        let claim = RunClaim::new(self.runner.machine.run_lease());
        let contexts = self.runner.contexts.clone();
        let name = self.runner.machine.name().to_owned();
        let due = DueClaim::new(&name, free.min(BATCH), &claim);
        let due = self.patiently(|| contexts.claim_due(&due)).await?;
        let Some(claimed) = due else { return Ok(()) };
        if self.is_to_stop() {
            for stored in claimed {
                self.give_back(Proof { id: stored.head.id, token: claim.token }).await;
            }
            return Ok(());
        }
        if claimed.is_empty()
            && let Some(next) = self.patiently(|| contexts.next_due(&name)).await?
        {
            self.sleep(next).await;
        }
        for stored in claimed {
            self.start(stored, claim.clone());
        }
        Ok(())
    }

    fn is_to_stop(&self) -> bool {
        self.stop.clone().now_or_never().is_some()
    }

    async fn give_back(&self, proof: Proof) {
        if let Err(error) = self.runner.contexts.release(proof, &GiveBack::default()).await {
            tracing::debug!(transition = %proof.id, %error, "a run-lease is left to its end");
        }
    }

    /// Asks the store, and again while it is away; none when the runner is to stop meanwhile.
    async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<Option<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let clock = self.runner.machine.clock();
        let mut tries = 0;
        loop {
            match ask().await {
                Err(error) if error.is_temporary() => {
                    if tries == 0 {
                        let machine = self.runner.machine.name();
                        tracing::warn!(machine, %error, "a runner waits for its store");
                    }
                    tokio::select! {
                        () = clock.sleep_until(clock.now().after(pause(AWAY, tries))) => {}
                        () = self.stop.clone() => return Ok(None),
                    }
                    tries = (tries + 1).min(6);
                }
                answer => return answer.map(Some),
            }
        }
    }

    /// Until something is due, a tick has passed, a run has ended, or somebody rings.
    async fn sleep(&mut self, next: Option<Duration>) {
        // Not all at the same time: of those who wake together one gets what is due.
        let tick = jittered(self.runner.tick, 0.2);
        let chance = jittered(Duration::from_millis(10), 1.0);
        let span = next.map_or(tick, |next| next.saturating_add(chance).min(tick));
        let clock = self.runner.machine.clock().clone();
        let (bell, stop) = (self.runner.bell.clone(), self.stop.clone());
        tokio::select! {
            () = stop => {}
            () = clock.sleep_until(clock.now().after(span)) => {}
            () = bell.notified() => {}
            () = self.one_ends(), if !self.tasks.is_empty() => {}
        }
    }

    async fn one_ends(&mut self) {
        if let Some(done) = self.tasks.join_next_with_id().await {
            self.note(done);
        }
    }

    fn start(&mut self, stored: StoredContext, claim: RunClaim) {
        let task = Task {
            postpone: self.retries.pause(stored.head.id),
            machine: self.runner.machine.clone(),
            contexts: self.runner.contexts.clone(),
            reload: self.runner.reload.clone(),
            leaving: self.leaving.clone(),
            stored,
            claim,
        };
        let proof = task.proof();
        let id = self.tasks.spawn(task.run()).id();
        self.proofs.insert(id, proof);
    }

    fn note(&mut self, done: Result<(Id, Done), JoinError>) {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let proof = self.proofs.remove(&id);
        match done {
            Ok((_, Done { id, again: true })) => self.retries.failed(id),
            Ok((_, Done { id, again: false })) => self.retries.went_on(id),
            Err(error) => {
                let transition = proof.map(|proof| proof.id.to_string()).unwrap_or_default();
                tracing::error!(%transition, %error, "a run ended in a panic");
            }
        }
    }

    /// Lets all end after their present action, and drops those that take too long.
    async fn finish(mut self) {
        self.leaving.store(true, Ordering::Release);
        let clock = self.runner.machine.clock().clone();
        let mut patience = clock.sleep_until(clock.now().after(self.runner.grace));
        while !self.tasks.is_empty() {
            tokio::select! {
                () = &mut patience => break,
                () = self.one_ends() => {}
            }
        }
        self.tasks.shutdown().await;
        for proof in std::mem::take(&mut self.proofs).into_values() {
            self.give_back(proof).await;
        }
    }
}
