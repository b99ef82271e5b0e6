//! A provider whose calls fail when the test says so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork_lock::provider::{AcquireRequest, Acquired, Grant, LockProvider, Proof, Token};
use latchwork_lock::{
    Capabilities, Clock, Error, Fence, Holder, Inspection, Key, Page, PageRequest, Result,
};
use tokio::sync::oneshot;

/// Wraps any provider and lets chosen calls fail, before or after they reached the backend.
pub(super) struct Flaky<P> {
    inner: P,
    faults: Faults,
}

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Asking for a lease.
    Acquire,
    /// Renewing one.
    Renew,
    /// Releasing one.
    Release,
    /// Marking one as handed over.
    HandOver,
    /// Resuming one.
    Rotate,
    /// Looking, listing, breaking.
    Other,
}

/// The handle by which a test plans what fails. Clones are the same.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<HashMap<Operation, Plan>>>);

#[derive(Default)]
struct Plan {
    calls: usize,
    next: VecDeque<Fault>,
    away: bool,
}

enum Fault {
    /// The call never arrives.
    Before,
    /// The call arrives, its answer does not.
    After,
    /// The backend refuses for good.
    Refused,
    /// The answer arrives when the sender is dropped.
    Late { reached: oneshot::Sender<()>, go: oneshot::Receiver<()> },
}

impl<P: LockProvider> Flaky<P> {
    /// The provider, with nothing failing yet.
    pub(super) fn new(inner: P) -> Self {
        Flaky { inner, faults: Faults::default() }
    }

    /// The handle that plans what fails.
    pub(super) fn faults(&self) -> Faults {
        self.faults.clone()
    }

    async fn call<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (away, fault) = self.faults.plan(operation, |plan| {
            plan.calls += 1;
            (plan.away, plan.next.pop_front())
        });
        match fault {
            _ if away => Err(lost("the backend is away")),
            None => call.await,
            Some(Fault::Before) => Err(lost("the call did not arrive")),
            Some(Fault::Refused) => {
                Err(Error::backend("flaky", "a planned fault", "it refused for good", None))
            }
            Some(Fault::After) => call.await.and_then(|_| Err(lost("the answer did not arrive"))),
            Some(Fault::Late { reached, go }) => {
                let answer = call.await;
                let _ = reached.send(());
                let _ = go.await;
                answer
            }
        }
    }
}

fn lost(reason: &str) -> Error {
    Error::unavailable("flaky", "a planned fault", reason, None)
}

impl Faults {
    /// The next calls of this kind do not arrive.
    pub fn lose_calls(&self, operation: Operation, count: usize) {
        self.add(operation, count, || Fault::Before);
    }

    /// The next calls of this kind arrive, but their answers are lost.
    pub fn lose_answers(&self, operation: Operation, count: usize) {
        self.add(operation, count, || Fault::After);
    }

    /// The backend refuses the next call of this kind with an error that will not pass.
    pub fn refuse(&self, operation: Operation) {
        self.add(operation, 1, || Fault::Refused);
    }

    /// Until told otherwise no call of this kind arrives.
    pub fn away(&self, operation: Operation, away: bool) {
        self.plan(operation, |plan| plan.away = away);
    }

    /// Holds back the answer of the next call of this kind. The first future ends when the
    /// backend has answered; dropping the sender lets the answer go.
    pub fn hold_answer(
        &self,
        operation: Operation,
    ) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let (reached, has_reached) = oneshot::channel();
        let (let_go, go) = oneshot::channel();
        self.plan(operation, |plan| plan.next.push_back(Fault::Late { reached, go }));
        (has_reached, let_go)
    }

    /// How many calls of this kind were made, whatever came of them.
    pub fn calls(&self, operation: Operation) -> usize {
        self.plan(operation, |plan| plan.calls)
    }

    fn add(&self, operation: Operation, count: usize, fault: impl Fn() -> Fault) {
        self.plan(operation, |plan| plan.next.extend((0..count).map(|_| fault())));
    }

    fn plan<T>(&self, operation: Operation, look: impl FnOnce(&mut Plan) -> T) -> T {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        look(plans.entry(operation).or_default())
    }
}

impl<P: LockProvider> LockProvider for Flaky<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    // `poll_acquire` and `release_now` are left out: every call goes the way on which it can fail.
    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired> {
        self.call(Operation::Acquire, self.inner.acquire(request)).await
    }
    async fn renew(&self, proof: Proof<'_>, ttl: Duration) -> Result<bool> {
        self.call(Operation::Renew, self.inner.renew(proof, ttl)).await
    }
    async fn release(&self, proof: Proof<'_>) -> Result<bool> {
        self.call(Operation::Release, self.inner.release(proof)).await
    }
    fn release_later(&self, proof: Proof<'_>) {
        self.inner.release_later(proof);
    }
    async fn hand_over(&self, proof: Proof<'_>) -> Result<bool> {
        self.call(Operation::HandOver, self.inner.hand_over(proof)).await
    }
    async fn rotate(&self, proof: Proof<'_>, fresh: Token, ttl: Duration) -> Result<Option<Grant>> {
        self.call(Operation::Rotate, self.inner.rotate(proof, fresh, ttl)).await
    }
    async fn inspect(&self, key: &Key) -> Result<Inspection> {
        self.call(Operation::Other, self.inner.inspect(key)).await
    }
    async fn list(&self, prefix: &str, page: &PageRequest) -> Result<Page> {
        self.call(Operation::Other, self.inner.list(prefix, page)).await
    }
    async fn break_lock(&self, key: &Key, fence: Option<Fence>) -> Result<Vec<Holder>> {
        self.call(Operation::Other, self.inner.break_lock(key, fence)).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
