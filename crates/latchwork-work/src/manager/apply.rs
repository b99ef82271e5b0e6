//! The apply step: a worker leases an approved order, makes its changes, and records them once (W7).
//!
//! The lease is columns of the order's row: worker, end and fence. A worker that dies leaves its lease to
//! run out; the next one gets a higher fence and begins anew with the same idempotency key. Everything
//! is recorded under the lock of the order and only with the order's fence, so a worker that lost its
//! lease records nothing, however late it wakes.

mod change;
mod hooks;
mod record;

use std::time::Duration;

use chrono::{DateTime, Utc};
use latchwork_lock::provider::Moment;
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::hooks::{Heartbeat, Ran};
use super::review::check_version;
use super::wake::Wishes;
use super::{WorkManager, read, transact};
use crate::store::Note;
use crate::{
    ApplyStep, Error, ErrorKind, EventType, Order, OrderContent, OrderId, OrderState,
    RegisteredType, Result,
};

/// Applies approved orders, one after another. Run as many as you like, in as many processes.
///
/// ```no_run
/// # async fn example(work: latchwork_work::WorkManager) -> latchwork_work::Result<()> {
/// tokio::spawn(work.apply_worker("worker-1")?.run());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ApplyWorker {
    manager: WorkManager,
    name: String,
}

/// That a worker applies an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApplyLease {
    /// The worker.
    pub worker: String,
    /// When another one may take over, unless it is extended.
    pub expires_at: DateTime<Utc>,
    /// Its fence.
    pub fence: u64,
}

/// An order that a worker has leased.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    order: Order,
    fence: u64,
    attempt: u32,
    version: u32,
    worker: String,
    /// A moment before the lease was asked for.
    asked_at: Moment,
}

/// How long a worker sleeps without a notice.
const FALLBACK: Duration = Duration::from_millis(1_000);

/// How long an order is left to workers that know its version of the type.
const OTHER_VERSION: Duration = Duration::from_secs(5);

/// How long an order is left alone whose row cannot be read.
const UNREADABLE: Duration = Duration::from_secs(60);

/// What became of the search for an order.
enum Picked {
    Nothing,
    /// One that cannot be read. It is left alone for a while, so that the others get their turn.
    Unreadable,
    Order(Box<Claimed>),
}

impl WorkManager {
    /// A worker that applies approved orders of the types that this manager knows.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a name that an actor could not have.
    pub fn apply_worker(&self, name: impl Into<String>) -> Result<ApplyWorker> {
        let name = crate::Actor::agent(name)?.id.unwrap_or_default();
        Ok(ApplyWorker { manager: self.clone(), name })
    }

    /// Who applies an order at this time; none where nobody does.
    ///
    /// # Errors
    /// [`OrderNotFound`](ErrorKind::OrderNotFound).
    pub async fn apply_lease(&self, order: OrderId) -> Result<Option<ApplyLease>> {
        read!(self, session => {
            let state = session.review_state(order).await?;
            let held = state.worker.zip(state.until).filter(|(_, until)| *until > session.now());
            Ok(held.map(|(worker, expires_at)| ApplyLease { worker, expires_at, fence: state.fence }))
        })
    }

    /// Takes an order back from its apply worker, so that another one can have it at once. What the
    /// worker records from now on is refused; what it does elsewhere is not stopped.
    ///
    /// # Errors
    /// [`OrderNotFound`](ErrorKind::OrderNotFound).
    pub async fn take_back_apply(&self, order: OrderId) -> Result<()> {
        let order = transact!(self, session => {
            let order = session.lock_order(order).await?;
            session.expire_apply(order.id).await?;
            Ok(order)
        })?;
        self.wake_apply(&order.order_type);
        Ok(())
    }

    /// Tells apply workers that an order of a type was approved.
    pub(super) fn wake_apply(&self, order_type: &str) {
        self.inner.wake.notify(vec![topic(order_type)]);
    }
}

/// Whether `stop` resolves before `other` does.
async fn ends_first(stop: impl Future<Output = ()> + Unpin, other: impl Future) -> bool {
    tokio::select! {
        biased;
        () = stop => true,
        _ = other => false,
    }
}

/// What an apply worker waits for; no order type has such a name.
fn topic(order_type: &str) -> String {
    format!("{}{order_type}", super::wake::APPLY)
}

impl ApplyWorker {
    /// Runs until it is dropped. Errors of the store are logged and tried again.
    ///
    /// Cancel safe: an order that it was applying is taken up by another worker when its lease has run
    /// out. [`run_until`](Self::run_until) finishes it instead.
    pub async fn run(self) {
        self.run_until(std::future::pending()).await;
    }

    /// The same until `stop` resolves: an order that it is applying then is finished first, and no
    /// other one is begun.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        let types = self.manager.types().iter().map(|known| topic(known.name())).collect();
        let wishes = Wishes { types, rest: "apply".to_owned() };
        let group = self.manager.inner.wake.group(&wishes);
        let mut stop = std::pin::pin!(stop);
        loop {
            let woken = group.notified();
            // An apply is not raced against the stop, which would drop it halfway.
            match self.apply_next().await {
                // Another one may wait behind it.
                Ok(Some(_)) => group.notify_one(),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(worker = %self.name, %error, "applying failed; trying again");
                    let pause = tokio::time::sleep(FALLBACK);
                    if ends_first(&mut stop, pause).await {
                        return;
                    }
                }
            }
            if ends_first(&mut stop, tokio::time::timeout(FALLBACK, woken)).await {
                return;
            }
        }
    }

    /// Applies the most urgent approved order, or what is left to do of an applied one; none where
    /// there is nothing to do. An order that failed by its own type is told by its state.
    ///
    /// # Errors
    /// The store's.
    pub async fn apply_next(&self) -> Result<Option<Order>> {
        self.take(None).await
    }

    /// The same of a certain order; none where it cannot be applied now.
    ///
    /// # Errors
    /// The store's.
    pub async fn apply(&self, order: OrderId) -> Result<Option<Order>> {
        self.take(Some(order)).await
    }

    async fn take(&self, only: Option<OrderId>) -> Result<Option<Order>> {
        let claimed = loop {
            match self.claim(only).await? {
                Picked::Nothing => return Ok(None),
                Picked::Unreadable => {}
                Picked::Order(claimed) => break *claimed,
            }
        };
        let id = claimed.order.id;
        self.process(claimed).await?;
        read!(self.manager, session => { session.order(id).await.map(Some) })
    }

    /// Leases an order, with the next fence.
    async fn claim(&self, only: Option<OrderId>) -> Result<Picked> {
        let types: Vec<_> = self.manager.types().iter().map(|known| known.name()).collect();
        transact!(self.manager, session => {
            let asked_at = self.manager.inner.clock.now();
            let Some(id) = session.pick_apply(&types, only).await? else {
                return Ok(Picked::Nothing);
            };
            let found = match session.order(id).await {
                Ok(order) => session.review_state(id).await.map(|state| (order, state)),
                Err(error) => Err(error),
            };
            let (order, state) = match found {
                Err(error) if error.is_damage() => {
                    tracing::warn!(order = %id, %error, "an order cannot be applied; it is left for later");
                    let after = session.now() + UNREADABLE;
                    session.end_apply(id, 0, after).await?;
                    return Ok(Picked::Unreadable);
                }
                found => found?,
            };
            self.manager.types().get(&order.order_type)?;
            let until = session.now() + lease_of(&order);
            if let Some(worker) = &state.worker {
                let payload = json!({"worker": worker, "fence": state.fence, "stage": "apply",
                    "lease_expires_at": state.until});
                let note = Note::system("the apply lease ran out").payload(payload);
                session.record(id, None, EventType::LeaseExpired, note).await?;
            }
            session.claim_apply(id, &self.name, until).await?;
            let version = state.approved_version.unwrap_or_default();
            let (fence, attempt, worker) = (state.fence + 1, state.tries + 1, self.name.clone());
            let claimed = Claimed { order, fence, attempt, version, worker, asked_at };
            Ok(Picked::Order(Box::new(claimed)))
        })
    }

    async fn process(&self, claimed: Claimed) -> Result<()> {
        let known = self.manager.types().get(&claimed.order.order_type)?.clone();
        if check_version(&claimed.order, &known).is_err() {
            tracing::warn!(order = %claimed.order.id, "this program has another version of the order's type");
            return self.hand_back(&claimed, OTHER_VERSION).await;
        }
        match self.run_hooks(&claimed, &known).await {
            // It would be so for every worker.
            Err(error) if error.is_damage() => self.fail_unreadable(&claimed, &error).await,
            done => done,
        }
    }

    async fn run_hooks(&self, claimed: &Claimed, known: &RegisteredType) -> Result<()> {
        let mut heartbeat = Heartbeat::start(&self.manager, claimed);
        let step =
            || ApplyStep::new(claimed.order.id, claimed.fence, claimed.attempt, &claimed.worker);
        let content = read!(self.manager, session => { session.content(&claimed.order).await })?;
        if claimed.order.state == OrderState::Approved {
            match self.change(claimed, known, &content, &heartbeat, step()).await? {
                true => {}
                false => return Ok(()),
            }
            if claimed.order.settings.apply.in_transaction {
                heartbeat = Heartbeat::resume(&self.manager, claimed);
            }
        }
        let applied = read!(self.manager, session => { session.applied(claimed.order.id).await })?;
        let Some(applied) = applied else { return Ok(()) };
        let attempt = match claimed.order.state {
            OrderState::Approved => 1,
            _ => claimed.attempt,
        };
        let settings = &claimed.order.settings.apply;
        if attempt > settings.max_attempts.max(settings.cleanup.max_attempts.into()) {
            let message = format!(
                "after_apply was begun {} times, and no worker came to its end; the changes are made",
                attempt - 1
            );
            return self.fail_cleanup(claimed, "cleanup_attempts", &message).await;
        }
        let content = OrderContent { order: self.current(claimed).await?, ..content };
        let step = step();
        let cleaned = known.after_apply(&content, &applied.diff, &step);
        match heartbeat.run(cleaned).await {
            Ran::Done(()) => self.complete(claimed).await,
            Ran::Failed { code, message } => {
                self.clean_later(claimed, attempt, code, &message).await
            }
            Ran::Lost => Ok(()),
        }
    }

    async fn current(&self, claimed: &Claimed) -> Result<Order> {
        read!(self.manager, session => { session.order(claimed.order.id).await })
    }
}

/// How long a worker has an order without a sign of life. In the store's transaction the row is locked,
/// and nobody could extend the lease.
fn lease_of(order: &Order) -> Duration {
    let settings = &order.settings.apply;
    match settings.in_transaction {
        true => settings.lease_ttl + settings.time_limit,
        false => settings.lease_ttl,
    }
}

/// Whether an error says that nobody knows what became of the transaction.
fn is_doubtful(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StoreUnavailable { .. })
}
