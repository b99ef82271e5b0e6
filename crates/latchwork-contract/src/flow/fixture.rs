//! What a case gets to work with.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_flow::store::{
    ContextDraft, ContextStore, Proof, RunClaim, Save, StoredContext, Waiting,
};
use latchwork_flow::{Contexts, Result, Status, TransitionId};
use latchwork_lock::{Clock, SystemClock};

use super::TestBackend;

/// Everything that a case may ask of the store under test. Clones are the same.
#[derive(Clone)]
pub struct Fixture {
    inner: Arc<Inner>,
}

struct Inner {
    backend: TestBackend,
    machine: String,
}

/// Stands in every body, and must stand nowhere else.
pub(super) const SECRET: &str = "5ec4e7c0ffee5ec4e7c0ffee5ec4e7c0";

impl Fixture {
    /// The fixture of one case.
    pub fn new(case: &str, backend: TestBackend) -> Self {
        // Unique, since a server may still have the rows of another run.
        let machine = format!("{case}/{:08x}", rand::random::<u32>());
        Fixture { inner: Arc::new(Inner { backend, machine }) }
    }

    /// A connection of its own: another process, as far as the store can tell.
    pub async fn open(&self) -> Contexts {
        self.inner.backend.connect().await.expect("the store is there")
    }

    /// The name of the machine whose contexts are only this run's.
    pub fn machine(&self) -> &str {
        &self.inner.machine
    }

    /// The shortest sensible run-lease here.
    pub fn unit(&self) -> Duration {
        self.inner.backend.span_unit()
    }

    /// Lets this much time pass: moves the clock, or sleeps where the clock is not ours.
    pub async fn pass(&self, span: Duration) {
        match self.inner.backend.manual_clock() {
            Some(clock) => clock.advance(span),
            None => tokio::time::sleep(span).await,
        }
    }

    /// The clock of this process that goes with the store's.
    pub fn clock(&self) -> Arc<dyn Clock> {
        match self.inner.backend.manual_clock() {
            Some(clock) => Arc::new(clock.clone()),
            None => SystemClock::shared(),
        }
    }

    /// A draft of this run's machine with an id of its own.
    pub fn draft(&self, status: Status) -> ContextDraft {
        let id = TransitionId::new(self.clock().wall());
        ContextDraft {
            id,
            machine: self.machine().to_owned(),
            entity: Some(format!("entity of {id}")),
            status,
            body: format!(r#"{{"token":"{SECRET}","of":"{id}"}}"#),
            details: r#"{"definition":1,"done":0,"left":1}"#.to_owned(),
            waiting: None,
            holds_lock: false,
        }
    }

    /// A paused draft.
    pub fn paused(&self, waiting: Waiting) -> ContextDraft {
        ContextDraft { waiting: Some(waiting), ..self.draft(Status::Paused) }
    }

    /// A claim that lasts long.
    pub fn long(&self) -> RunClaim {
        RunClaim::new(Duration::from_secs(600))
    }

    /// A claim that is soon over.
    pub fn short(&self) -> RunClaim {
        RunClaim::new(self.unit())
    }
}

/// A time from now on, by the store's clock.
pub(super) async fn later(store: &Contexts, span: Duration) -> DateTime<Utc> {
    ContextStore::now(store).await.expect("it tells the time") + span
}

/// A stored context that nobody is at.
pub(super) async fn stored(store: &Contexts, draft: &ContextDraft) {
    let revision = store.create(draft, None).await.expect("it is new");
    assert_eq!(revision, 1);
}

/// What the store has of a context that is there.
pub(super) async fn found(store: &Contexts, id: TransitionId) -> StoredContext {
    Contexts::load(store, id).await.expect("it is there")
}

/// A save by this claim at this revision, which ends the run-lease.
pub(super) fn save<'a>(draft: &'a ContextDraft, revision: u64, claim: &RunClaim) -> Save<'a> {
    Save { draft, revision, token: claim.token, keep: None, used_signal: None, progress: false }
}

/// The right to the run-lease of a claim.
pub(super) fn proof(draft: &ContextDraft, claim: &RunClaim) -> Proof {
    Proof { id: draft.id, token: claim.token }
}

/// The code of an error that must be one.
pub(super) fn code<T: std::fmt::Debug>(answer: Result<T>) -> &'static str {
    answer.expect_err("this must be refused").code()
}
