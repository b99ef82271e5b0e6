//! The transactions that grant a lease: each creates a holder's entry if nothing conflicts.

use etcd_client::{Compare, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::compare::{all_created_at, created_at, none, unchanged_since};
use super::{MAX_TRIES, Store};
use crate::providers::etcd::cluster::batch::SendOutcome;
use crate::providers::etcd::error::{self, RequestError};
use crate::providers::etcd::lease::CheckedLease;
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::{self, Entry, KeyState, Requester};
use crate::{Grant, Mode, Result};

/// What became of an attempt: the grant, or the entries that were in the way.
pub(crate) enum GrantOutcome {
    Granted(Grant),
    Blocked(KeyState),
}

impl Store {
    /// Grants a free key, or, to a reader without an owner, one that readers hold and nobody waits
    /// for. A blocked attempt reads the holders and the requester's own queue entry, and all entries
    /// if the requester named an owner. It reads nothing if a requester without an owner joins the
    /// queue next, since every byte of a transaction is written to the disks of all members.
    pub(crate) async fn grant_if_free(
        &self,
        during: &'static str,
        requester: &Requester,
        waits: bool,
    ) -> Result<GrantOutcome> {
        let key = requester.key.as_str();
        let read = |prefix: String| TxnOp::get(prefix, Some(GetOptions::new().with_prefix()));
        let otherwise = match requester.owner {
            Some(_) => vec![read(self.names.key_prefix(key))],
            None if waits => Vec::new(),
            None => {
                let queued = self.names.entry(key, Part::Wait, requester.mode, requester.id);
                vec![read(self.names.part_prefix(key, Part::Hold)), TxnOp::get(queued, None)]
            }
        };
        let conditions = if requester.mode == Mode::Shared && requester.owner.is_none() {
            vec![
                none(self.names.exclusive_holder_prefix(key)),
                none(self.names.part_prefix(key, Part::Wait)),
            ]
        } else {
            vec![none(self.names.key_prefix(key))]
        };
        self.grant_or_read(during, requester, conditions, Vec::new(), otherwise).await
    }

    /// Grants a key whose holders are still those that were read, and that nobody waits for.
    pub(crate) async fn grant_beside(
        &self,
        during: &'static str,
        requester: &Requester,
        seen: &KeyState,
    ) -> Result<GrantOutcome> {
        let key = requester.key.as_str();
        let conditions = vec![
            none(self.names.part_prefix(key, Part::Wait)),
            self.no_conflicting_holder(requester),
            self.no_new_holder(key, seen),
        ];
        self.grant(during, requester, conditions, Vec::new()).await
    }

    /// Replaces the lease of the same owner, if no other holder conflicts (L7).
    pub(crate) async fn take_over(
        &self,
        during: &'static str,
        requester: &Requester,
        old: &Entry,
    ) -> Result<GrantOutcome> {
        let key = requester.key.as_str();
        let name = self.names.entry(key, Part::Hold, old.mode, old.id);
        // Every entry in the range is the old one; no other has its revision.
        let no_other = match (requester.mode, old.mode) {
            (Mode::Exclusive, _) => {
                all_created_at(self.names.part_prefix(key, Part::Hold), old.created)
            }
            (Mode::Shared, Mode::Exclusive) => {
                all_created_at(self.names.exclusive_holder_prefix(key), old.created)
            }
            (Mode::Shared, Mode::Shared) => none(self.names.exclusive_holder_prefix(key)),
        };
        let conditions = vec![no_other, created_at(name.clone(), old.created)];
        self.grant(during, requester, conditions, vec![TxnOp::delete(name, None)]).await
    }

    /// Grants a key to a waiter that is first in the queue. It need not be compared that nobody is
    /// before it: that was so when it became first, and new waiters join at the end.
    pub(crate) async fn claim(
        &self,
        during: &'static str,
        requester: &Requester,
        position: i64,
    ) -> Result<GrantOutcome> {
        let key = requester.key.as_str();
        let queued = self.names.entry(key, Part::Wait, requester.mode, requester.id);
        let mut conditions =
            vec![created_at(queued.clone(), position), self.no_conflicting_holder(requester)];
        let mut deletes = vec![TxnOp::delete(queued, None)];
        // Two requests of one owner may have waited together: an owner has one lease of a key.
        if let (Mode::Shared, Some(owner)) = (requester.mode, &requester.owner) {
            let seen = self.read_key(during, &requester.key).await?;
            conditions.push(self.no_new_holder(key, &seen));
            let own = seen.held_by(owner).map_err(|what| error::unreadable(during, what))?;
            deletes.extend(own.map(|entry| {
                TxnOp::delete(self.names.entry(key, Part::Hold, entry.mode, entry.id), None)
            }));
        }
        self.grant(during, requester, conditions, deletes).await
    }

    /// Grants under these conditions, or reads the entries of the key.
    pub(super) async fn grant(
        &self,
        during: &'static str,
        requester: &Requester,
        conditions: Vec<Compare>,
        deletes: Vec<TxnOp>,
    ) -> Result<GrantOutcome> {
        let otherwise = vec![self.read_op(requester.key.as_str())];
        self.grant_or_read(during, requester, conditions, deletes, otherwise).await
    }

    /// The transaction that grants.
    async fn grant_or_read(
        &self,
        during: &'static str,
        requester: &Requester,
        conditions: Vec<Compare>,
        deletes: Vec<TxnOp>,
        otherwise: Vec<TxnOp>,
    ) -> Result<GrantOutcome> {
        let Requester { key, id, mode, ttl, .. } = requester;
        let name = self.names.entry(key.as_str(), Part::Hold, *mode, *id);
        let value = self.entry_value(requester);
        for _ in 0..MAX_TRIES {
            let CheckedLease { lease, checked_at } = self.leases.for_ttl(during, *ttl).await?;
            let mut then = deletes.clone();
            let attached = PutOptions::new().with_lease(lease.id);
            then.push(TxnOp::put(name.clone(), value.clone(), Some(attached)));
            let txn = Txn::new().when(conditions.clone()).and_then(then).or_else(otherwise.clone());
            let send_by = lease.usable_until(*ttl);
            let operation = || TxnOp::txn(txn.clone());
            lease.attach();
            let sent = self.cluster.enqueue_op(&self.clock, key, Some(send_by), operation).await;
            if matches!(sent, SendOutcome::Direct(None)) && self.clock.now() > send_by {
                lease.not_attached();
                continue; // it has waited for too long to be sent
            }
            // If it is executed twice, the second time finds the first one's entry.
            match self.execute_sent(during, sent, txn).await {
                Ok((answer, revision, twice)) => {
                    if twice {
                        self.leases.keep_until_known(*id, &lease);
                    }
                    if answer.succeeded() {
                        let fence = record::fence_of(revision);
                        self.leases.hold(*id, *mode, Some(fence), lease);
                        let trusted_from = Some(checked_at);
                        let grant = Grant { trusted_from, ..Grant::first(fence) };
                        return Ok(GrantOutcome::Granted(grant));
                    }
                    if !twice {
                        lease.not_attached();
                    }
                    let seen = self.state_read(&answer, revision);
                    if twice && let Some(own) = seen.find(Part::Hold, *id) {
                        self.leases.hold(*id, *mode, Some(own.fence()), lease);
                    }
                    return Ok(GrantOutcome::Blocked(seen));
                }
                Err(RequestError::LeaseNotFound) => self.leases.forget(&lease),
                Err(error) => {
                    // It may have been executed: an entry may be attached to the lease.
                    self.leases.keep_until_known(*id, &lease);
                    return Err(error.into_error(during));
                }
            }
        }
        Err(RequestError::LeaseNotFound.into_error(during))
    }

    /// Completes a transaction that was sent with others, or sends it: the answer, the revision of
    /// its execution, and whether it may have been executed twice.
    async fn execute_sent(
        &self,
        during: &'static str,
        sent: SendOutcome,
        txn: Txn,
    ) -> Result<(TxnResponse, i64, bool), RequestError> {
        let (answer, twice) = match sent {
            SendOutcome::Batched(TxnOpResponse::Txn(answer), revision) => {
                return Ok((answer, revision, false));
            }
            SendOutcome::Batched(..) | SendOutcome::Unknown => {
                let again = self
                    .cluster
                    .request(during, move |member| async move { member.kv.clone().txn(txn).await });
                (again.await?, true)
            }
            SendOutcome::Direct(slot) => {
                let executed = self.execute(during, txn).await;
                drop(slot);
                executed?
            }
        };
        let revision = record::txn_revision(&answer);
        Ok((answer, revision, twice))
    }

    /// No holder excludes this mode.
    fn no_conflicting_holder(&self, requester: &Requester) -> Compare {
        let key = requester.key.as_str();
        none(match requester.mode {
            Mode::Exclusive => self.names.part_prefix(key, Part::Hold),
            Mode::Shared => self.names.exclusive_holder_prefix(key),
        })
    }

    /// No holder has come since the state was read.
    fn no_new_holder(&self, key: &str, seen: &KeyState) -> Compare {
        unchanged_since(self.names.part_prefix(key, Part::Hold), seen.revision)
    }
}
