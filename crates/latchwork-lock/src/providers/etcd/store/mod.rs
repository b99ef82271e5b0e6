//! The stored truth: transactions on the entries of keys.
//!
//! [`grant`] creates holders, [`queue`] waiters, [`renew`] renews and rotates holders, [`release`]
//! ends them, and [`inspect`] reads.
//!
//! Cancel safety: operations that change something must run to completion, as jobs of
//! [`background`](super::background): what they have been granted would be forgotten.

mod compare;
mod deferred_release;
pub(super) mod grant;
pub(super) mod inspect;
mod queue;
pub(super) mod release;
mod renew;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use deferred_release::DeferredReleases;
use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::cluster::Cluster;
use super::error::{NAME, RequestError};
use super::leases::Leases;
use super::names::Names;
use super::record::{EntryValue, KeyState, Requester};
use super::session::Session;
use super::waiters::WaiterRegistry;
use crate::{Clock, Error};

/// How often an operation is tried if its lease has ended or others were faster.
const MAX_TRIES: usize = 8;

/// One prefix of one cluster, with what this process holds and waits for there.
pub(super) struct Store {
    pub(super) cluster: Arc<Cluster>,
    pub(super) names: Names,
    pub(super) clock: Arc<dyn Clock>,
    process: Arc<str>,
    pub(super) leases: Leases,
    pub(super) waiters: Arc<WaiterRegistry>,
    pub(super) session: Arc<Session>,
    pub(super) releases: DeferredReleases,
}

impl Store {
    pub(super) fn new(cluster: Cluster, names: Names, clock: Arc<dyn Clock>) -> Self {
        let cluster = Arc::new(cluster);
        Store {
            leases: Leases::new(cluster.clone(), clock.clone()),
            session: Session::new(cluster.clone(), clock.clone()),
            cluster,
            names,
            clock,
            process: crate::process_label().into(),
            waiters: Arc::new(WaiterRegistry::default()),
            releases: DeferredReleases::new(),
        }
    }

    fn wall(&self) -> DateTime<Utc> {
        self.clock.wall()
    }

    /// Executes a transaction that may be executed twice; the flag says that it may have been.
    async fn execute(
        &self,
        during: &'static str,
        txn: Txn,
    ) -> Result<(TxnResponse, bool), RequestError> {
        let executing = self.cluster.request_with_retry(during, move |member| {
            let txn = txn.clone();
            async move { member.kv.clone().txn(txn).await }
        });
        executing.await
    }

    /// The value of a requester's entry.
    fn entry_value(&self, requester: &Requester) -> Vec<u8> {
        EntryValue::new(requester, &self.process, self.wall()).to_json()
    }

    /// Reads all entries of a key, without their values.
    fn read_op(&self, key: &str) -> TxnOp {
        let options = GetOptions::new().with_prefix().with_keys_only();
        TxnOp::get(self.names.key_prefix(key), Some(options))
    }

    /// The state of a key that a transaction has read.
    fn state_read(&self, answer: &TxnResponse, revision: i64) -> KeyState {
        let parts = answer.op_responses();
        let read = parts.iter().flat_map(|part| match part {
            TxnOpResponse::Get(read) => read.kvs(),
            _ => &[],
        });
        KeyState::read(&self.names, revision, read)
    }
}

fn has_deleted(response: &TxnOpResponse) -> bool {
    matches!(response, TxnOpResponse::Delete(answer) if answer.deleted() > 0)
}

/// The error when other clients were faster at every try.
pub(super) fn contended(during: &'static str) -> Error {
    Error::unavailable(NAME, during, "the key changes faster than it can be read", None)
}
