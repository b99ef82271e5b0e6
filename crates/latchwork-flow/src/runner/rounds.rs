//! Round after round: claim what is due, run it, sleep until there is more.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use latchwork_lock::provider::Moment;
use tokio::task::{Id, JoinError, JoinSet};

use super::retries::{Retries, jittered, pause};
use super::task::{Done, Outcome, Task};
use super::{FlowRunner, Leaving};
use crate::store::{ContextStore, DueClaim, GiveBack, Proof, RunClaim, SUSPECT, StoredContext};
use crate::{Result, State, TransitionId};

/// So many are claimed at once at most: what one process claims and then dies with, all wait for.
const BATCH: usize = 64;

/// So many that it cannot read are remembered; the others are postponed for all.
const MOST_FOREIGN: usize = 1_000;

/// How long a claim waits for more runs to end while more is due than can run: a claim costs as much
/// for one context as for many.
const GATHER: Duration = Duration::from_millis(2);

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
        running: HashMap::new(),
        foreign: HashMap::new(),
        empty_claims: 0,
        backlog: false,
        leaving: Leaving::default(),
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
    /// What is being run.
    running: HashMap<Id, Running>,
    /// What this program cannot read, and until when it need not look again.
    foreign: HashMap<TransitionId, Moment>,
    /// How often in a row something was due that this runner could not get.
    empty_claims: u32,
    /// Whether the last claim got as many as it wanted, so that there may well be more.
    backlog: bool,
    retries: Retries,
    leaving: Leaving,
    stop: Shared<BoxFuture<'a, ()>>,
}

/// One context that is being run.
struct Running {
    /// To give it back if it has to be dropped.
    proof: Proof,
    suspect: bool,
}

impl<S: State> Rounds<'_, S> {
    /// One round. Every wait in it ends when the runner is to stop, but a question to the store does
    /// not: what it claims must be known.
    async fn round(&mut self) -> Result<()> {
        while let Some(done) = self.tasks.try_join_next_with_id() {
            self.note(done);
        }
        if self.free() == 0 {
            let stop = self.stop.clone();
            tokio::select! {
                () = stop => {}
                () = self.join_next() => {}
            }
            return Ok(());
        }
        if self.backlog {
            self.gather().await;
            if self.is_to_stop() {
                return Ok(());
            }
        }
        let wanted = self.free().min(BATCH);
        let claim = RunClaim::new(self.runner.machine.run_lease());
        let contexts = self.runner.contexts.clone();
        let name = self.runner.machine.name().to_owned();
        let exclude = self.excluded();
        let due = DueClaim {
            beside_suspect: self.running.values().any(|run| run.suspect),
            max_attempts: self.runner.max_attempts,
            back_off: jittered(self.runner.retry, 0.5),
            exclude: &exclude,
            ..DueClaim::new(&name, wanted, &claim)
        };
        let due = self.with_store_retry(|| contexts.claim_due(&due)).await?;
        let Some(claimed) = due else { return Ok(()) };
        self.backlog = claimed.len() == wanted;
        if self.is_to_stop() {
            for stored in claimed {
                self.give_back(Proof { id: stored.head.id, token: claim.token }).await;
            }
            return Ok(());
        }
        if !claimed.is_empty() {
            self.empty_claims = 0;
        } else if let Some(next) = self.with_store_retry(|| contexts.next_due(&name)).await? {
            // Due now, and yet not ours: another's, not readable, or not to be run beside what runs.
            let due_now = next.is_some_and(|next| next.is_zero());
            self.empty_claims = if due_now { (self.empty_claims + 1).min(10) } else { 0 };
            let least = Duration::from_millis(1 << self.empty_claims);
            self.sleep(next.map(|next| if due_now { least } else { next })).await;
        }
        for stored in claimed {
            self.start(stored, claim.clone());
        }
        Ok(())
    }

    fn free(&self) -> usize {
        self.runner.concurrency.saturating_sub(self.tasks.len())
    }

    /// Waits until a quarter of the runs have ended, but not for long: actions may take their time.
    async fn gather(&mut self) {
        let clock = self.runner.machine.clock().clone();
        let mut patience = clock.sleep_until(clock.now().after(GATHER));
        let stop = self.stop.clone();
        tokio::pin!(stop);
        while self.free() < self.runner.concurrency.div_ceil(4) {
            tokio::select! {
                () = &mut stop => return,
                () = &mut patience => return,
                () = self.join_next() => {}
            }
        }
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
    async fn with_store_retry<T, F>(&self, ask: impl Fn() -> F) -> Result<Option<T>>
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
        let (wake, stop) = (self.runner.wake.clone(), self.stop.clone());
        tokio::select! {
            () = stop => {}
            () = clock.sleep_until(clock.now().after(span)) => {}
            () = wake.notified() => {}
            () = self.join_next(), if !self.tasks.is_empty() => {}
        }
    }

    async fn join_next(&mut self) {
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
        let run = Running { proof: task.proof(), suspect: task.stored.head.attempts > SUSPECT };
        let id = self.tasks.spawn(task.run()).id();
        self.running.insert(id, run);
    }

    /// What this runner is at, whatever the store thinks of that, and what it cannot read.
    fn excluded(&mut self) -> Vec<TransitionId> {
        let now = self.runner.machine.clock().now();
        self.foreign.retain(|_, until| *until > now);
        let running = self.running.values().map(|run| run.proof.id);
        running.chain(self.foreign.keys().copied()).collect()
    }

    fn note(&mut self, done: Result<(Id, Done), JoinError>) {
        let id = match &done {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let run = self.running.remove(&id);
        match done {
            Ok((_, Done { id, outcome: Outcome::Again })) => self.retries.failed(id),
            Ok((_, Done { id, outcome: Outcome::On })) => self.retries.went_on(id),
            Ok((_, Done { id, outcome: Outcome::Foreign })) => {
                let clock = self.runner.machine.clock();
                let until = clock.now().after(self.retries.pause(id));
                self.retries.failed(id);
                if self.foreign.len() < MOST_FOREIGN {
                    self.foreign.insert(id, until);
                }
            }
            Err(error) => {
                let transition = run.map(|run| run.proof.id.to_string()).unwrap_or_default();
                tracing::error!(%transition, %error, "a run ended in a panic");
            }
        }
    }

    /// Lets all end after their present action, and drops those that take too long.
    async fn finish(mut self) {
        self.leaving.set();
        let clock = self.runner.machine.clock().clone();
        let mut patience = clock.sleep_until(clock.now().after(self.runner.grace));
        while !self.tasks.is_empty() {
            tokio::select! {
                () = &mut patience => break,
                () = self.join_next() => {}
            }
        }
        self.tasks.shutdown().await;
        for run in std::mem::take(&mut self.running).into_values() {
            self.give_back(run.proof).await;
        }
    }
}
