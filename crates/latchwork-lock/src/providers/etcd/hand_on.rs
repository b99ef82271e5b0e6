//! How a lease ends: by a message of its own, or with the same that begins the next one.
//!
//! Where a writer releases and the next in line is a writer of this process, one transaction ends
//! the one lease and begins the other: one way to the server instead of two and a watch between
//! them. It compares that the one is still there, and that the other still has the place in which
//! it was first. Where that is out of date, the lease just ends. It does not compare that nobody
//! stands before it, which would read the whole queue at every hand-over: places are the revisions
//! of their creation, so newcomers stand behind, and who was first once is first for as long as it
//! stands there, however old the news of that may be.

use std::sync::Arc;

use etcd_client::{PutOptions, Txn, TxnOp, TxnOpResponse};

use super::batch::Way;
use super::call::Coming;
use super::compare::{exists, is};
use super::error::{self, Wrong};
use super::lease::Lasting;
use super::record::{self, Part};
use super::release::CutShort;
use super::store::{Store, revision};
use crate::rules::Id;
use crate::{Error, Fence, Grant, Key, Mode, Result};

impl Store {
    /// Ends a lease, or leaves the queue. True when it was held.
    pub(super) async fn release(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<bool> {
        self.release_and(during, key, id, true).await
    }

    /// The same, and hands it to nobody.
    pub(super) async fn release_alone(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
    ) -> Result<bool> {
        self.release_and(during, key, id, false).await
    }

    async fn release_and(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        hands_on: bool,
    ) -> Result<bool> {
        let name = |part, mode| self.names.entry(key.as_str(), part, mode, id);
        // One message where it is known what it holds; the rest is looked for where it does not.
        let mut unheard = false;
        if let Some((mode, fence)) = self.leases.held(id) {
            match self.end(during, key, id, mode, fence, hands_on).await {
                Ok(true) => {
                    self.leases.released(id);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(Wrong::Lost(_)) => unheard = true,
                Err(wrong) => return Err(wrong.error(during)),
            }
        }
        let delete = |part, mode| TxnOp::delete(name(part, mode), None);
        let txn = Txn::new().and_then([
            delete(Part::Hold, Mode::Exclusive),
            delete(Part::Hold, Mode::Shared),
            delete(Part::Wait, Mode::Exclusive),
            delete(Part::Wait, Mode::Shared),
        ]);
        let (answer, twice) =
            self.ask_again(txn, during).await.map_err(|wrong| wrong.error(during))?;
        self.leases.released(id);
        let held = answer.op_responses().iter().take(2).any(has_deleted);
        if !held && (twice || unheard) {
            // Ended by the question whose answer was lost, or before: it cannot be told.
            let reason = "the answer was lost, and the lease is over";
            return Err(Error::unavailable(error::NAME, during, reason, None));
        }
        Ok(held)
    }

    /// Ends a lease of this process; false when it is not there.
    async fn end(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        mode: Mode,
        fence: Option<Fence>,
        hands_on: bool,
    ) -> Result<bool, Wrong> {
        if hands_on
            && mode == Mode::Exclusive
            && let Some(next) = self.desk.next(key)
            && let Some(ended) = self.hand_on(during, key, id, fence, next).await?
        {
            return Ok(ended);
        }
        let name = self.names.entry(key.as_str(), Part::Hold, mode, id);
        let own = || TxnOp::delete(name.clone(), None);
        match self.link.share(&self.clock, key, None, own).await {
            Way::Together(done, _) => Ok(has_deleted(&done)),
            Way::Lost => Err(Wrong::lost(during)),
            Way::Alone(place) => {
                let asked = self.link.ask(during, move |member| async move {
                    member.kv.clone().delete(name, None).await
                });
                let gone = asked.await;
                drop(place);
                Ok(gone?.deleted() > 0)
            }
        }
    }

    /// Ends a writer's lease and begins that of the next; whether the first one was there. None where
    /// there is no lease of the server for the next one: nothing was changed.
    async fn hand_on(
        self: &Arc<Self>,
        during: &'static str,
        key: &Key,
        id: Id,
        fence: Option<Fence>,
        next: Coming,
    ) -> Result<Option<bool>, Wrong> {
        let party = next.party().clone();
        let Ok(lasting) = self.leases.lasting(during, party.ttl).await else { return Ok(None) };
        let Lasting { lease, judged_at } = lasting;
        let name = |part, id| self.names.entry(key.as_str(), part, Mode::Exclusive, id);
        let (own, ticket) = (name(Part::Hold, id), name(Part::Wait, party.id));
        let end = TxnOp::delete(own.clone(), None);
        let hangs_on = PutOptions::new().with_lease(lease.id);
        let begin =
            TxnOp::put(name(Part::Hold, party.id), self.about(&party).text(), Some(hangs_on));
        let txn = Txn::new()
            // While the one is there, nobody else holds the key: it is a writer.
            .when([exists(own), is(ticket.clone(), next.created)])
            .and_then([end.clone(), TxnOp::delete(ticket, None), begin])
            .or_else([end]);
        let cut_short = CutShort::new(self, &party, next.wanted());
        let asked =
            self.link.ask(during, move |member| async move { member.kv.clone().txn(txn).await });
        let answer = asked.await;
        if !matches!(answer, Err(Wrong::Lost(_))) {
            cut_short.answered();
        }
        match answer {
            Ok(answer) if answer.succeeded() => {
                let begun = record::fence_of(revision(&answer));
                self.leases.hold(party.id, Mode::Exclusive, Some(begun), lease);
                self.desk.served(key, next.created);
                let grant = Grant {
                    previous_fence: fence,
                    waited: true,
                    trusted_from: Some(judged_at),
                    ..Grant::first(begun)
                };
                if !next.arrived(grant, self.clock.now())
                    && let Err(error) = Box::pin(self.release(during, key, party.id)).await
                {
                    tracing::warn!(%key, %error, "nobody wants it: the ttl ends the lease");
                }
                Ok(Some(true))
            }
            Ok(answer) => Ok(Some(answer.op_responses().iter().any(has_deleted))),
            Err(Wrong::LeaseGone) => {
                self.leases.forget(&lease);
                Ok(None)
            }
            Err(wrong) => {
                // Whether it was heard is not known: an entry may hang on it.
                self.leases.doubt(party.id, &lease);
                Err(wrong)
            }
        }
    }

    /// Gives a lease back that its waiter did not look for. Not by its name alone: the waiter may
    /// stand in line again, and nothing that is late may end what it gets then.
    pub(super) async fn give_back(
        &self,
        during: &'static str,
        key: &Key,
        id: Id,
        fence: Fence,
    ) -> Result<()> {
        let name = self.names.entry(key.as_str(), Part::Hold, Mode::Exclusive, id);
        let txn = Txn::new()
            .when([is(name.clone(), record::revision_of(fence))])
            .and_then([TxnOp::delete(name, None)]);
        self.ask_again(txn, during).await.map_err(|wrong| wrong.error(during))?;
        drop(self.leases.let_go(id));
        Ok(())
    }

    /// Leaves the queue, and gives nothing back that was claimed meanwhile.
    pub(super) async fn leave(&self, during: &'static str, key: &Key, id: Id) -> Result<()> {
        let delete =
            |mode| TxnOp::delete(self.names.entry(key.as_str(), Part::Wait, mode, id), None);
        let txn = Txn::new().and_then([delete(Mode::Exclusive), delete(Mode::Shared)]);
        self.ask_again(txn, during).await.map(drop).map_err(|wrong| wrong.error(during))
    }
}

fn has_deleted(response: &TxnOpResponse) -> bool {
    matches!(response, TxnOpResponse::Delete(gone) if gone.deleted() > 0)
}
