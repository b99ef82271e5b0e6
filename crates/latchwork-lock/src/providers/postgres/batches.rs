//! The batchers of a provider: requests of one process that share a message.
//!
//! A runtime with several threads has batchers of its own, over connections that it has opened: a
//! request that goes over another thread costs as much as the message. All other callers share those
//! on the provider's own thread, which also recovers what a runtime leaves behind when it ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::connections::{Connections, ROOMY};
use super::message::{BatchOutcome, Message, Sender};
use super::scripts::{AcquireCall, AcquireReply, ReleaseCall};
use super::store::{BACKGROUND, Store};
use crate::Result;
use crate::coordination::batcher::{Batcher, InFlight};
use crate::coordination::deferred_release::DeferredReleases;
use crate::coordination::runtimes::PerRuntime;

/// How many messages of a kind are in flight: while the server works on one, the next is made.
const WORKERS: usize = 2;

/// The most requests that share a message: enough to save most of it, and little to repeat.
const MAX_BATCH: usize = 64;

/// The most connections of a runtime's own: one for each worker, and for one that a caller sends.
const CONNECTIONS: u32 = 2 * WORKERS as u32 + 1;

/// How long such a connection stays open unused.
const IDLE: Duration = Duration::from_secs(30);

/// The batchers of all runtimes. They end with the last clone of the provider.
pub(super) struct Batches {
    pub(super) store: Arc<Store>,
    pub(super) releases: DeferredReleases<Store>,
    /// On the provider's own thread.
    own: RuntimeBatchers,
    /// Those of the callers' runtimes.
    others: PerRuntime<RuntimeBatchers>,
}

/// The batchers of one runtime.
pub(super) struct RuntimeBatchers {
    runtime: Option<Handle>,
    acquires: Batcher<Sender<AcquireCall>>,
    releases: Batcher<Sender<ReleaseCall>>,
}

/// A message that [`Batches`] can send.
trait Batched: Message {
    fn batcher(of: &RuntimeBatchers) -> &Batcher<Sender<Self>>;
}

impl Batched for AcquireCall {
    fn batcher(of: &RuntimeBatchers) -> &Batcher<Sender<Self>> {
        &of.acquires
    }
}

impl Batched for ReleaseCall {
    fn batcher(of: &RuntimeBatchers) -> &Batcher<Sender<Self>> {
        &of.releases
    }
}

impl Batches {
    pub(super) fn new(store: Store) -> Self {
        let store = Arc::new(store);
        let own = RuntimeBatchers::new(&store, store.pool.clone(), BACKGROUND.handle().ok());
        let releases = DeferredReleases::new(&store);
        Batches { store, releases, own, others: PerRuntime::default() }
    }

    /// Requests a lease in a message that it may share.
    ///
    /// Cancel safe: a grant whose caller has gone is released.
    pub(super) async fn acquire(&self, call: AcquireCall) -> Result<BatchOutcome<AcquireReply>> {
        self.send(call).await
    }

    /// Releases a lease in a message that it may share: whether it was held.
    ///
    /// Cancel safe: once begun, it is done.
    pub(super) async fn release(&self, call: ReleaseCall) -> Result<BatchOutcome<bool>> {
        self.send(call).await
    }

    async fn send<M: Batched>(&self, mut message: M) -> Result<BatchOutcome<M::Answer>> {
        // A pooler might give the parts of one statement to two sessions.
        if !self.store.has_own_sessions() {
            return Ok(BatchOutcome::UseRules);
        }
        // Only a panic answers nothing; then the rules find out.
        let unanswered = Ok(BatchOutcome::UseRules);
        if let Some(here) = self.current() {
            let batcher = M::batcher(&here);
            if let Some(runtime) = &here.runtime
                && message.may_send_inline(&self.store)
            {
                match batcher.try_send_inline(runtime, message) {
                    Ok(sending) => return sending.await.unwrap_or(unanswered),
                    Err(back) => message = back,
                }
            }
            match batcher.submit(message) {
                Ok(answer) => return answer.await.unwrap_or(unanswered),
                Err(back) => message = back, // that runtime is about to end
            }
        }
        match M::batcher(&self.own).submit(message) {
            Ok(answer) => answer.await.unwrap_or(unanswered),
            Err(_) => unanswered,
        }
    }

    /// The batchers of the current runtime, where it has its own.
    fn current(&self) -> Option<Arc<RuntimeBatchers>> {
        let pool = &self.store.pool;
        if pool.options().get_max_connections() < ROOMY {
            return None;
        }
        let make = |here: &Handle| {
            // A connection belongs to the runtime that opened it.
            let options = pool.options().clone().min_connections(0).max_connections(CONNECTIONS);
            let options = options.idle_timeout(IDLE).test_before_acquire(false);
            let own = options.connect_lazy_with((*pool.connect_options()).clone());
            RuntimeBatchers::new(&self.store, own, Some(here))
        };
        self.others.current(make, |batchers| batchers.acquires.is_closed())
    }
}

impl RuntimeBatchers {
    /// Without a runtime they take nothing.
    fn new(store: &Arc<Store>, pool: sqlx::PgPool, runtime: Option<&Handle>) -> Self {
        let runtime = runtime.cloned();
        let keeps = store.pool.options().get_max_connections() >= ROOMY;
        let keep_on = runtime.clone().filter(|_| keeps);
        let connections = Arc::new(Connections::new(pool, store.clock.clone(), keep_on));
        let in_flight = InFlight::default();
        RuntimeBatchers {
            acquires: start(store, &connections, &in_flight, runtime.as_ref()),
            releases: start(store, &connections, &in_flight, runtime.as_ref()),
            runtime,
        }
    }
}

fn start<M: Message>(
    store: &Arc<Store>,
    connections: &Arc<Connections>,
    in_flight: &InFlight,
    runtime: Option<&Handle>,
) -> Batcher<Sender<M>> {
    let sender = Arc::new(Sender::new(store.clone(), connections.clone()));
    let (batcher, workers) = Batcher::new(sender, in_flight.clone(), WORKERS, MAX_BATCH);
    if let Some(runtime) = runtime {
        workers.into_iter().for_each(|worker| drop(runtime.spawn(worker)));
    }
    batcher
}
