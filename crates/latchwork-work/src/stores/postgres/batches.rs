//! Claims and submissions of one process that come together share a statement.
//!
//! A request that comes alone is sent by its caller; those that come while others are under way go
//! together with the next message ([`latchwork_lock::coordination::batcher`]). If the database refuses a
//! statement, nothing of it has happened, and each of its requests goes the general way, alone: so one that
//! the database cannot take spoils no other one, and is told what is wrong with it. If it is not known what
//! became of a statement, none of its requests is told that it succeeded.

use std::sync::Arc;

use latchwork_lock::coordination::batcher::{
    Batch, BatchHandler, BatchedRequest, Batcher, InFlight,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::error::NAME;
use super::scripts::{Claimed, PlainSubmission, PlainSubmitted, Scripts, Slot, Wanted};
use crate::{Error, ErrorKind, EventId, ItemMove, OrderId, Result};

/// So many requests share a statement at most.
const MOST: usize = 64;

/// So many items a statement leases at most, unless one request wants more.
const MOST_ITEMS: usize = 1_000;

/// So many messages are under way at a time, besides one that its caller sends. More would not share.
const WORKERS: usize = 2;

/// A claim of one agent.
pub(crate) struct ClaimRequest {
    pub(crate) wanted: Wanted,
    pub(crate) slots: Vec<Slot>,
}

/// A submission of one agent.
pub(crate) struct SubmitRequest {
    pub(crate) submission: PlainSubmission,
    pub(crate) steps: [ItemMove; 2],
}

/// What became of a submission.
pub(crate) struct SubmitAnswer {
    /// None where the general way has to decide, which also says what is wrong.
    pub(crate) done: Option<PlainSubmitted>,
    /// Whether its order has to follow; `None` where that could not be asked.
    pub(crate) lags: Option<bool>,
}

/// The statements of this process that can be shared.
pub(super) struct Batches {
    claims: Shared<Claims>,
    submissions: Shared<Submissions>,
}

impl Batches {
    pub(super) fn new(scripts: &Scripts) -> Self {
        Batches {
            claims: Shared::new(Claims(scripts.clone())),
            submissions: Shared::new(Submissions(scripts.clone())),
        }
    }

    /// Leases what can be leased at once. Dropped before it is sent, it leases nothing.
    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        self.claims.send(request).await.unwrap_or_else(|| Err(unanswered()))
    }

    /// Submits a result. Dropped before it is sent, it submits nothing.
    pub(super) async fn submit(&self, request: SubmitRequest) -> Result<SubmitAnswer> {
        self.submissions.send(request).await.unwrap_or_else(|| Err(unanswered()))
    }
}

/// A batcher whose workers live in the runtime that used it first, or, when that has ended, in the
/// next one.
struct Shared<H: BatchHandler> {
    handler: Arc<H>,
    current: Mutex<Option<Arc<Batcher<H>>>>,
}

impl<H: BatchHandler> Shared<H> {
    fn new(handler: H) -> Self {
        Shared { handler: Arc::new(handler), current: Mutex::default() }
    }

    async fn send(&self, item: H::Item) -> Option<H::Answer> {
        let runtime = Handle::current();
        let batcher = self.batcher(&runtime);
        let item = match batcher.try_send_inline(&runtime, item) {
            Ok(sending) => return sending.await,
            Err(item) => item,
        };
        batcher.submit(item).ok()?.await.ok()
    }

    fn batcher(&self, runtime: &Handle) -> Arc<Batcher<H>> {
        let mut current = self.current.lock();
        if let Some(batcher) = current.as_ref().filter(|batcher| !batcher.is_closed()) {
            return batcher.clone();
        }
        let (handler, in_flight) = (self.handler.clone(), InFlight::default());
        let (batcher, workers) = Batcher::new(handler, in_flight, WORKERS, MOST);
        workers.into_iter().for_each(|worker| drop(runtime.spawn(worker)));
        current.insert(Arc::new(batcher)).clone()
    }
}

struct Claims(Scripts);

impl BatchHandler for Claims {
    type Item = ClaimRequest;
    type Answer = Result<Claimed>;
    type Resource = ();

    async fn prepare(&self) {}

    fn is_usable(&self, (): &()) -> bool {
        true
    }

    async fn send(&self, (): (), batch: &mut Batch<Self>) {
        batch.mark_sent();
        // The general way looks for itself, unless something else is known.
        let unsure = || Claimed { leases: Vec::new(), is_unsure: true };
        let mut answers: Vec<Self::Answer> = batch.items().map(|_| Ok(unsure())).collect();
        for group in groups(batch.items()) {
            let requests: Vec<_> =
                batch.items().enumerate().filter(|(n, _)| group.contains(n)).collect();
            let mut slots: Vec<Slot> =
                requests.iter().flat_map(|(_, request)| request.slots.iter().cloned()).collect();
            slots.iter_mut().enumerate().for_each(|(n, slot)| slot.n = n);
            let Some((_, first)) = requests.first() else { continue };
            match self.0.claim(&first.wanted, &slots).await {
                Ok(Claimed { leases, is_unsure }) => {
                    for n in &group {
                        answers[*n] = Ok(Claimed { is_unsure, ..Claimed::default() });
                    }
                    for lease in leases {
                        let is_of = |request: &ClaimRequest| {
                            request.slots.iter().any(|slot| slot.lease == lease.id)
                        };
                        let of = requests.iter().find(|(_, request)| is_of(request));
                        if let Some((n, _)) = of
                            && let Ok(answer) = &mut answers[*n]
                        {
                            answer.leases.push(lease);
                        }
                    }
                }
                Err(error) if is_undone(&error) => {}
                Err(error) => {
                    for (n, again) in group.iter().zip(copies(error, group.len())) {
                        answers[*n] = Err(again);
                    }
                }
            }
        }
        for (request, answer) in batch.drain().zip(answers) {
            let _ = request.reply.send(answer);
        }
    }

    fn is_cancellable(&self, _: &ClaimRequest) -> bool {
        true
    }

    /// Its caller gets no answer, and says so.
    fn recover(&self, request: BatchedRequest<Self>, _was_sent: bool) {
        drop(request);
    }
}

/// Which requests can share a statement, by their places.
fn groups<'r>(requests: impl Iterator<Item = &'r ClaimRequest>) -> Vec<Vec<usize>> {
    let mut groups: Vec<(&Wanted, usize, Vec<usize>)> = Vec::new();
    for (n, request) in requests.enumerate() {
        let items = request.slots.len();
        let fits = |(wanted, sum, _): &&mut (&Wanted, usize, Vec<usize>)| {
            **wanted == request.wanted && *sum + items <= MOST_ITEMS
        };
        match groups.iter_mut().find(fits) {
            Some((_, sum, places)) => {
                *sum += items;
                places.push(n);
            }
            None => groups.push((&request.wanted, items, vec![n])),
        }
    }
    groups.into_iter().map(|(_, _, places)| places).collect()
}

struct Submissions(Scripts);

impl BatchHandler for Submissions {
    type Item = SubmitRequest;
    type Answer = Result<SubmitAnswer>;
    type Resource = ();

    async fn prepare(&self) {}

    fn is_usable(&self, (): &()) -> bool {
        true
    }

    async fn send(&self, (): (), batch: &mut Batch<Self>) {
        batch.mark_sent();
        // All of them have the moves of one manager's tables.
        let Some(steps) = batch.items().next().map(|request| request.steps) else { return };
        let submissions: Vec<_> = batch.items().map(|request| &request.submission).collect();
        let submitted = self.0.submit(&submissions, steps).await;
        let answers: Vec<Self::Answer> = match submitted {
            Ok(submitted) => {
                let events: Vec<_> = submissions.iter().map(|one| one.second).collect();
                self.answers(&events, submitted).await
            }
            Err(error) if is_undone(&error) => {
                batch.items().map(|_| Ok(SubmitAnswer { done: None, lags: None })).collect()
            }
            Err(error) => copies(error, batch.len()).into_iter().map(Err).collect(),
        };
        for (request, answer) in batch.drain().zip(answers) {
            let _ = request.reply.send(answer);
        }
    }

    fn is_cancellable(&self, _: &SubmitRequest) -> bool {
        true
    }

    /// Its caller gets no answer, and says so.
    fn recover(&self, request: BatchedRequest<Self>, _was_sent: bool) {
        drop(request);
    }
}

impl Submissions {
    /// What each of the submissions is told, in their order; looks at all of their orders at once.
    async fn answers(
        &self,
        events: &[EventId],
        mut submitted: Vec<PlainSubmitted>,
    ) -> Vec<Result<SubmitAnswer>> {
        let mut orders: Vec<OrderId> = submitted.iter().map(|one| one.submitted.order_id).collect();
        orders.sort_unstable();
        orders.dedup();
        let lagging = match orders.is_empty() {
            true => Some(Vec::new()),
            false => self.0.lagging(&orders).await.ok(),
        };
        let answer = |event: &EventId| {
            let at = submitted.iter().position(|one| one.event == *event);
            let done = at.map(|at| submitted.swap_remove(at));
            let order = done.as_ref().map(|done| done.submitted.order_id);
            // The first of an order moves it; the others would wait for that.
            let lags = lagging.as_ref().zip(order).map(|(lagging, order)| lagging.contains(&order));
            Ok(SubmitAnswer { done, lags })
        };
        events.iter().map(answer).collect()
    }
}

/// Whether the database has refused the statement, so that nothing of it has happened.
fn is_undone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict { .. } | ErrorKind::StoreBackend { .. })
}

/// The same error for several callers.
fn copies(error: Error, count: usize) -> Vec<Error> {
    let message = error.to_string();
    let mut all = vec![error];
    all.resize_with(count, || {
        let (store, message) = (NAME, message.clone());
        ErrorKind::StoreUnavailable { store, message, source: None }.into()
    });
    all
}

fn unanswered() -> Error {
    let message = "the runtime that should have sent the request has ended".to_owned();
    ErrorKind::StoreUnavailable { store: NAME, message, source: None }.into()
}
