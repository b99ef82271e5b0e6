//! The front door of the work layer.

mod apply;
mod blockers;
mod builder;
mod checkout;
mod claim;
mod client;
mod follow;
mod heartbeat;
mod inputs;
mod keyed_effect;
mod lease_end;
mod listen;
mod lookup;
mod maintenance;
mod operator;
mod parts;
mod propose;
mod query;
mod receipt;
mod review;
mod seal;
mod submit;
mod transition;
mod wake;

use std::sync::Arc;

use crate::store::Store;
use crate::{Actor, OrderTypes, TransitionTables};

pub use apply::{ApplyLease, ApplyWorker};
pub use blockers::{Blocker, BlockerCode, BlockerGroup, ItemExplanation, OrderExplanation};
pub use builder::WorkManagerBuilder;
pub use checkout::{CheckedOut, Checkout, HeldBack};
pub use client::{Answer, WorkClient};
pub(crate) use inputs::Inputs;
pub use keyed_effect::KeyedEffect;
pub use lease_end::Failure;
pub use listen::{
    EventFilter, EventPage, ListenFrom, Listener, ListenerPosition, SealNotices, Subscription,
};
pub use lookup::{Agent, ItemDetails, ItemResult, OrderDetails, StateCount, Timeline};
pub use maintenance::{Maintenance, MaintenanceReport, MaintenanceSettings};
pub use parts::{Finalize, SubmittedPart};
pub use propose::Notice;
pub use query::{
    INCLUDED_EVENTS, INCLUDED_ITEMS, ItemPage, LeasePage, ListedItem, ListedLease, ListedOrder,
    OrderPage,
};
pub use receipt::{Receipt, ReceiptEvent};
pub use review::{
    Approval, ApprovalInfo, Approved, Preview, Rejection, ResultEdit, ReviewError, ReviewStatus,
};
pub use seal::{Sealed, Verification};
pub use submit::{Submission, Submitted};
pub use transition::EventNote;
pub(crate) use wake::Waiters;

/// Orders and items in a database: programs, people and AI agents move shared state together.
///
/// Clones share the database. An actor works through [`client`](Self::client).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use latchwork_work::{Actor, Checkout, DynamicOrderType, OrderTypes, Proposal, Submission, WorkManager};
/// use serde_json::json;
///
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}", dir.path().join("work.db").display());
/// let mut types = OrderTypes::new();
/// types.add_dynamic(DynamicOrderType::new("translation"))?;
/// let work = WorkManager::builder(types).connect(&url).await?;
///
/// let ada = work.client(Actor::user("ada")?);
/// let order = ada.propose(Proposal::new("translation", json!({"text": "hello"}))).await?.order;
///
/// let agent = work.client(Actor::agent("agent-1")?);
/// let lease = agent.checkout(Checkout::any()).await?.leases.remove(0);
/// agent.submit(Submission::new(&lease, json!({"text": "hallo"}))).await?;
/// assert_eq!(work.order(order.id).await?.order.state.as_str(), "submitted");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct WorkManager {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) types: OrderTypes,
    pub(crate) tables: TransitionTables,
    pub(crate) max_leases_per_agent: Option<u32>,
    pub(crate) wake: wake::Wake,
    pub(crate) inputs: Inputs,
    /// For waiting only: leases are judged by the store's clock.
    pub(crate) clock: Arc<dyn latchwork_lock::Clock>,
    /// When this process last opened what had become due.
    pub(crate) promoted_at: parking_lot::Mutex<latchwork_lock::provider::Moment>,
}

impl WorkManager {
    /// Begins a manager for these order types.
    pub fn builder(types: OrderTypes) -> WorkManagerBuilder {
        WorkManagerBuilder::new(types)
    }

    /// What an actor can do.
    pub fn client(&self, actor: Actor) -> WorkClient {
        WorkClient::new(self.clone(), actor)
    }

    /// The order types that it knows.
    pub fn types(&self) -> &OrderTypes {
        &self.inner.types
    }

    /// The transition tables in force.
    pub fn tables(&self) -> &TransitionTables {
        &self.inner.tables
    }

    /// Wakes who waits for items of these types, which a lane held back.
    pub(crate) fn wake_opened(&self, types: std::collections::BTreeSet<String>) {
        if !types.is_empty() {
            self.inner.wake.notify(types.into_iter().collect());
        }
    }

    /// Wakes who waits for items that limits of these types, or of the agent, held back.
    pub(crate) fn wake_freed(&self, types: impl IntoIterator<Item = String>) {
        let mut types: std::collections::BTreeSet<_> = types.into_iter().collect();
        if !types.is_empty() && self.inner.max_leases_per_agent.is_some() {
            // The agent may wait for anything.
            types.extend(self.types().iter().map(|known| known.name().to_owned()));
        }
        self.wake_opened(types);
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Closes the connections. Waiting checkouts end with an error.
    pub async fn close(&self) {
        self.inner.wake.close();
        match &self.inner.store {
            #[cfg(feature = "sqlite")]
            Store::Sqlite(store) => store.close().await,
            #[cfg(feature = "postgres")]
            Store::Postgres(store) => store.pool().close().await,
        }
    }
}

impl std::fmt::Debug for WorkManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkManager").finish_non_exhaustive()
    }
}

/// How often a transaction begins anew that met another one.
pub(crate) const TRIES: u32 = 10;

/// One transaction: the block's value once it is committed. It begins anew where two transactions met
/// and neither has changed anything. With `begin_short` it changes a few rows, and waits for nothing but
/// the database.
macro_rules! transact {
    ($manager:expr, $session:ident => $body:block) => {
        $crate::manager::transact!(begin, $manager, $session => $body)
    };
    ($begin:ident, $manager:expr, $session:ident => $body:block) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let mut session = $manager.store().$begin().await?;
            let done: $crate::Result<_> = async {
                let $session = &mut session;
                $body
            }
            .await;
            let done = match done {
                Ok(value) => session.commit().await.map(|opened| {
                    $manager.wake_opened(opened);
                    value
                }),
                Err(error) => Err(session.rollback().await.err().unwrap_or(error)),
            };
            match done {
                Err(error)
                    if tries < $crate::manager::TRIES
                        && matches!(error.kind(), $crate::ErrorKind::Conflict { .. }) => {}
                done => break done,
            }
        }
    }};
}

/// One transaction that only reads.
macro_rules! read {
    ($manager:expr, $session:ident => $body:block) => {{
        let mut session = $manager.store().begin_read().await?;
        let done: $crate::Result<_> = async {
            let $session = &mut session;
            $body
        }
        .await;
        let _ = session.rollback().await;
        done
    }};
}

pub(crate) use {read, transact};
