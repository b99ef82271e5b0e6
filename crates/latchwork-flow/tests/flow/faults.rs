//! A store that is away for a while, or whose answers are lost on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_flow::store::{
    Beat, Cancelled, ContextDraft, ContextFilter, ContextPage, ContextPageRequest, DueClaim,
    GiveBack, Proof, RunClaim, Save, Saved, StoredContext,
};
use latchwork_flow::{
    ActionResult, ContextStore, EntityKey, Error, InMemoryContextStore, JsonState, OnTimeout,
    Pause, Result, StateMachine, TransitionId,
};
use latchwork_lock::{InMemoryLockProvider, Locks, ManualClock};
use serde_json::{Value, json};

/// The next so many changes fail: before they are made, or after.
#[derive(Clone)]
struct Flaky {
    inner: InMemoryContextStore,
    before: Arc<AtomicU64>,
    after: Arc<AtomicU64>,
}

impl Flaky {
    fn new() -> Self {
        Flaky { inner: InMemoryContextStore::new(), before: Arc::default(), after: Arc::default() }
    }

    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let away = || Error::store_unavailable("flaky", "a test", "away", None);
        let less = |count: &AtomicU64| {
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        };
        if less(&self.before) {
            return Err(away());
        }
        let answer = call.await;
        if less(&self.after) { Err(away()) } else { answer }
    }
}

impl ContextStore for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }
    /// Its heartbeats come by the same faults.
    async fn separate(&self) -> Result<Option<latchwork_flow::Contexts>> {
        Ok(None)
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.inner.now().await
    }
    async fn create(&self, draft: &ContextDraft, run: Option<&RunClaim>) -> Result<u64> {
        self.through(self.inner.create(draft, run)).await
    }
    async fn load(&self, id: TransitionId) -> Result<Option<StoredContext>> {
        self.inner.load(id).await
    }
    async fn claim(
        &self,
        id: TransitionId,
        revision: Option<u64>,
        claim: &RunClaim,
    ) -> Result<StoredContext> {
        self.through(self.inner.claim(id, revision, claim)).await
    }
    async fn claim_due(&self, due: &DueClaim<'_>) -> Result<Vec<StoredContext>> {
        self.inner.claim_due(due).await
    }
    async fn next_due(&self, machine: &str) -> Result<Option<Duration>> {
        self.inner.next_due(machine).await
    }
    async fn save(&self, save: &Save<'_>) -> Result<Saved> {
        self.through(self.inner.save(save)).await
    }
    async fn heartbeat(&self, proof: Proof, ttl: Duration) -> Result<Beat> {
        self.inner.heartbeat(proof, ttl).await
    }
    async fn release(&self, proof: Proof, how: &GiveBack<'_>) -> Result<bool> {
        self.inner.release(proof, how).await
    }
    async fn list(&self, filter: &ContextFilter, page: &ContextPageRequest) -> Result<ContextPage> {
        self.inner.list(filter, page).await
    }
    async fn signal(&self, id: TransitionId, name: &str, payload: &Value) -> Result<()> {
        self.inner.signal(id, name, payload).await
    }
    async fn cancel(&self, id: TransitionId, reason: &str) -> Result<Cancelled> {
        self.inner.cancel(id, reason).await
    }
    async fn wake(&self, id: TransitionId) -> Result<()> {
        self.inner.wake(id).await
    }
    async fn retry(&self, id: TransitionId) -> Result<()> {
        ContextStore::retry(&self.inner, id).await
    }

    async fn release_quarantined(&self, id: TransitionId) -> Result<bool> {
        ContextStore::release_quarantined(&self.inner, id).await
    }

    async fn delete(&self, id: TransitionId) -> Result<bool> {
        self.inner.delete(id).await
    }
    async fn prune(&self, over_for: Duration, limit: usize) -> Result<u64> {
        self.inner.prune(over_for, limit).await
    }
}

fn machine(
    store: &Flaky,
    locks: &Locks,
    ran: &Arc<AtomicU64>,
    run_lease: Duration,
) -> StateMachine<JsonState> {
    let mut builder = StateMachine::builder("faults")
        .locks(locks, EntityKey::new())
        .store(store.clone())
        .run_lease(run_lease);
    for name in ["one", "two", "three"] {
        let ran = ran.clone();
        builder = builder.action_fn(name, move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { Ok(ActionResult::proceed()) }
        });
    }
    builder.build().unwrap()
}

fn order() -> JsonState {
    JsonState::new(json!({"id": 1})).unwrap()
}

#[tokio::test]
async fn f08_a_store_that_is_away_for_a_moment_is_asked_again() {
    let (store, locks) = (Flaky::new(), Locks::new(InMemoryLockProvider::new()));
    let ran = Arc::new(AtomicU64::new(0));
    let machine = machine(&store, &locks, &ran, Duration::from_secs(30));
    store.before.store(2, Ordering::Relaxed);
    let done = machine.run(order(), Default::default()).await.unwrap();
    assert!(done.is_completed());
    assert_eq!((ran.load(Ordering::Relaxed), done.revision()), (3, 4));
}

#[tokio::test]
async fn f08_a_lost_answer_is_no_conflict() {
    let (store, locks) = (Flaky::new(), Locks::new(InMemoryLockProvider::new()));
    let ran = Arc::new(AtomicU64::new(0));
    let machine = machine(&store, &locks, &ran, Duration::from_secs(30));
    // Every change is made, and its first answer never arrives.
    store.after.store(3, Ordering::Relaxed);
    let done = machine.run(order(), Default::default()).await.unwrap();
    assert!(done.is_completed());
    assert_eq!(ran.load(Ordering::Relaxed), 3, "nothing ran twice");
    assert_eq!(store.inner.load(done.id()).await.unwrap().unwrap().head.revision, done.revision());
}

#[tokio::test]
async fn f08_a_store_that_stays_away_ends_the_run_and_leaves_the_lock_to_the_next() {
    let (store, locks) = (Flaky::new(), Locks::new(InMemoryLockProvider::new()));
    let ran = Arc::new(AtomicU64::new(0));
    let machine = machine(&store, &locks, &ran, Duration::from_millis(100));
    let mut worker = machine.transition(order(), Default::default());
    worker.run_next_action().await.unwrap();
    store.before.store(u64::MAX, Ordering::Relaxed);
    let error = worker.execute().await.unwrap_err();
    assert_eq!(error.code(), "store_unavailable");
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    assert!(locks.exists("flow:entity:1").await.unwrap(), "it is half done");
    // The second action was not saved: it is run again, by its key the same.
    store.before.store(0, Ordering::Relaxed);
    let row = store.inner.load(worker.context().id()).await.unwrap().unwrap();
    assert_eq!((row.head.status.name(), row.head.run), ("running", None));
    // Nobody could have the lock meanwhile, so the state is not stale.
    let done = machine.resume(worker.context().id()).await.unwrap().execute().await.unwrap();
    assert!(done.is_completed());
    assert_eq!(ran.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn f08_the_stores_clock_decides_what_is_due() {
    // This process's clock is far behind the store's: by it, the timeout has not come.
    let store = InMemoryContextStore::new();
    let machine = StateMachine::<JsonState>::builder("late")
        .clock(Arc::new(ManualClock::new()))
        .store(store.clone())
        .action_fn("wait", |_| async {
            Ok(ActionResult::pause(Pause::new().timeout(Duration::from_secs(60), OnTimeout::Stop)))
        })
        .action_fn("after", |_| async { panic!("it was to be stopped") })
        .build()
        .unwrap();
    machine.run(order(), Default::default()).await.unwrap();
    let claim = RunClaim::new(Duration::from_secs(60));
    let row = store.claim_due(&DueClaim::new("late", 1, &claim)).await.unwrap().remove(0);
    let done = machine.take(row, claim).unwrap().execute().await.unwrap();
    assert!(done.is_stopped());
}
