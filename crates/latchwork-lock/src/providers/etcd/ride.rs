//! Standing in line along the way, with the transaction that hands the key on.
//!
//! Where a key goes around, each who has given it back soon wants it again. To stand in line would be
//! one more transaction, for which the next hand-over must wait. So it waits a moment for a hand-over,
//! and is written with it.

use std::time::Duration;

use etcd_client::TxnOp;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::{Party, Store};
use crate::rules::Id;

/// How long one waits for a hand-over to go with.
const PATIENCE: Duration = Duration::from_millis(3);

/// How many may wait so. Each goes with a hand-over of its own: two of one revision would have one
/// place.
pub(super) const ROOM: usize = 4;

/// For how long after a hand-over the next one is expected.
pub(super) const FLOWS: Duration = Duration::from_millis(3);

/// One who stands in line with somebody else's transaction.
pub(super) struct Rider {
    pub(super) id: Id,
    stands: TxnOp,
    tell: oneshot::Sender<i64>,
}

impl Rider {
    /// False when nobody waits for it any more: then it must not go.
    pub(super) fn is_wanted(&self) -> bool {
        !self.tell.is_closed()
    }

    /// What it adds to a transaction, where that has found that another one holds the key alone: it
    /// does not hold the key itself then.
    pub(super) fn operation(&self) -> TxnOp {
        self.stands.clone()
    }

    /// It stands in line since this revision. Who hears nothing stands in line by itself.
    pub(super) fn arrived(self, revision: i64) {
        let _ = self.tell.send(revision);
    }
}

impl Store {
    /// Stands in line with the next hand-over, if one is expected and comes; at which revision.
    pub(super) async fn ride(&self, party: &Party, lease: i64) -> Option<i64> {
        if !self.desk.flows(&party.key, self.clock.now()) {
            return None;
        }
        let (tell, mut told) = oneshot::channel();
        let rider = Rider { id: party.id, stands: self.ticket(party, lease), tell };
        if !self.desk.ride(&party.key, rider) {
            return None; // there is no room
        }
        match timeout(PATIENCE, &mut told).await {
            Ok(told) => told.ok(),
            Err(_) if self.desk.get_off(&party.key, party.id) => None,
            Err(_) => told.await.ok(), // it is on its way
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::watch::Desk;
    use super::*;
    use crate::{Key, Mode};

    fn rider(id: Id) -> (Rider, oneshot::Receiver<i64>) {
        let (tell, told) = oneshot::channel();
        (Rider { id, stands: TxnOp::put("name", "", None), tell }, told)
    }

    /// A desk at which somebody waits for the key.
    fn desk() -> (Arc<Desk>, Key) {
        let key = Key::new("key").expect("legal");
        let desk = Arc::new(Desk::default());
        let ttl = Duration::from_secs(30);
        let party = Party {
            key: key.clone(),
            id: 100,
            mode: Mode::Exclusive,
            owner: None,
            note: None,
            ttl,
        };
        drop(desk.join(&Arc::new(party), &Arc::new(AtomicBool::new(true))));
        (desk, key)
    }

    #[test]
    fn each_goes_with_a_hand_over_of_its_own_in_the_order_of_their_coming() {
        let (desk, key) = desk();
        let mut told = Vec::new();
        for id in 1..=ROOM as Id {
            let (rider, tell) = rider(id);
            assert!(desk.ride(&key, rider));
            told.push(tell);
        }
        assert!(!desk.ride(&key, rider(50).0), "there is no room");
        assert!(desk.get_off(&key, 2));
        assert!(!desk.get_off(&key, 2), "it has got off");
        for id in [1, 3, 4] {
            let rider = desk.rider(&key, [100, 101]).expect("one waits");
            assert_eq!(rider.id, id);
            rider.arrived(7);
        }
        assert!(desk.rider(&key, [100, 101]).is_none());
        let told: Vec<_> = told.iter_mut().map(|told| told.try_recv().ok()).collect();
        assert_eq!(told, [Some(7), None, Some(7), Some(7)]);
    }

    #[test]
    fn nobody_rides_twice_nor_with_its_own_hand_over_nor_when_it_has_gone() {
        let (desk, key) = desk();
        let (one, _told) = rider(1);
        assert!(desk.ride(&key, one));
        assert!(!desk.ride(&key, rider(1).0), "it does already");
        let (two, gone) = rider(2);
        assert!(desk.ride(&key, two));
        drop(gone);
        let (three, _told) = rider(3);
        assert!(desk.ride(&key, three));
        assert_eq!(desk.rider(&key, [100, 1]).map(|rider| rider.id), Some(3));
    }
}
