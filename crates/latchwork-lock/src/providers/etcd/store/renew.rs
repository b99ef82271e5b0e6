//! The operations on a holder's entry that keep the lease: renewing, handing over, rotating.

use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp, TxnOpResponse};

use super::compare::{created_at, exists};
use super::grant::GrantOutcome;
use super::{MAX_TRIES, Store, contended};
use crate::providers::etcd::error::{self, RequestError};
use crate::providers::etcd::lease::CheckedLease;
use crate::providers::etcd::names::Part;
use crate::providers::etcd::record::Requester;
use crate::rules::Id;
use crate::{Grant, Key, Mode, Result};

impl Store {
    /// Starts a new ttl; false if the id holds nothing.
    pub(crate) async fn renew(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        ttl: Duration,
    ) -> Result<bool> {
        let (known, fence) = self.leases.held(id).map_or((None, None), |(m, f)| (Some(m), f));
        for _ in 0..MAX_TRIES {
            // The caller trusts from before its request, and so from before this check.
            let CheckedLease { lease, .. } = self.leases.for_ttl(during, ttl).await?;
            let put = |mode| {
                let name = self.names.entry(key.as_str(), Part::Hold, mode, id);
                let same_value = PutOptions::new().with_lease(lease.id).with_ignore_value();
                (exists(name.clone()), TxnOp::put(name, "", Some(same_value)))
            };
            let (is_writer, writer) = put(Mode::Exclusive);
            let (is_reader, reader) = put(Mode::Shared);
            // Another process that has only the token does not know the mode.
            let txn = match known {
                Some(Mode::Exclusive) => Txn::new().when([is_writer]).and_then([writer]),
                Some(Mode::Shared) => Txn::new().when([is_reader]).and_then([reader]),
                None => {
                    let or = Txn::new().when([is_reader]).and_then([reader]);
                    Txn::new().when([is_writer]).and_then([writer]).or_else([TxnOp::txn(or)])
                }
            };
            lease.attach();
            match self.execute(during, txn).await {
                Ok((answer, _)) => {
                    let mode = if answer.succeeded() {
                        known.or(Some(Mode::Exclusive))
                    } else {
                        let inner = answer.op_responses();
                        let or =
                            matches!(inner.first(), Some(TxnOpResponse::Txn(or)) if or.succeeded());
                        or.then_some(Mode::Shared)
                    };
                    match mode {
                        Some(mode) => self.leases.hold(id, mode, fence, lease),
                        None => drop(self.leases.forget_holder(id)),
                    }
                    return Ok(mode.is_some());
                }
                Err(RequestError::LeaseNotFound) => self.leases.forget(&lease),
                Err(error) => {
                    lease.keep();
                    return Err(error.into_error(during));
                }
            }
        }
        Err(RequestError::LeaseNotFound.into_error(during))
    }

    /// Whether the id holds the key; if so, its lease is left to expire by its ttl, whatever becomes
    /// of this process.
    pub(crate) async fn hand_over(&self, during: &'static str, key: &Key, id: Id) -> Result<bool> {
        let held = self.read_key(during, key).await?.find(Part::Hold, id).is_some();
        if held {
            self.leases.hand_over(id);
        }
        Ok(held)
    }

    /// Replaces a grant's identity and raises its fence (L13).
    pub(crate) async fn rotate(
        &self,
        during: &'static str,
        key: &Key,
        old: Id,
        fresh: Id,
        ttl: Duration,
    ) -> Result<Option<Grant>> {
        for _ in 0..MAX_TRIES {
            let seen = self.read_key(during, key).await?;
            if let Some(done) = seen.find(Part::Hold, fresh) {
                return Ok(Some(Grant::first(done.fence())));
            }
            let Some(entry) = seen.find(Part::Hold, old) else { return Ok(None) };
            let value = entry.value().map_err(|what| error::unreadable(during, what))?;
            let requester = Requester {
                key: key.clone(),
                id: fresh,
                mode: entry.mode,
                owner: value.owner,
                note: value.note,
                ttl,
            };
            let name = self.names.entry(key.as_str(), Part::Hold, entry.mode, old);
            let conditions = vec![created_at(name.clone(), entry.created)];
            let deletes = vec![TxnOp::delete(name, None)];
            let outcome = self.grant(during, &requester, conditions, deletes).await?;
            if let GrantOutcome::Granted(grant) = outcome {
                drop(self.leases.forget_holder(old));
                // Of several readers it is not known which one was the last before.
                let previous_fence = (entry.mode == Mode::Exclusive).then(|| entry.fence());
                return Ok(Some(Grant { previous_fence, ..grant }));
            }
        }
        Err(contended(during))
    }
}
