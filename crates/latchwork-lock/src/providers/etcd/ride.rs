//! Standing in line along the way, with the transaction that hands the key on.
//!
//! Where a key goes around, each who has given it back soon wants it again. To stand in line would be
//! one more write, for which the next hand-over must wait. So it waits a moment for that hand-over,
//! and is written with it.

use std::time::Duration;

use etcd_client::{Txn, TxnOp, TxnOpResponse};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::{Party, Store};
use crate::rules::Id;

/// How long one waits for a hand-over to go with.
const PATIENCE: Duration = Duration::from_millis(1);

/// For how long after a hand-over the next one is expected.
pub(super) const FLOWS: Duration = Duration::from_millis(3);

/// One who stands in line with somebody else's transaction.
pub(super) struct Rider {
    pub(super) id: Id,
    stands: Txn,
    tell: oneshot::Sender<i64>,
}

impl Rider {
    /// False when nobody waits for it any more: then it must not go.
    pub(super) fn is_wanted(&self) -> bool {
        !self.tell.is_closed()
    }

    /// What it adds to a transaction, as the last operation of either branch.
    pub(super) fn operation(&self) -> TxnOp {
        TxnOp::txn(self.stands.clone())
    }

    /// The transaction was carried out at this revision. Who hears nothing stands in line by itself.
    pub(super) fn arrived(self, done: &[TxnOpResponse], revision: i64) {
        if matches!(done.last(), Some(TxnOpResponse::Txn(own)) if own.succeeded()) {
            let _ = self.tell.send(revision);
        }
    }
}

impl Store {
    /// Stands in line with the next hand-over, if one is expected and comes; at which revision.
    pub(super) async fn ride(&self, party: &Party, lease: i64) -> Option<i64> {
        if !self.desk.flows(&party.key, self.clock.now()) {
            return None;
        }
        let (tell, mut told) = oneshot::channel();
        let rider = Rider { id: party.id, stands: self.stands(party, lease, None), tell };
        if !self.desk.ride(&party.key, rider) {
            return None; // one at a time: two of one revision would have one place
        }
        match timeout(PATIENCE, &mut told).await {
            Ok(told) => told.ok(),
            Err(_) if self.desk.get_off(&party.key, party.id) => None,
            Err(_) => told.await.ok(), // it is on its way
        }
    }
}
