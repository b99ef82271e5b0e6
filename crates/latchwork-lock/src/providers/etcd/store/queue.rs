//! The transactions on a key's queue: joining it, leaving it, and clearing what was left behind.

use etcd_client::{PutOptions, Txn, TxnOp};

use super::Store;
use super::compare::created_at;
use crate::providers::etcd::error::RequestError;
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::{KeyState, Requester, revision_of, txn_revision};
use crate::rules::Id;
use crate::{Fence, Key, Mode, Result};

impl Store {
    /// Joins the queue, or stays there. Returns the revision at which the requester is in it, and
    /// the state of the key if that was asked for, or if the requester holds the key already.
    pub(crate) async fn enqueue(
        &self,
        during: &'static str,
        requester: &Requester,
        lease: i64,
        read: bool,
    ) -> Result<(i64, Option<KeyState>), RequestError> {
        let Requester { key, id, mode, .. } = requester;
        let name = |part| self.names.entry(key.as_str(), part, *mode, *id);
        // If the entry exists, it keeps the revision of its creation, and so its position.
        let attached = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(name(Part::Wait), self.entry_value(requester), Some(attached));
        let entries = self.read_op(key.as_str());
        let then = std::iter::once(put).chain(read.then(|| entries.clone()));
        let txn = Txn::new()
            .when([created_at(name(Part::Hold), 0)])
            .and_then(then.collect::<Vec<_>>())
            .or_else([entries]);
        let (answer, _) = self.execute(during, txn).await?;
        let revision = txn_revision(&answer);
        let seen = (read || !answer.succeeded()).then(|| self.state_read(&answer, revision));
        Ok((revision, seen))
    }

    /// Leaves the queue, without ending a lease that was granted meanwhile.
    pub(crate) async fn dequeue(&self, during: &'static str, key: &Key, id: Id) -> Result<()> {
        let delete =
            |mode| TxnOp::delete(self.names.entry(key.as_str(), Part::Wait, mode, id), None);
        let txn = Txn::new().and_then([delete(Mode::Exclusive), delete(Mode::Shared)]);
        self.execute(during, txn).await.map(drop).map_err(|error| error.into_error(during))
    }

    /// Removes a waiter's entry if it is still at this position.
    pub(crate) async fn remove_waiter(
        &self,
        during: &'static str,
        key: &Key,
        mode: Mode,
        id: Id,
        position: i64,
    ) -> Result<()> {
        let name = self.names.entry(key.as_str(), Part::Wait, mode, id);
        self.delete_if_created_at(during, name, position).await
    }

    /// Returns a writer's lease that was delivered and not taken. Only the one with this fence: the
    /// waiter may join the queue again, and a late request must not end what it is granted then.
    pub(crate) async fn return_grant(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        fence: Fence,
    ) -> Result<()> {
        let name = self.names.entry(key.as_str(), Part::Hold, Mode::Exclusive, id);
        self.delete_if_created_at(during, name, revision_of(fence)).await?;
        drop(self.leases.forget_holder(id));
        Ok(())
    }

    async fn delete_if_created_at(
        &self,
        during: &'static str,
        name: String,
        revision: i64,
    ) -> Result<()> {
        let txn = Txn::new()
            .when([created_at(name.clone(), revision)])
            .and_then([TxnOp::delete(name, None)]);
        self.execute(during, txn).await.map(drop).map_err(|error| error.into_error(during))
    }
}
